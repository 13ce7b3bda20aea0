"""What the sources of shards share: items by position, read out of few big files."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from espnet3.components.data.audio import AudioForm
from espnet3.components.data.dataset import Sample, as_position
from espnet3.components.data.errors import AudioError
from espnet3.components.data.sources.column_file import Array, ColumnFile
from espnet3.components.data.sources.open_shards import Recent, ShardFile
from espnet3.components.data.sources.shard_ids import check_unique, id_at
from espnet3.config.fingerprint import digest

_MAX_OPEN = 64
"""Shards that a process holds open; each takes two file handles, or three."""


class OpenShard:
    """A shard with its index."""

    def __init__(self, path: Path, index_file: Path) -> None:
        self.index = ColumnFile(index_file)
        self.file = ShardFile(path, self.index.facts["shard"])

    def id_at(self, row: int) -> str:
        """Return the id of an item."""
        return id_at(self.index, row)


class ShardSource(ABC):
    """A dataset of utterances in shards.

    Per item it keeps 8 bytes in memory, the duration; the rest is in index files that are mapped.
    At most 64 shards are open in a process.

    Args:
        shards: The files.
        index_files: The index of each; see `IndexKind`.
        sample_rate: The rate that all audio must have; None for any.
        channel: The channel to take, from 0; `mix` for the mean of all, `only` to refuse files with
            more than one; None keeps all.
        resample: Bring audio of another rate to `sample_rate`, instead of refusing it.

    Raises:
        DataError: An item has no audio, or an id is there twice.
    """

    def __init__(
        self,
        shards: Sequence[Path],
        index_files: Sequence[Path],
        *,
        sample_rate: int | None = None,
        channel: int | str | None = None,
        resample: bool = False,
    ) -> None:
        self._form = AudioForm(sample_rate, channel, resample)
        self._shards = list(shards)
        self._index_files = list(index_files)
        self._open_shards: Recent[Any] = Recent(_MAX_OPEN)
        self._settings: dict[str, Any] = self._form.settings()

    def _survey(self) -> None:
        """Go through all indexes once: the number of items, their durations and ids."""
        seconds, hashes, digests = [], [], []
        for shard, file in zip(self._shards, self._index_files, strict=True):
            index = ColumnFile(file)
            seconds.append(np.array(self._seconds_of(index, shard)))
            hashes.append(index["id_hash"].copy())  # not the map, which holds the file open
            digests.append(index.facts["digest"])
        self._ends: Array = np.cumsum([len(part) for part in seconds], dtype=np.int64)
        self._seconds: Array = np.concatenate(seconds)
        self._digests = digests
        check_unique(hashes, self._index_files, self._shards)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Sample:
        shard, row = self._locate(as_position(index, len(self)))
        fields, audio = self._read(self._opened(shard), row)
        try:
            samples, rate = self._form.read(audio)
        except AudioError as error:
            raise AudioError(f"{self._where(shard, row)}: {error}") from error
        return {**fields, "speech": samples, "sample_rate": rate}

    def fields(self, index: int) -> Sample:
        """Return the sample without its audio, which is not decoded."""
        shard, row = self._locate(as_position(index, len(self)))
        return self._read(self._opened(shard), row)[0]

    def durations(self, unreadable: float | None = None) -> "np.ndarray[Any, np.dtype[np.float64]]":
        """Return the seconds of each item, from when the shards were indexed.

        Args:
            unreadable: What to return for an item whose header could not be read.

        Raises:
            AudioError: The header of an item's audio could not be read, and `unreadable` is None;
                the message has the number of such items.
        """
        bad = np.flatnonzero(np.isnan(self._seconds))
        if bad.size and unreadable is not None:
            return np.where(np.isnan(self._seconds), unreadable, self._seconds)
        if bad.size:
            shard, row = self._locate(int(bad[0]))
            raise AudioError(
                f"The durations of {bad.size} of {len(self)} items could not be read from the "
                f"headers of their audio. The first is {self._where(shard, row)}. Leave them out "
                "where the shards are made, or make the audio again."
            )
        return self._seconds

    def fingerprint(self) -> str:
        """Return a digest of what the items are made from, but for the content of the audio."""
        shards = [[p.name, d] for p, d in zip(self._shards, self._digests, strict=True)]
        return digest({**self._settings, "shards": shards})

    def audio_files(self, most: int) -> list[Path]:
        """Return at most so many shards, evenly spaced: the audio is in them."""
        return self._shards[:: max(1, -(-len(self._shards) // most))]

    def locality(self) -> "np.ndarray[Any, np.dtype[np.int32]]":
        """Return the number of the shard of each item; see `shard_shuffle`."""
        numbers = np.arange(len(self._shards), dtype=np.int32)
        return np.repeat(numbers, np.diff(self._ends, prepend=0))

    def shard_of(self, index: int) -> Path:
        """Return the shard in which an item is."""
        return self._shards[self._locate(as_position(index, len(self)))[0]]

    def utt_id(self, index: int) -> str:
        """Return the id of an item; no audio is read."""
        shard, row = self._locate(as_position(index, len(self)))
        return str(self._opened(shard).id_at(row))

    @abstractmethod
    def _seconds_of(self, index: ColumnFile, shard: Path) -> Array:
        """Return the duration of each item of a shard; NaN where it is unknown."""

    @abstractmethod
    def _read(self, shard: Any, row: int) -> tuple[Sample, Any]:
        """Return an item without its audio, and the audio: bytes or a path."""

    def _open(self, shard: int) -> OpenShard:
        return OpenShard(self._shards[shard], self._index_files[shard])

    def _opened(self, shard: int) -> Any:
        return self._open_shards.get(shard, lambda: self._open(shard))

    def _locate(self, position: int) -> tuple[int, int]:
        shard = int(np.searchsorted(self._ends, position, side="right"))
        return shard, position - (int(self._ends[shard - 1]) if shard else 0)

    def _where(self, shard: int, row: int) -> str:
        return f"{self._shards[shard]}, item {self._opened(shard).id_at(row)!r}"
