"""Which form the audio of a source must have, or is brought into."""

from dataclasses import dataclass
from typing import Any

from espnet3.components.data.audio import (
    CHANNEL_CHOICES,
    Audio,
    check_sample_rate,
    pick_channel,
    read_audio,
)
from espnet3.components.data.audio_problems import Source
from espnet3.components.data.resampling import resample
from espnet3.errors import ConfigError


@dataclass(frozen=True)
class AudioForm:
    """The options that all sources have in common; see `read_audio`.

    Raises:
        ConfigError: One of them is of another type, or `resample` lacks a `sample_rate`.
    """

    sample_rate: int | None = None
    channel: int | str | None = None
    resample: bool = False

    def __post_init__(self) -> None:
        _check_whole_number("sample_rate", self.sample_rate, 16000, least=1)
        if self.channel not in CHANNEL_CHOICES:
            _check_whole_number("channel", self.channel, 0, least=0)
        if not isinstance(self.resample, bool):
            raise ConfigError(
                f"resample is {self.resample!r}, but must be true or false. Write the rate as "
                "sample_rate: 16000, and resample: true"
            )
        if self.resample and self.sample_rate is None:
            raise ConfigError(
                "resample is true, but sample_rate is not set. Write the rate to bring all audio "
                "to: sample_rate: 16000"
            )

    def read(self, source: Source, start: float = 0.0, end: float | None = None) -> Audio:
        """Read a file or a part of it.

        Raises:
            AudioError: It cannot be read, or is of another form.
        """
        return read_audio(
            source,
            start=start,
            end=end,
            channel=self.channel,
            sample_rate=self.sample_rate,
            resample=self.resample,
        )

    def apply(self, audio: Audio, source: Source) -> Audio:
        """Bring audio that something else has read into this form; errors call it `source`."""
        samples = pick_channel(audio.samples, self.channel, source)
        if self.sample_rate is None:
            return Audio(samples, audio.sample_rate)
        if not self.resample:
            check_sample_rate(audio.sample_rate, self.sample_rate, source)
        return Audio(resample(samples, audio.sample_rate, self.sample_rate), self.sample_rate)

    def settings(self) -> dict[str, Any]:
        """Return what the samples depend on; without `resample`, as before there was one."""
        settings: dict[str, Any] = {"sample_rate": self.sample_rate, "channel": self.channel}
        return {**settings, "resample": "soxr HQ"} if self.resample else settings


def _check_whole_number(name: str, value: Any, example: int, least: int) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool):
        more = " or one of: mix, only" if name == "channel" else ""
        raise ConfigError(
            f"{name} is {value!r}, of type {type(value).__name__}, but must be a whole number"
            f"{more}. Write it without quotes or unit: {name}: {example}"
        )
    if value < least:
        raise ConfigError(f"{name} is {value}, but must be at least {least}: {name}: {example}")
