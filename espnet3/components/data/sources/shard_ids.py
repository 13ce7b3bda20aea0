"""The ids of items in an index: one text, so that they take no Python object each."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from espnet3.components.data.sources.column_file import Array, ColumnFile
from espnet3.io.scp import RecordError


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
    seen: dict[str, Path] = {}
    for part, file, shard in zip(hashes, index_files, shards, strict=True):
        rows = np.flatnonzero(np.isin(part, np.array(list(twice), dtype=np.uint64)))
        index = ColumnFile(file)
        for row in rows.tolist():
            id = id_at(index, row)
            if id in seen:
                raise RecordError(
                    f"{shard}: The id {id!r} is that of an item of {seen[id]} as well. Make the "
                    "ids unique where the shards are made, or leave one of the two shards out."
                )
            seen[id] = shard


def _hash(text: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
