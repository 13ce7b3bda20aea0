"""Base class of sources in shards: items by position, read out of few big files that stay open."""

import os
import re
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from glob import glob, has_magic
from itertools import product
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from espnet3.components.data.audio import AudioForm
from espnet3.components.data.dataset import Sample, as_position
from espnet3.components.data.errors import AudioError, DataError, create_command
from espnet3.components.data.shard_writer import check_written
from espnet3.components.data.sources.base import find_input
from espnet3.components.data.sources.shard_index import Array, ColumnFile, check_unique, id_at
from espnet3.config.fingerprint import digest
from espnet3.errors import ConfigError
from espnet3.io.atomic import StrPath

T = TypeVar("T")
Paths = StrPath | Sequence[StrPath]
_MAX_OPEN = 64
"""Shards that a process holds open; each takes two file handles, or three."""
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_SHOWN = 5


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
        """Return the number of the shard of each item; see `shard_order`."""
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


class Recent(Generic[T]):
    """The values that were asked for last; others are made again when they are needed.

    After a fork, and when it is pickled, it is empty: a process opens its own files. What is
    dropped is closed once it is out of use, so several threads may read.

    Args:
        capacity: The sum of costs that is kept; the last value is kept whatever it costs.
        cost: Of a value; by default each counts 1.
    """

    def __init__(self, capacity: int, cost: Callable[[T], int] | None = None) -> None:
        self._capacity = capacity
        self._cost = cost
        self._clear()

    def _clear(self) -> None:
        self._values: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._total = 0
        # Not that of the process we were forked from, in which a thread may hold it.
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the value of a key; `make` is called if it is not kept."""
        if self._pid != os.getpid():
            self._clear()
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key][0]
        # Not under the lock: opening may take long on a network, and making one twice does no harm.
        value = make()
        self._keep(key, value)
        return value

    def _keep(self, key: Hashable, value: T) -> None:
        cost = self._cost(value) if self._cost else 1
        with self._lock:
            # Another thread may have made the same one in the meantime.
            self._total += cost - self._values.pop(key, (None, 0))[1]
            self._values[key] = value, cost
            while len(self._values) > 1 and self._total > self._capacity:
                self._total -= self._values.popitem(last=False)[1][1]

    def __len__(self) -> int:
        return len(self._values)

    def __getstate__(self) -> dict[str, Any]:
        return {"_capacity": self._capacity, "_cost": self._cost}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._clear()


class ShardFile:
    """A shard that is read by position, which leaves no file offset to get mixed up.

    Args:
        path: The shard.
        identity: Its size and time of change as they were when it was indexed.

    Raises:
        DataError: It cannot be opened, or is another one by now.
    """

    def __init__(self, path: Path, identity: dict[str, int]) -> None:
        self.path = path
        # For __del__(), which runs even if the file cannot be opened.
        self._descriptor = -1
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            status = os.fstat(self._descriptor)
        except OSError as error:
            raise DataError(f"The shard {path} cannot be opened: {error.strerror}.") from error
        if {"size": status.st_size, "mtime_ns": status.st_mtime_ns} != identity:
            raise DataError(
                f"{path} has changed since the run began.",
                fix="Start again; what was read before is of the old shard.",
            )

    def read(self, start: int, n_bytes: int) -> bytes:
        """Return the bytes from `start` on.

        Raises:
            DataError: There are fewer, or the disk fails.
        """
        parts = []
        # A single pread() may return less, and never more than 2 GiB.
        while n_bytes:
            try:
                part = os.pread(self._descriptor, n_bytes, start)
            except OSError as error:
                raise DataError(f"{self.path} cannot be read: {error.strerror}.") from error
            if not part:
                raise DataError(
                    f"{self.path} ends before byte {start}.", fix="Copy or make it again."
                )
            parts.append(part)
            start, n_bytes = start + len(part), n_bytes - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


def find_shards(path: Paths, ending: str, recipe_dir: StrPath | None = None) -> list[Path]:
    """Return the absolute paths of all shards, in the order of the pattern, else of the names.

    Args:
        path: A file, a folder (all its files with the ending), a pattern of the shell with
            `{000..009}`, `{a,b}`, `*` or `?`, or a list of these. Relative ones count from the
            current folder or the recipe's.
        ending: Such as ".tar".
        recipe_dir: The recipe's folder.

    Raises:
        ConfigError: A shard is missing, there is none, or one comes twice.
        DataError: They are not all written yet.
    """
    parts = [path] if isinstance(path, str | os.PathLike) else list(path)
    shards = [shard for part in parts for shard in _expand(part, ending, recipe_dir)]
    if not shards:
        raise ConfigError(
            f"path is {path!r}, without shards.", fix=f"Write: path: FOLDER/*{ending}"
        )
    seen: set[Path] = set()
    for shard in shards:
        if shard in seen:
            raise ConfigError(
                f"path names the shard {shard} twice. Each utterance comes once; for more of them "
                "write a weight: 2 beside data_src."
            )
        seen.add(shard)
    check_written(shards)
    return shards


def expand_braces(pattern: str) -> list[str]:
    """Return what a shell makes of `{000..009}` and `{a,b}`, the last brace changing fastest.

    Example:
        >>> expand_braces("{a,b}-{08..10}.tar")[:4]
        ['a-08.tar', 'a-09.tar', 'a-10.tar', 'b-08.tar']
    """
    pieces = _BRACES.split(pattern)
    choices = [_choices(piece) if i % 2 else [piece] for i, piece in enumerate(pieces)]
    return ["".join(words) for words in product(*choices)]


def _choices(inside: str) -> list[str]:
    ends = _RANGE.fullmatch(inside)
    if ends is None:
        return inside.split(",")
    first, last = ends.groups()
    if int(last) < int(first):
        raise ConfigError(
            f"path holds {{{inside}}}, which counts down.", fix=f"Write: {{{last}..{first}}}"
        )
    # As in bash, where a leading zero at either end pads all numbers.
    width = max(map(len, ends.groups())) if "0" in (first[0], last[0]) else 0
    return [f"{number:0{width}d}" for number in range(int(first), int(last) + 1)]


def _expand(part: StrPath, ending: str, recipe_dir: StrPath | None) -> list[Path]:
    text = os.fspath(part)
    places = [Path(text).absolute()]
    if recipe_dir is not None:
        places.append(Path(recipe_dir, text).absolute())
    if any(place.exists() for place in places):  # also of a name with braces or stars
        found = find_input(part, recipe_dir)
        return _in_folder(found, ending) if found.is_dir() else [found]
    if _BRACES.search(text):
        return _braced([expand_braces(os.fspath(place)) for place in places], text)
    if has_magic(text):
        return _globbed(places, text)
    return [find_input(part, recipe_dir)]  # raises, with the closest name


def _in_folder(folder: Path, ending: str) -> list[Path]:
    # A temporary file of a writer begins with a dot.
    files = [f for f in folder.iterdir() if f.name.endswith(ending) and f.name[0] != "."]
    if not files:
        raise ConfigError(
            f"path is the folder {folder}, which has no file *{ending}. Correct it, or make the "
            f"data: {create_command()}"
        )
    return sorted(files)


def _globbed(places: Sequence[Path], pattern: str) -> list[Path]:
    for place in places:
        found = sorted(Path(name) for name in glob(os.fspath(place)))
        if found:
            return found
    tried = " or ".join(map(str, places))
    raise ConfigError(
        f"path is {pattern!r}, but no file is called like {tried}. Correct it, or make the data: "
        f"{create_command()}"
    )


def _braced(expansions: Sequence[Sequence[str]], pattern: str) -> list[Path]:
    missing = [[name for name in names if not os.path.exists(name)] for names in expansions]
    best = min(range(len(missing)), key=lambda i: len(missing[i]))
    names, lost = expansions[best], missing[best]
    if not lost:
        return [Path(name) for name in names]
    shown = ", ".join(lost[:_SHOWN]) + (", ..." if len(lost) > _SHOWN else "")
    raise ConfigError(
        f"path is {pattern!r}, but {len(lost)} of its {len(names)} shards are missing: {shown}. "
        f"{_advice(pattern, names, lost)}"
    )


def _advice(pattern: str, names: Sequence[str], lost: Sequence[str]) -> str:
    """Return the way out; with the shorter range where only the last shards are missing."""
    n_there = len(names) - len(lost)
    braces = _BRACES.findall(pattern)
    is_range = len(braces) == 1 and _RANGE.fullmatch(braces[0])
    make = f"Copy or make them: {create_command()}"
    if not is_range or not n_there or list(names[n_there:]) != list(lost):
        return make
    first, last = (_choices(braces[0])[i] for i in (0, n_there - 1))
    shorter = pattern.replace(f"{{{braces[0]}}}", f"{{{first}..{last}}}")
    return f"{make}; or take those that are there: path: {shorter}"
