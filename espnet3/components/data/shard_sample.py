"""A sample in the form in which shards hold it: audio as a file, the rest as text and bytes."""

import io
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from espnet3.components.data.errors import DataError
from espnet3.errors import ConfigError, suggest
from espnet3.io.json_text import to_jsonable
from espnet3.io.scp import RecordError, check_id

logger = logging.getLogger(__name__)

FORMATS = {"flac": ("FLAC", None), "wav": ("WAV", None), "ogg": ("OGG", "VORBIS"),
           "opus": ("OGG", "OPUS")}  # fmt: skip
"""What audio can be written as: the format and subtype of soundfile."""

_BITS = {16: ("PCM_16", np.int16, 0), 24: ("PCM_24", np.int32, 8)}
_AUDIO_FIELDS = ("utt_id", "speech", "sample_rate")


@dataclass(frozen=True)
class AudioForm:
    """How audio is written.

    Args:
        audio_format: "flac" or "wav", without loss; "ogg" or "opus", smaller, with loss.
        bits: Per sample of flac and wav, 16 or 24; audio that was read from files of so many bits
            comes back exactly.

    Raises:
        ConfigError: The format or the number of bits is unknown.
    """

    audio_format: str = "flac"
    bits: int = 16

    def __post_init__(self) -> None:
        if self.audio_format not in FORMATS:
            raise ConfigError(
                f"audio_format is {self.audio_format!r}, which is unknown."
                f"{suggest(str(self.audio_format), FORMATS)} Write one of: {', '.join(FORMATS)}."
            )
        if self.bits not in _BITS:
            raise ConfigError(f"bits is {self.bits!r}, but must be 16 or 24. Write: bits: 16")

    def encode(self, samples: Any, rate: int) -> bytes:
        """Return the content of an audio file; `samples` are as in a sample's `speech`."""
        import soundfile

        kind, subtype = FORMATS[self.audio_format]
        if subtype is None:
            subtype, dtype, shift = _BITS[self.bits]
            samples = _as_integers(samples, self.bits, dtype, shift)
        buffer = io.BytesIO()
        soundfile.write(buffer, samples, rate, format=kind, subtype=subtype)
        return buffer.getvalue()


@dataclass(frozen=True)
class EncodedSample:
    """What is written of a sample."""

    utt_id: str
    audio: bytes
    seconds: float
    fields: dict[str, Any]
    """What JSON can hold."""
    arrays: dict[str, bytes]
    """The content of a .npy file for each array."""

    @property
    def n_bytes(self) -> int:
        """About what it takes."""
        return len(self.audio) + sum(map(len, self.arrays.values()))


def encode_sample(sample: Any, form: AudioForm, where: str) -> EncodedSample:
    """Encode a sample `{utt_id, speech, sample_rate, ...}`.

    Args:
        sample: Its other fields may be whatever JSON can hold, and NumPy arrays.
        form: Of the audio.
        where: Which sample, for the errors.

    Raises:
        DataError: A field is missing or of a type that cannot be written.
    """
    _check(sample, where)
    speech, rate = np.asarray(sample["speech"]), int(sample["sample_rate"])
    others = {k: v for k, v in sample.items() if k not in _AUDIO_FIELDS and v is not None}
    arrays = {k: v for k, v in others.items() if isinstance(v, np.ndarray) and v.ndim}
    try:
        fields = to_jsonable({k: v for k, v in others.items() if k not in arrays})
        audio = form.encode(speech, rate)
    except (ValueError, TypeError, RuntimeError) as error:  # of soundfile among them
        raise DataError(f"{where} ({sample['utt_id']}) cannot be written: {error}") from error
    return EncodedSample(
        utt_id=sample["utt_id"],
        audio=audio,
        seconds=len(speech) / rate,
        fields=fields,
        arrays={k: _as_npy(v, f"{where}: {k}") for k, v in arrays.items()},
    )


def _check(sample: Any, where: str) -> None:
    if not isinstance(sample, Mapping):
        raise DataError(f"{where} is {sample!r:.80}, not a dict. Return dicts from the dataset.")
    missing = [name for name in _AUDIO_FIELDS if sample.get(name) is None]
    if missing:
        raise DataError(
            f"{where} has no {missing[0]!r}; it has: {', '.join(map(str, sample))}. Return "
            '{"utt_id": "a", "speech": float32 [samples], "sample_rate": 16000, ...}'
        )
    try:
        check_id(sample["utt_id"])
    except RecordError as error:
        raise RecordError(f"{where}: {error}") from None
    if np.size(sample["speech"]) == 0:  # of which FLAC makes a file without content
        raise DataError(f"{where} ({sample['utt_id']}) has no audio: 0 samples. Leave it out.")
    if np.ndim(sample["speech"]) not in (1, 2):
        raise DataError(
            f"{where}: its speech is of shape {list(np.shape(sample['speech']))}. Return [samples] "
            "or [samples, channels]."
        )


def _as_integers(samples: Any, bits: int, dtype: Any, shift: int) -> Any:
    # Not left to soundfile, which scales by 2**15 - 1 what it reads scaled by 2**15.
    if samples.dtype.kind in "iu":
        if samples.dtype == np.int16:
            return samples
        raise ValueError(f"its speech is of type {samples.dtype}; return float32, full scale 1")
    scale = 2 ** (bits - 1)
    values = np.rint(np.asarray(samples, dtype=np.float64) * scale)
    if not np.isfinite(values).all():
        raise ValueError("its speech holds NaN or infinity")
    n_clipped = int(np.count_nonzero(np.abs(values) > scale))
    if n_clipped:
        logger.warning(
            "Clipped %d of %d values that are beyond full scale.", n_clipped, values.size
        )
    return np.clip(values, -scale, scale - 1).astype(dtype) << shift


def _as_npy(array: Any, where: str) -> bytes:
    buffer = io.BytesIO()
    try:
        np.save(buffer, array, allow_pickle=False)
    except ValueError as error:
        raise DataError(f"{where} cannot be written: {error} Return numbers.") from error
    return buffer.getvalue()
