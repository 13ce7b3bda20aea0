"""Write a dataset as shards: few big files instead of one per utterance, resumable by a plan."""

import io
import itertools
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from espnet3.components.data.dataset import Dataset, fingerprint_of
from espnet3.components.data.errors import DataError, create_command
from espnet3.components.data.sources.shard_index import IndexKind
from espnet3.config.fingerprint import diff, flatten
from espnet3.errors import ConfigError, RecordError, StaleRunError, suggest
from espnet3.io.atomic import StrPath, is_temp_name, open_atomic, to_jsonable, write_json
from espnet3.io.scp import check_id

logger = logging.getLogger(__name__)

FORMATS = {"flac": ("FLAC", None), "wav": ("WAV", None), "ogg": ("OGG", "VORBIS"),
           "opus": ("OGG", "OPUS")}  # fmt: skip
"""What audio can be written as: the format and subtype of soundfile."""
PLAN_ENDING = ".shards.json"
_READ_AHEAD = 64  # samples; they are in memory, encoded
_STALE_SECONDS = 3600.0
_VERSION = 1
_DIGITS = 6
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_BITS = {16: ("PCM_16", np.int16, 0), 24: ("PCM_24", np.int32, 8)}
_AUDIO_FIELDS = ("utt_id", "speech", "sample_rate")


@dataclass(frozen=True)
class AudioEncoding:
    """Format in which audio is written.

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
            raise ConfigError(
                f"bits is {self.bits!r}, but must be 16 or 24.", fix="Write: bits: 16"
            )

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
    """A sample as it is written."""

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


def encode_sample(sample: Any, form: AudioEncoding, where: str) -> EncodedSample:
    """Encode a sample `{utt_id, speech, sample_rate, ...}`.

    Args:
        sample: Its other fields may be whatever JSON can hold, and NumPy arrays.
        form: Of the audio.
        where: Which sample, for the errors.

    Raises:
        DataError: A field is missing or of a type that cannot be written.
    """
    _check_sample(sample, where)
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


def _check_sample(sample: Any, where: str) -> None:
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
    # Exactly +1.0 is one step too high as well, but too little to warn about.
    n_clipped = int(np.count_nonzero(np.abs(values) > scale))
    if n_clipped:
        logger.warning(
            "Clipped %d of %d values that are beyond full scale.", n_clipped, values.size
        )
    # soundfile takes the upper 24 bits of an int32.
    return np.clip(values, -scale, scale - 1).astype(dtype) << shift


def _as_npy(array: Any, where: str) -> bytes:
    buffer = io.BytesIO()
    try:
        np.save(buffer, array, allow_pickle=False)
    except ValueError as error:
        raise DataError(f"{where} cannot be written: {error} Return numbers.") from error
    return buffer.getvalue()


class ShardFormat(Protocol):
    """Writer and index of one kind of shard."""

    @property
    def ending(self) -> str:
        """Return what the names of such shards end with."""
        ...

    def open(self, file: IO[bytes]) -> AbstractContextManager[Callable[[EncodedSample], None]]:
        """Return a block in which a function adds samples to the file."""
        ...

    def index(self) -> IndexKind:
        """Return how such a shard is indexed."""
        ...


@dataclass(frozen=True)
class ShardSize:
    """Size at which a shard is full: so many seconds of audio, or so many samples.

    Raises:
        ConfigError: Both are set, or one is not above 0.
    """

    shard_seconds: float | None = None
    samples_per_shard: int | None = None

    def __post_init__(self) -> None:
        both = (self.shard_seconds, self.samples_per_shard)
        if None not in both:
            raise ConfigError(
                f"shard_seconds is {both[0]} and samples_per_shard is {both[1]}.", fix="Remove one."
            )
        for name, value in zip(("shard_seconds", "samples_per_shard"), both, strict=True):
            if value is not None and value <= 0:
                raise ConfigError(
                    f"{name} is {value}, but must be above 0.", fix=f"Write: {name}: 7200"
                )

    def is_full(self, n_samples: int, seconds: float) -> bool:
        """Tell whether a shard with this content takes no more."""
        if self.samples_per_shard is not None:
            return n_samples >= self.samples_per_shard
        return seconds >= (self.shard_seconds or 7200.0)


@dataclass
class ShardPlan:
    """The shards that are whole, and whether these are all."""

    folder: Path
    name: str
    ending: str
    settings: Mapping[str, Any]
    """What the shards depend on."""
    n_samples: list[int] = field(default_factory=list)
    """Of each whole shard."""
    is_complete: bool = False

    @property
    def file(self) -> Path:
        """The file of the index."""
        return self.folder / f"{self.name}{PLAN_ENDING}"

    def shards(self) -> list[Path]:
        """Return the whole shards."""
        return [self._shard(i) for i in range(len(self.n_samples))]

    def next_shard(self) -> Path:
        """Return the shard to write next."""
        return self._shard(len(self.n_samples))

    def add(self, n_samples: int) -> None:
        """Note that the next shard is whole."""
        self.n_samples.append(n_samples)
        self.save()

    def complete(self) -> None:
        """Note that there are no more shards to write."""
        self.is_complete = True
        self.save()

    def pattern(self) -> str:
        """Return what to write as `path` in a config."""
        last = f"{len(self.n_samples) - 1:0{_DIGITS}d}"
        return f"{self.folder}/{self.name}-{{{'0' * _DIGITS}..{last}}}{self.ending}"

    def save(self) -> None:
        """Write the file, atomically."""
        values = {
            "version": _VERSION,
            "settings": flatten(self.settings),
            "is_complete": self.is_complete,
            "n_samples": self.n_samples,
        }
        write_json(self.file, values, indent=None)

    def _shard(self, number: int) -> Path:
        return self.folder / f"{self.name}-{number:0{_DIGITS}d}{self.ending}"


def open_plan(folder: Path, name: str, ending: str, settings: Mapping[str, Any]) -> ShardPlan:
    """Return the plan of a folder as far as its shards are there, or a new one.

    Raises:
        ConfigError: The name cannot be that of files.
        StaleRunError: The shards are of other data or settings.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"name is {name!r}, but must be letters, digits, dots, _ or -.",
            fix="Write: name: train",
        )
    plan = ShardPlan(folder, name, ending, settings)
    if not plan.file.exists():
        plan.save()
        return plan
    values = _load_plan(plan.file)
    changes = diff(values["settings"], flatten(settings))
    if changes:
        raise StaleRunError(
            f"{folder} holds shards {name}-*{ending} of other data or settings "
            f"({'; '.join(changes[:5])}).",
            fix=f"Remove them: rm {name}-*{ending}* {plan.file.name}; or "
            "write into another folder.",
        )
    plan.n_samples, plan.is_complete = values["n_samples"], values["is_complete"]
    there = [shard.exists() for shard in plan.shards()]
    if not all(there):  # what comes after a missing one is written again, and will be the same
        del plan.n_samples[there.index(False) :]
        plan.is_complete = False
    return plan


def are_shards_written(folder: StrPath, name: str = "shard") -> bool:
    """Tell whether a writer came to its end; made for `DatasetBuilder.is_built`."""
    file = Path(folder, f"{name}{PLAN_ENDING}")
    if not file.exists():
        return False
    values = _load_plan(file)
    ending = values["settings"].get("ending", "")
    plan = ShardPlan(file.parent, name, ending, {}, values["n_samples"])
    return bool(values["is_complete"]) and all(shard.exists() for shard in plan.shards())


def check_written(shards: Iterable[Path]) -> None:
    """Raise a `DataError` if one of the shards is of a writer that has not come to its end."""
    folders: dict[Path, set[str]] = {}
    for shard in shards:
        folders.setdefault(shard.parent, set()).add(shard.name.rpartition("-")[0])
    for folder, names in folders.items():
        for name in sorted(names):
            file = folder / f"{name}{PLAN_ENDING}"
            if file.exists() and not _load_plan(file)["is_complete"]:
                raise DataError(
                    f"The shards {name}-* in {folder} are not all written: {file.name} says so. "
                    f"Continue with what writes them: {create_command()}"
                )


def _load_plan(file: Path) -> dict[str, Any]:
    try:
        values: dict[str, Any] = json.loads(file.read_bytes())
        if values["version"] == _VERSION:
            return values
        problem = f"is of version {values['version']}"
    except (ValueError, KeyError, TypeError) as error:
        problem = f"is damaged ({error})"
    raise StaleRunError(
        f"{file} {problem}, so it does not say which shards are whole.",
        fix="Remove it and the shards that it is for, and write them again.",
    )


@dataclass
class ShardWriting:
    """Write a dataset as shards `NAME-000000.ENDING`, each atomically; run again, it continues.

    Args:
        dataset: Samples `{utt_id, speech, sample_rate, ...}`.
        folder: Made if need be.
        format: Of the shards.
        name: Which the shards' names begin with.
        size: When a shard is full.
        form: Of the audio.
        n_threads: That read and encode samples; more than 1 only for a dataset that allows it.
    """

    dataset: Dataset
    folder: StrPath
    format: ShardFormat
    name: str = "shard"
    size: ShardSize = field(default_factory=ShardSize)
    form: AudioEncoding = field(default_factory=AudioEncoding)
    n_threads: int = 1

    def run(self) -> list[Path]:
        """Write what is missing, and return all shards.

        Raises:
            DataError: The dataset is empty, a sample is wrong, or the folder holds the shards of
                other data or settings.
        """
        if len(self.dataset) == 0:
            raise DataError(
                "The dataset to write as shards has no items.", fix="Check how it was made."
            )
        folder = Path(self.folder).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder, self.name)
        plan = open_plan(folder, self.name, self.format.ending, self._settings())
        start, n_before = time.monotonic(), len(plan.n_samples)
        if not plan.is_complete:
            self._write_rest(plan)
        if n_before:
            logger.info("%d shards were there already.", n_before)
        seconds = time.monotonic() - start
        logger.info(
            "%d samples in %d shards (%.1f s). To read them: path: %s",
            sum(plan.n_samples), len(plan.n_samples), seconds, plan.pattern(),
        )  # fmt: skip
        return plan.shards()

    def _settings(self) -> dict[str, Any]:
        return {
            # Without the number of threads, on which no byte depends.
            "ending": self.format.ending,
            "dataset": fingerprint_of(self.dataset),
            "n_items": len(self.dataset),
            "size": vars(self.size),
            "form": vars(self.form),
        }

    def _write_rest(self, plan: ShardPlan) -> None:
        with ThreadPoolExecutor(self.n_threads) as threads:
            samples = self._encoded(sum(plan.n_samples), threads)
            # Taken before the shard is opened, or the end of the data could leave an empty one.
            for first in samples:
                shard = plan.next_shard()
                n_samples = self._write_shard(shard, itertools.chain([first], samples))
                plan.add(n_samples)
                # After the plan: an index that is missing is simply made when the shard is read.
                self.format.index().file_of(shard)
                logger.info("%s: %d samples", shard.name, n_samples)
        plan.complete()

    def _write_shard(self, shard: Path, samples: Iterator[EncodedSample]) -> int:
        n_samples, seconds = 0, 0.0
        with open_atomic(shard, "wb") as file, self.format.open(file) as add:
            for sample in samples:
                add(sample)
                n_samples, seconds = n_samples + 1, seconds + sample.seconds
                if self.size.is_full(n_samples, seconds):
                    break
        return n_samples

    def _encoded(self, start: int, threads: ThreadPoolExecutor) -> Iterator[EncodedSample]:
        positions = range(start, len(self.dataset))
        if self.n_threads == 1:
            yield from map(self._encode, positions)
            return
        # One map() over all would read ahead without end, as it submits everything at once.
        for first in range(0, len(positions), _READ_AHEAD):
            yield from threads.map(self._encode, positions[first : first + _READ_AHEAD])

    def _encode(self, position: int) -> EncodedSample:
        return encode_sample(self.dataset[position], self.form, f"Item {position}")


def _remove_leftovers(folder: Path, name: str) -> None:
    """Remove what a killed run left behind; what changed in the last hour may be alive."""
    for entry in os.scandir(folder):
        is_ours = is_temp_name(entry.name) and entry.name.startswith(f".{name}-")
        if is_ours and time.time() - entry.stat().st_mtime > _STALE_SECONDS:
            os.unlink(entry.path)
            logger.info("Removed %s, which a killed run had left.", entry.name)
