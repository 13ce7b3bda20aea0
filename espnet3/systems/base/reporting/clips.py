"""Audio of single utterances, small enough to stand in the page itself."""

import io
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from espnet3.systems.base.reporting.report_config import ReportConfig

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST_CHANNELS = 8
_MIME = {"WAV": "wav", "MP3": "mpeg"}
_RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)


class NoClip(Exception):
    """Says why an utterance cannot be heard."""


@dataclass(frozen=True)
class Clip:
    """Audio as the text of a `data:` address."""

    address: str
    seconds: float


@dataclass
class ClipMaker:
    """Encodes samples of datasets until the page has enough of them."""

    config: ReportConfig
    n_bytes: int = field(default=0, init=False)
    """What the clips so far add to the page."""

    def make(self, sample: Any, seconds: float | None) -> Clip:
        """Encode the audio of a sample: as WAV of 16 bits, or if that is long, as MP3.

        Browsers play both. They do not all play FLAC: Chromium fails to seek in short files.

        Args:
            sample: of the dataset.
            seconds: its duration, if the dataset tells; gives the sampling rate away.

        Raises:
            NoClip: it has none, or the page is full.
        """
        key = self.config.audio_key
        if not isinstance(sample, Mapping) or key not in sample:
            raise NoClip(f"the sample has no field {key!r}; name it: report: {{audio_key: FIELD}}")
        samples = _as_audio(sample[key], key)
        rate = self._rate(sample, len(samples), seconds)
        limit = self.config.audio_megabytes
        address = _address(samples, rate, "WAV")
        if len(address) > limit * 1e6 / max(self.config.n_worst, 1):
            address = _address(samples, rate, "MP3")
        if self.n_bytes + len(address) > limit * 1e6:
            raise NoClip(
                f"the page holds at most {limit:g} MB of audio; for more: report: "
                "{audio_megabytes: 20}"
            )
        self.n_bytes += len(address)
        return Clip(address, len(samples) / rate)

    def _rate(self, sample: Mapping[str, Any], n_samples: int, seconds: float | None) -> int:
        known = self.config.sample_rate or sample.get("sample_rate")
        if known:
            return int(known)
        if seconds:
            found = n_samples / seconds
            nearest = min(_RATES, key=lambda rate: abs(rate - found))
            if abs(nearest - found) < 0.02 * nearest:
                return nearest
        raise NoClip("its sampling rate is not known; write: report: {sample_rate: 16000}")


def _as_audio(value: Any, key: str) -> "NDArray[np.int16]":
    """Return [samples] or [samples, channels] of 16 bits."""
    array = np.asarray(value)
    if array.ndim == 2 and array.shape[0] <= _MOST_CHANNELS < array.shape[1]:
        array = array.T
    is_audio = array.ndim == 1 or (array.ndim == 2 and array.shape[1] <= _MOST_CHANNELS)
    if not is_audio or array.dtype.kind not in "fiu":
        raise NoClip(f"{key} is no waveform, but {array.dtype} of shape {list(array.shape)}")
    if not array.size:
        raise NoClip(f"{key} is empty")
    if array.dtype.kind == "f":
        array = np.round(np.clip(np.nan_to_num(array.astype(np.float64)), -1, 1) * 32767)
    samples: NDArray[np.int16] = np.clip(array, -32768, 32767).astype(np.int16)
    return samples


def _address(samples: "NDArray[np.int16]", rate: int, kind: str) -> str:
    import soundfile

    buffer = io.BytesIO()
    try:
        soundfile.write(buffer, samples, rate, format=kind)
    except soundfile.SoundFileError as error:  # MP3 knows few rates, and at most two channels
        raise NoClip(f"it cannot be written as {kind}: {error}") from error
    data = b64encode(buffer.getvalue()).decode("ascii")
    return f"data:audio/{_MIME[kind]};base64,{data}"
