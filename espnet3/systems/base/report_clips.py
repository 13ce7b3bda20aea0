"""Audio of single utterances for the page: the samples behind results, and small clips of them.

The block `report` of a config says how many and how large.
"""

import io
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from espnet3.config.schema import FrozenConfig, validate

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

_MOST_CHANNELS = 8
_MIME = {"WAV": "wav", "MP3": "mpeg"}
_RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)


class ReportConfig(FrozenConfig):
    """Settings of the report: single utterances that it shows."""

    n_worst: NonNegativeInt = 20
    """Utterances with the most errors, over all test sets."""
    audio_megabytes: NonNegativeFloat = 6.0
    """Most that their audio may add to the page; 0 leaves it out."""
    audio_key: str = "speech"
    """The field of a sample that is played."""
    sample_rate: PositiveInt | None = None
    """Its rate in Hz, where neither the sample nor the durations of the dataset give it."""


def load_report_config(loaded: "LoadedConfig") -> ReportConfig:
    """Check the block; without one, all is as by default.

    Raises:
        ConfigError: one that lists every problem, with its place.
    """
    block = loaded.plain().get("report")
    return validate(ReportConfig, block, prefix="report", loaded=loaded)


class NoClip(Exception):
    """Says why an utterance cannot be heard."""


@dataclass(frozen=True)
class EmbeddedAudio:
    """Audio as the text of a `data:` address."""

    address: str
    seconds: float


@dataclass
class ClipMaker:
    """Encodes samples of datasets until the page has enough of them."""

    config: ReportConfig
    n_bytes: int = field(default=0, init=False)
    """What the clips so far add to the page."""

    def make(self, sample: Any, seconds: float | None) -> EmbeddedAudio:
        """Encode the audio of a sample: as WAV of 16 bits, or if that is long, as MP3.

        Browsers play both. They do not all play FLAC: Chromium fails to seek in short files.

        Args:
            sample: of the dataset.
            seconds: its duration, if the dataset knows it; the sampling rate follows from it.

        Raises:
            NoClip: it has none, or the page is full.
        """
        key = self.config.audio_key
        if not isinstance(sample, Mapping) or key not in sample:
            raise NoClip(f"the sample has no field {key!r}; name it: report: {{audio_key: FIELD}}")
        samples = _as_audio(sample[key], key)
        # Not guessed where it is unknown: the clip would play at the wrong speed.
        rate = self._rate(sample, len(samples), seconds)
        limit = self.config.audio_megabytes
        address = _address(samples, rate, "WAV")
        # Each clip may use its share of the budget; only those above it are compressed.
        if len(address) > limit * 1e6 / max(self.config.n_worst, 1):
            address = _address(samples, rate, "MP3")
        if self.n_bytes + len(address) > limit * 1e6:
            raise NoClip(
                f"the page holds at most {limit:g} MB of audio; for more: report: "
                "{audio_megabytes: 20}"
            )
        self.n_bytes += len(address)
        return EmbeddedAudio(address, len(samples) / rate)

    def _rate(self, sample: Mapping[str, Any], n_samples: int, seconds: float | None) -> int:
        known = self.config.sample_rate or sample.get("sample_rate")
        if known:
            return int(known)
        if seconds:
            # Durations are rounded, so the rate that follows is only near a usual one.
            found = n_samples / seconds
            nearest = min(_RATES, key=lambda rate: abs(rate - found))
            if abs(nearest - found) < 0.02 * nearest:
                return nearest
        raise NoClip("its sampling rate is not known; write: report: {sample_rate: 16000}")


def _as_audio(value: Any, key: str) -> NDArray[np.int16]:
    """Return [samples] or [samples, channels] of 16 bits."""
    array = np.asarray(value)
    # Channels come first or last, depending on the library; there are fewer of them than samples.
    if array.ndim == 2 and array.shape[0] <= _MOST_CHANNELS < array.shape[1]:
        array = array.T
    is_audio = array.ndim == 1 or (array.ndim == 2 and array.shape[1] <= _MOST_CHANNELS)
    if not is_audio or array.dtype.kind not in "fiu":
        raise NoClip(f"{key} is no waveform, but {array.dtype} of shape {list(array.shape)}")
    if not array.size:
        raise NoClip(f"{key} is empty")
    if array.dtype.kind == "f":
        # nan_to_num, as casting NaN to an integer gives an arbitrary sample.
        array = np.round(np.clip(np.nan_to_num(array.astype(np.float64)), -1, 1) * 32767)
    samples: NDArray[np.int16] = np.clip(array, -32768, 32767).astype(np.int16)
    return samples


def _address(samples: NDArray[np.int16], rate: int, kind: str) -> str:
    import soundfile

    buffer = io.BytesIO()
    try:
        soundfile.write(buffer, samples, rate, format=kind)
    except soundfile.SoundFileError as error:  # MP3 knows few rates, and at most two channels
        raise NoClip(f"it cannot be written as {kind}: {error}") from error
    data = b64encode(buffer.getvalue()).decode("ascii")
    return f"data:audio/{_MIME[kind]};base64,{data}"


@dataclass(frozen=True)
class TestSetData:
    """A dataset, and where the item of each id is in it."""

    __test__ = False  # pytest takes the name for a test

    dataset: Any
    positions: Mapping[str, int]
    durations: NDArray[np.float64] | None
    idx_key: str

    def sample(self, id: str) -> Any:
        """Return the sample of an id.

        Raises:
            NoClip: it is not in the dataset any more, or cannot be read.
        """
        position = self.positions.get(id)
        if position is None or position >= len(self.dataset):
            raise NoClip("it is not in the dataset; did the data change since the infer stage?")
        try:
            sample = self.dataset[position]
        except Exception as error:  # of the user's code or files
            raise NoClip(f"it cannot be read: {type(error).__name__}: {error}") from error
        known = sample.get(self.idx_key, position) if isinstance(sample, Mapping) else position
        # The data may have changed since: audio of another utterance would be worse than none.
        if str(known) != id:
            raise NoClip(
                f"item {position} of the dataset is {known} now; did the data change since the "
                "infer stage?"
            )
        return sample

    def duration(self, id: str) -> float | None:
        """Return the seconds of an item, if the dataset knows them."""
        position = self.positions.get(id)
        if self.durations is None or position is None or position >= len(self.durations):
            return None
        return float(self.durations[position])

    def durations_of(self, ids: Sequence[str]) -> NDArray[np.float64] | None:
        """Return the seconds of these, or None if those of one are not known."""
        if self.durations is None:
            return None
        found = [self.positions.get(id, -1) for id in ids]
        if not found or min(found) < 0 or max(found) >= len(self.durations):
            return None
        chosen: NDArray[np.float64] = self.durations[np.asarray(found)]
        return chosen


def open_data(
    loaded: "LoadedConfig", test_set: str, ids: Iterable[str], failed: Iterable[Any]
) -> TestSetData:
    """Build the dataset of a test set from an inference config.

    Args:
        loaded: the inference config.
        test_set: its name.
        ids: of all results, in the order of the dataset.
        failed: indices of the items that have no result.

    Raises:
        NoClip: it cannot be built.
    """
    from espnet3.components.data.dataset import durations_of
    from espnet3.systems.base.inference import open_test_set
    from espnet3.systems.base.inference_config import load_inference_config

    try:
        dataset = open_test_set(loaded, test_set)
        durations = durations_of(dataset)
        n_items = len(dataset)
        idx_key = load_inference_config(loaded).idx_key
    except Exception as error:  # of the user's code or files; the page is written all the same
        raise NoClip(f"the test set cannot be built: {type(error).__name__}: {error}") from error
    left_out = set(failed)
    there = (position for position in range(n_items) if position not in left_out)
    # Failed items have no line in the results, so the ids are matched with the others in order.
    positions = dict(zip(ids, there, strict=False))
    return TestSetData(dataset, positions, durations, idx_key)
