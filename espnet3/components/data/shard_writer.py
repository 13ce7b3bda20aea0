"""Write a dataset as shards: few big files instead of one per utterance."""

import itertools
import logging
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from espnet3.components.data.dataset import Dataset, fingerprint_of
from espnet3.components.data.errors import DataError
from espnet3.components.data.shard_plan import ShardPlan, open_plan
from espnet3.components.data.shard_sample import AudioForm, EncodedSample, encode_sample
from espnet3.components.data.sources.shard_index import IndexKind
from espnet3.errors import ConfigError
from espnet3.io.atomic import StrPath, is_temp_name, open_atomic

logger = logging.getLogger(__name__)

_READ_AHEAD = 64  # samples; they are in memory, encoded
_STALE_SECONDS = 3600.0


class ShardFormat(Protocol):
    """How a kind of shard is written and indexed."""

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
    """When a shard is full: after so many seconds of audio, or so many samples.

    Raises:
        ConfigError: Both are set, or one is not above 0.
    """

    shard_seconds: float | None = None
    samples_per_shard: int | None = None

    def __post_init__(self) -> None:
        both = (self.shard_seconds, self.samples_per_shard)
        if None not in both:
            raise ConfigError(
                f"shard_seconds is {both[0]} and samples_per_shard is {both[1]}. Remove one."
            )
        for name, value in zip(("shard_seconds", "samples_per_shard"), both, strict=True):
            if value is not None and value <= 0:
                raise ConfigError(f"{name} is {value}, but must be above 0. Write: {name}: 7200")

    def is_full(self, n_samples: int, seconds: float) -> bool:
        """Tell whether a shard with this content takes no more."""
        if self.samples_per_shard is not None:
            return n_samples >= self.samples_per_shard
        return seconds >= (self.shard_seconds or 7200.0)


@dataclass
class ShardWriting:
    """Write a dataset as shards `NAME-000000.ENDING`, each atomically; run again, it goes on.

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
    form: AudioForm = field(default_factory=AudioForm)
    n_threads: int = 1

    def run(self) -> list[Path]:
        """Write what is missing, and return all shards.

        Raises:
            DataError: The dataset is empty, a sample is wrong, or the folder holds the shards of
                other data or settings.
        """
        if len(self.dataset) == 0:
            raise DataError("The dataset to write as shards has no items. Check how it was made.")
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
            "ending": self.format.ending,
            "dataset": fingerprint_of(self.dataset),
            "n_items": len(self.dataset),
            "size": vars(self.size),
            "form": vars(self.form),
        }

    def _write_rest(self, plan: ShardPlan) -> None:
        with ThreadPoolExecutor(self.n_threads) as threads:
            samples = self._encoded(sum(plan.n_samples), threads)
            for first in samples:
                shard = plan.next_shard()
                n_samples = self._write_shard(shard, itertools.chain([first], samples))
                plan.add(n_samples)
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
