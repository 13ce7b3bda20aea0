"""The index of a shard: named arrays in one file beside it, mapped into memory.

It is made once, and again when the shard has changed.
"""

import hashlib
import json
import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from espnet3.components.data.errors import DataError
from espnet3.errors import RecordError
from espnet3.io.atomic import StrPath, dump_json, is_folder_trouble, open_atomic

logger = logging.getLogger(__name__)

Array = np.ndarray[Any, np.dtype[Any]]
# Many small reads of files that may be on a network: more than one shard at a time.
_N_THREADS = 8
_MAGIC = b"espnet3-columns-1\n"
# A multiple of each item size, so that columns can be viewed in place.
_ALIGNMENT = 64
_KINDS = "iuf"  # never objects: loading those would run code


class ColumnFileError(Exception):
    """A file is not what `write_columns` wrote, or not all of it."""


class ColumnFile:
    """Arrays of a file that `write_columns` wrote; they are read when they are looked at.

    It holds a file handle as long as it, or one of its arrays, lives.

    Args:
        path: The file.

    Raises:
        ColumnFileError: It is damaged, or something else.
        OSError: It cannot be read.
    """

    def __init__(self, path: Path) -> None:
        # An empty file cannot be mapped.
        data = np.memmap(path, dtype=np.uint8, mode="r") if path.stat().st_size else np.empty(0)
        try:
            self.facts, self._arrays = _parse(data)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ColumnFileError(f"{path} is damaged ({error}).") from error

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name]


def write_columns(path: Path, facts: Mapping[str, Any], columns: Mapping[str, Array]) -> None:
    """Write arrays of numbers, each of one dimension, and facts that JSON can hold, atomically."""
    places, end = {}, 0
    for name, array in columns.items():
        assert array.ndim == 1
        assert array.dtype.kind in _KINDS
        places[name] = [array.dtype.newbyteorder("<").str, len(array), end]
        end = _aligned(end + array.nbytes)
    header = dump_json({"facts": facts, "columns": places, "bytes": end}).encode() + b"\n"
    start = _aligned(len(_MAGIC) + len(header))
    with open_atomic(path, "wb") as file:
        file.write((_MAGIC + header).ljust(start, b"\0"))
        for array in columns.values():
            data = array.astype(array.dtype.newbyteorder("<")).tobytes()
            file.write(data.ljust(_aligned(len(data)), b"\0"))


def _parse(data: Any) -> tuple[dict[str, Any], dict[str, Array]]:
    magic = len(_MAGIC)
    if data[:magic].tobytes() != _MAGIC:
        raise ValueError("it does not begin as such a file does")
    end = _header_end(data, magic)
    header = json.loads(data[magic:end].tobytes())
    body = data[_aligned(end + 1) :]
    if len(body) != header["bytes"]:
        raise ValueError(f"it has {len(body)} of {header['bytes']} bytes")
    arrays = {}
    for name, (kind, length, start) in header["columns"].items():
        dtype = np.dtype(kind)
        if dtype.kind not in _KINDS:
            raise ValueError(f"{name} is of type {kind}")
        # Plain arrays: the checks of np.memmap make each access to an item several times slower.
        part = body[start : start + dtype.itemsize * length]
        arrays[name] = np.asarray(part).view(dtype)
    return header["facts"], arrays


def _header_end(data: Any, start: int) -> int:
    # Step by step, as tobytes() of all the rest would read the whole file.
    step = 4096
    while start < len(data):
        found = data[start : start + step].tobytes().find(b"\n")
        if found >= 0:
            return int(start + found)
        start += step
    raise ValueError("its header has no end")


def _aligned(n: int) -> int:
    return _ALIGNMENT * math.ceil(n / _ALIGNMENT)


@dataclass(frozen=True)
class ShardIndex:
    """Index of a shard: plain facts, and columns with an entry per item or member."""

    facts: Mapping[str, Any]
    columns: Mapping[str, Array]


@dataclass(frozen=True)
class IndexKind:
    """Builder and place of the index of a kind of shard.

    Args:
        name: Of this kind and version; an index of another one is made again.
        build: Reads a shard.
        index_dir: A folder for the files; None for beside the shards or, where that cannot be
            written, the user's cache.
    """

    name: str
    build: Callable[[Path], ShardIndex]
    index_dir: StrPath | None = None

    def file_of(self, shard: Path) -> Path:
        """Return the file with the index of a shard as it is now; it is made if need be.

        Raises:
            DataError: The shard is damaged, is being written, or the index cannot be kept.
        """
        return self._find_fresh(shard) or self._make(shard)

    def files_of(self, shards: Sequence[Path]) -> list[Path]:
        """Return `file_of` of each shard, and log how many had to be made."""
        start = time.monotonic()
        with ThreadPoolExecutor(_N_THREADS) as threads:
            files = list(threads.map(self._find_fresh, shards))
            stale = [i for i, file in enumerate(files) if file is None]
            if stale:
                logger.info("Indexing %d of %d shards, once.", len(stale), len(shards))
            try:
                made = list(threads.map(self.file_of, [shards[i] for i in stale]))
            except BaseException:
                # Leaving the block would otherwise wait until all the other shards are indexed.
                threads.shutdown(wait=False, cancel_futures=True)
                raise
        for i, file in zip(stale, made, strict=True):
            files[i] = file
        if made:
            seconds = time.monotonic() - start
            logger.info("Indexed %d shards in %.1f s: %s", len(made), seconds, made[0].parent)
        return [file for file in files if file is not None]

    def _find_fresh(self, shard: Path) -> Path | None:
        identity = identity_of(shard)
        places = self._places(shard)
        return next((place for place in places if self._is_fresh(place, identity)), None)

    def _make(self, shard: Path) -> Path:
        identity = identity_of(shard)
        index = self.build(shard)
        if identity_of(shard) != identity:
            raise DataError(f"{shard} changed while it was read. Wait until it is written whole.")
        facts = {**index.facts, "kind": self.name, "shard": identity}
        return _write_first(self._places(shard), facts, index.columns)

    def _places(self, shard: Path) -> list[Path]:
        """Return where the index may be; the first place that can be written gets it."""
        digest = hashlib.sha256(f"{self.name}\0{shard}".encode(errors="surrogateescape"))
        # Two shards of one name may be in two folders.
        unique = f"{shard.name[:100]}.{digest.hexdigest()[:16]}.index"
        if self.index_dir is not None:
            return [Path(self.index_dir, unique).absolute()]
        suffix = self.name.partition(":")[2]
        beside = shard.with_name(f"{shard.name}{'.' if suffix else ''}{suffix}.index")
        return [beside, *([cache / unique] if (cache := _cache_dir()) else [])]

    def _is_fresh(self, file: Path, identity: Mapping[str, int]) -> bool:
        try:
            facts = ColumnFile(file).facts
        except (OSError, ColumnFileError):
            return False
        return bool(facts.get("kind") == self.name and facts.get("shard") == identity)


def identity_of(shard: StrPath) -> dict[str, int]:
    """Return size and time of change of a shard.

    Raises:
        DataError: It is not there, or cannot be read.
    """
    try:
        status = os.stat(shard)
    except OSError as error:
        raise DataError(f"The shard {shard} cannot be read: {error.strerror}.") from error
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns}


def _cache_dir() -> Path | None:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    # Without a home, expanduser() returns `~` itself, which would become a folder of that name.
    return Path(base, "espnet3", "shard_index") if os.path.isabs(base) else None


def _write_first(
    places: Sequence[Path], facts: Mapping[str, Any], columns: Mapping[str, Array]
) -> Path:
    problem = None
    for place in places:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            write_columns(place, facts, columns)
        except OSError as error:
            if not is_folder_trouble(error, place.parent):
                raise
            problem = error
        else:
            return place
    tried = " or ".join(str(place.parent) for place in places)
    raise DataError(
        f"The index of a shard cannot be written to {tried} ({problem}).",
        fix="Name a folder that can: data_src_args: {index_dir: FOLDER}",
    )


def id_columns(ids: Sequence[str]) -> dict[str, Array]:
    """Return the columns that hold ids: their text, its ends, and a hash of each."""
    texts = [id.encode() for id in ids]
    return {
        "ids": np.frombuffer(b"".join(texts), dtype=np.uint8),
        "id_ends": np.cumsum([len(text) for text in texts], dtype=np.int64),
        "id_hash": np.array([_hash(text) for text in texts], dtype=np.uint64),
    }


def id_at(index: ColumnFile, row: int) -> str:
    """Return the id of an item."""
    ends = index["id_ends"]
    start = ends[row - 1] if row else 0
    return index["ids"][start : ends[row]].tobytes().decode()


def check_unique(
    hashes: Sequence[Array], index_files: Sequence[Path], shards: Sequence[Path]
) -> None:
    """Raise a `RecordError` with both places if two items have one id.

    Args:
        hashes: The hashes of the ids of each shard.
        index_files: The indexes, read only if two hashes are the same.
        shards: For the message.
    """
    ordered = np.sort(np.concatenate(hashes))
    twice = set(ordered[1:][ordered[1:] == ordered[:-1]].tolist())
    if not twice:
        return
    # Equal hashes are a suspicion only, so the ids themselves are compared.
    seen: dict[str, Path] = {}
    for part, file, shard in zip(hashes, index_files, shards, strict=True):
        rows = np.flatnonzero(np.isin(part, np.array(list(twice), dtype=np.uint64)))
        index = ColumnFile(file)
        for row in rows.tolist():
            id = id_at(index, row)
            if id in seen:
                raise RecordError(
                    f"{shard}: The id {id!r} is that of an item of {seen[id]} as well.",
                    fix="Make the "
                    "ids unique where the shards are made, or leave one of the two shards out.",
                )
            seen[id] = shard


def _hash(text: bytes) -> int:
    # Not hash(), which differs from process to process.
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
