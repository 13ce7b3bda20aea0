"""What our sources share: one audio file per item, read when the item is asked for."""

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espnet3.components.data.audio import Audio, Source, in_threads, read_audio, read_duration
from espnet3.components.data.dataset import Sample, as_position
from espnet3.components.data.errors import AudioError
from espnet3.config.fingerprint import digest, file_identity
from espnet3.errors import ConfigError, MissingExtraError


@dataclass(frozen=True, slots=True)
class Clip:
    """A file, or a part of it in seconds."""

    source: Source
    start: float = 0.0
    end: float | None = None


class SpeechSource(ABC):
    """A dataset of utterances with audio.

    Args:
        sample_rate: The rate that all audio must have; None for any. Nothing is resampled.
        channel: The channel to take, from 0; None keeps all.
    """

    def __init__(self, *, sample_rate: int | None = None, channel: int | None = None) -> None:
        self._sample_rate = check_whole_number("sample_rate", sample_rate, 16000)
        self._channel = check_whole_number("channel", channel, 0)
        self._durations: list[float] | None = None

    @abstractmethod
    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Sample:
        position = as_position(index, len(self))
        fields = self._fields(position)
        try:
            audio = self._audio(position)
        except AudioError as error:
            raise AudioError(f"{self._where(position)}: {error}") from error
        return {**fields, "speech": audio.samples, "sample_rate": audio.sample_rate}

    def durations(self) -> list[float]:
        """Return the seconds of each item: those that are written down, else from file headers.

        Raises:
            AudioError: A header cannot be read; the message has the number of such files.
        """
        if self._durations is None:
            self._durations = self._find_durations()
        return self._durations

    def fingerprint(self) -> str:
        """Return a digest of what the items are made from, but for the audio files' content."""
        settings = {"sample_rate": self._sample_rate, "channel": self._channel}
        return digest({**settings, "origin": self._origin()})

    @abstractmethod
    def _fields(self, position: int) -> Sample:
        """Return the sample without its audio."""

    @abstractmethod
    def _clip(self, position: int) -> Clip:
        """Return where the audio of an item is."""

    @abstractmethod
    def _known_durations(self) -> list[float | None]:
        """Return what is known without opening audio files."""

    @abstractmethod
    def _where(self, position: int) -> str:
        """Return where an item was written down: file and line."""

    @abstractmethod
    def _origin(self) -> Any:
        """Return what the items depend on, as plain values."""

    def _audio(self, position: int) -> Audio:
        clip = self._clip(position)
        return read_audio(
            clip.source,
            start=clip.start,
            end=clip.end,
            channel=self._channel,
            sample_rate=self._sample_rate,
        )

    def _find_durations(self) -> list[float]:
        known = self._known_durations()
        unknown = [i for i, duration in enumerate(known) if duration is None]
        lengths = self._lengths(unknown)
        for i, length in zip(unknown, lengths, strict=True):
            known[i] = length
        bad = [i for i in unknown if known[i] is None]
        if bad:
            raise self._unreadable(bad, len(unknown))
        return [duration for duration in known if duration is not None]

    def _lengths(self, positions: Sequence[int]) -> list[float | None]:
        return in_threads(self._try_length, positions)

    def _try_length(self, position: int) -> float | None:
        try:
            return self._length(position)
        except AudioError:
            return None

    def _length(self, position: int) -> float:
        clip = self._clip(position)
        length = read_duration(clip.source) - clip.start
        if length < 0:
            raise AudioError(f"The part starts at {clip.start:g} s, after the end of the file.")
        return length

    def _unreadable(self, positions: Sequence[int], n_read: int) -> AudioError:
        first = positions[0]
        try:
            self._length(first)
            reason = "It can be read now."  # it was being written, or the network had a pause
        except AudioError as error:
            reason = str(error)
        return AudioError(
            f"The durations of {len(positions)} of {n_read} items cannot be read from the headers "
            f"of their audio files. The first is {self._where(first)}: {reason}"
        )


def content_of(*files: Path) -> dict[str, str]:
    """Return the SHA-256 of those files that exist, by name."""
    return {file.name: file_identity(file)["sha256"] for file in files if file.is_file()}


def check_whole_number(name: str, value: Any, example: int) -> int | None:
    """Return the value, or raise a `ConfigError` unless it is a whole number or None."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise ConfigError(
        f"{name} is {value!r}, of type {type(value).__name__}, but must be a whole number. "
        f"Write it without quotes or unit: {name}: {example}"
    )


def check_extra(package: str, extra: str) -> None:
    """Raise a `MissingExtraError` with the line that installs, unless the package is there."""
    if importlib.util.find_spec(package) is None:
        raise MissingExtraError(
            f"data_src: {extra} needs the package {package!r}, which is not installed. "
            f"In your clone of ESPnet3: pip install -c constraints.txt -e '.[{extra}]'"
        )
