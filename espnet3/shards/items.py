"""Items of a run: a range, packed integers, or any JSON values; and their file, read by slices.

Ten million of them must be planned in seconds, and a worker must not load all of them for the few
of its shard. So ranges stay ranges, integers are packed into eight bytes, the rest is written as
one JSON list, and beside a long file there is an index: where each block of it begins and ends,
with a digest, so that a slice is checked without reading the rest.
"""

import hashlib
import itertools
import json
import os
import re
import struct
import uuid
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from espnet3.errors import ConfigError, RunFolderError
from espnet3.io.atomic import fsync_dir, open_atomic, write_bytes
from espnet3.shards.file_access import read_file
from espnet3.shards.layout import index_path, items_path

if TYPE_CHECKING:  # `array[int]` cannot be evaluated before Python 3.12
    Items: TypeAlias = range | array[int] | list[Any]

START_ANEW = "Start over with resume=False, or restore the file."
_DIGEST = re.compile("[0-9a-f]{64}")
_FEW = 100_000  # fewer are compared in less time than numpy takes to be imported
_PER_BLOCK = 1024
_ENTRY = struct.Struct("<QQ16s")  # of the index: begin, end and digest of a block
_encode = json.JSONEncoder(separators=(",", ":")).encode


def collect_items(indices: Iterable[Any]) -> "Items":
    """Return the items in their smallest form: a range, packed integers, or else a list.

    Equal items have equal forms, however they were given.

    Raises:
        ConfigError: if there is nothing to go through.
    """
    if not hasattr(indices, "__iter__"):
        raise ConfigError(
            f"indices is {indices!r:.80}, but must be a list or range of items. For the first so "
            "many of the dataset, write: runner(range(len(dataset)))"
        )
    if isinstance(indices, range):
        # The digest spells out start, stop and step; equal ranges must agree in all three.
        step = indices.step if len(indices) > 1 else 1
        return range(indices.start, indices.start + step * len(indices), step)
    values = indices if isinstance(indices, list | tuple) else list(indices)
    if not values:
        return range(0)
    packed = _pack(values)
    if packed is None:
        # No copy of a list: ten million items are long enough once.
        return values if isinstance(values, list) else list(values)
    return _as_range(packed) or packed


def _pack(values: Sequence[Any]) -> "array[int] | None":
    try:
        packed = array("q", values)
    except (TypeError, OverflowError):
        return None
    return None if bool in set(map(type, values)) else packed  # `array` takes True for 1


def _as_range(packed: "array[int]") -> range | None:
    step = packed[1] - packed[0] if len(packed) > 1 else 1
    if step == 0:
        return None
    candidate = range(packed[0], packed[0] + step * len(packed), step)
    # Comparing the last one first spares the walk over a shuffled list.
    if packed[-1] != candidate[-1] or not _has_step(packed, step):
        return None
    return candidate


def _has_step(packed: "array[int]", step: int) -> bool:
    if len(packed) < _FEW:
        return all(b - a == step for a, b in itertools.pairwise(packed))
    import numpy as np

    values = np.frombuffer(packed, dtype=np.int64)
    return bool((values[1:] - values[:-1] == step).all())


def reorder(items: "Items", order: Iterable[int] | None) -> "Items":
    """Return the items at the positions that `order` lists; the items themselves if it is None."""
    if order is None:
        return items
    if isinstance(items, list):
        return [items[position] for position in order]
    return array("q", [items[position] for position in order])


def check_unique(items: "Items") -> None:
    """Refuse items that appear twice: a merge could not tell that each was done exactly once.

    Raises:
        ConfigError: naming the first repeated item and its two positions.
    """
    if isinstance(items, range):
        return
    is_plain = isinstance(items, array) or set(map(type, items)) == {str}
    key_of: Callable[[Any], Any] = _itself if is_plain else _json_key
    # Hashes take eight bytes each, so that the items are compared only where these are equal.
    repeated = _repeated(map(hash, items if is_plain else map(key_of, items)), len(items))
    seen: dict[Any, int] = {}
    for position, item in enumerate(items if repeated else ()):
        key = key_of(item)
        if hash(key) not in repeated:
            continue
        if key in seen:
            raise ConfigError(
                f"indices holds {item!r} twice, at positions {seen[key]} and {position}. "
                "Each item may be given once; write: runner(list(dict.fromkeys(indices)))"
            )
        seen[key] = position


def _itself(item: Any) -> Any:
    return item


def _json_key(item: Any) -> str:
    """Return a key for an item that may be a list or a dict, which cannot be keys themselves."""
    return json.dumps(item, sort_keys=True, default=repr)


def _repeated(hashes: Iterable[int], n_hashes: int) -> set[int]:
    """Return those that occur more than once."""
    if n_hashes < _FEW:
        return {value for value, n_times in Counter(hashes).items() if n_times > 1}
    import numpy as np

    values = np.fromiter(hashes, np.int64, n_hashes)
    values.sort()
    return set(values[1:][values[1:] == values[:-1]].tolist())


def items_digest(items: "Items") -> str:
    """Return a digest that is equal for equal item lists, however they were given."""
    if isinstance(items, range):
        return f"range({items.start}, {items.stop}, {items.step})" if items else "range(0)"
    digest = hashlib.sha256()
    for part, _ in _parts(items):
        digest.update(part)
    return f"{len(items)} items, sha256:{digest.hexdigest()}"


def _parts(items: "array[int] | list[Any]") -> Iterator[tuple[bytes, bool]]:
    """Yield the content of the file of items piece by piece, and which pieces are blocks of it.

    Not as a whole, which for ten million strings would take as much memory as they do.
    """
    starts = range(0, len(items), _PER_BLOCK)
    if isinstance(items, array):
        yield from ((items[start : start + _PER_BLOCK].tobytes(), True) for start in starts)
        return
    for start in starts:
        yield b"," if start else b"[", False
        yield _dump(items[start : start + _PER_BLOCK])[1:-1], True
    yield b"]", False


def _dump(items: list[Any]) -> bytes:
    try:
        return _encode(items).encode()
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"indices holds an item that JSON cannot hold ({error}).",
            fix="Pass integers or strings and "
            "look the objects up in the dataset that the provider builds.",
        ) from error


def store_items(root: Path, items: "Items") -> dict[str, Any]:
    """Write items to files beside the manifest of a run, if need be; return how it names them."""
    if isinstance(items, range):
        return {"kind": "range", "range": [items.start, items.stop, items.step]}
    digest, index, offset = hashlib.sha256(), bytearray(), 0
    unnamed = items_path(root, uuid.uuid4().hex)  # its name is the digest, known at the end
    with open_atomic(unnamed, "wb") as file:
        for part, is_block in _parts(items):
            digest.update(part)
            file.write(part)
            if is_block:
                index += _ENTRY.pack(offset, offset + len(part), _block_digest(part))
            offset += len(part)
    kind = "int64" if isinstance(items, array) else "json"
    description: dict[str, Any] = {"kind": kind, "sha256": digest.hexdigest()}
    if is_long(items):
        write_bytes(index_path(root, digest.hexdigest()), bytes(index))
        sha256 = hashlib.sha256(index).hexdigest()
        description["index"] = {"sha256": sha256, "items_per_block": _PER_BLOCK}
    os.replace(unnamed, items_path(root, digest.hexdigest()))
    fsync_dir(root)
    return description


def is_long(items: "Items") -> bool:
    """Tell whether a file of items has an index: only where it has several blocks."""
    return len(items) > _PER_BLOCK


def _block_digest(block: bytes) -> bytes:
    return hashlib.blake2b(block, digest_size=16).digest()


def describe_problem(description: Any, name: str) -> str:
    """Return what is wrong with a manifest's description of items; empty if nothing is."""
    kind = description.get("kind") if isinstance(description, dict) else None
    if kind == "range":
        values = description.get("range")
        is_range = (
            isinstance(values, list)
            and list(map(type, values)) == [int, int, int]
            and values[2] != 0
            and all(abs(value) < 1 << 63 for value in values)
        )
        return "" if is_range else f"{name}.range: {values!r:.60} is no range"
    if kind in ("int64", "json"):
        digest, index = description.get("sha256"), description.get("index")
        if not _is_digest(digest):  # a part of the name of a file
            return f"{name}.sha256: {digest!r:.60} is no digest"
        return "" if _is_index(index) else f"{name}.index: {index!r:.60} is no index"
    return f"{name}: {description!r:.60} describes no items"


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def _is_index(value: Any) -> bool:
    if value is None:  # of few items, or of a version before there were any
        return True
    n_items = value.get("items_per_block") if isinstance(value, dict) else None
    return type(n_items) is int and n_items > 0 and _is_digest(value.get("sha256"))


def load_items(root: Path, description: dict[str, Any]) -> "Items":
    """Rebuild the items from a manifest's description and the file beside it.

    Raises:
        RunFolderError: if the file is missing or is not the one the manifest was written with.
        FileSystemError: if it cannot be read from here.
    """
    if description["kind"] == "range":
        return range(*description["range"])
    file = items_path(root, description["sha256"])
    data = _read(file)
    if hashlib.sha256(data).hexdigest() != description["sha256"]:
        raise _other_content(file)
    return _parse(description["kind"], data, file)


class Slices(Protocol):
    """A sequence of which only slices are asked for."""

    def __len__(self) -> int:
        """Return how many items there are."""

    def __getitem__(self, positions: slice, /) -> Sequence[Any]:
        """Return those at some positions."""


def open_items(root: Path, description: dict[str, Any], n_items: int) -> Slices:
    """Return the items of a description, those of a long file when they are asked for.

    Without an index, or with one that is damaged, they are loaded as a whole.

    Raises:
        RunFolderError: if the file is missing or is not the one the manifest was written with.
        FileSystemError: if it cannot be read from here.
    """
    found = description.get("index")
    index = read_file(index_path(root, description["sha256"])) if found else None
    if found is None or index is None or hashlib.sha256(index).hexdigest() != found["sha256"]:
        return load_items(root, description)
    file, per_block = items_path(root, description["sha256"]), found["items_per_block"]
    if len(index) != -(-n_items // per_block) * _ENTRY.size:
        raise _other_content(file)
    return _StoredItems(file, description["kind"], n_items, per_block, index)


@dataclass(frozen=True)
class _StoredItems:
    """Items in a file with an index."""

    file: Path
    kind: str
    n_items: int
    per_block: int
    index: bytes

    def __len__(self) -> int:
        return self.n_items

    def __getitem__(self, positions: slice, /) -> Sequence[Any]:
        start, stop, _ = positions.indices(self.n_items)
        blocks = range(start // self.per_block, -(-stop // self.per_block))
        if start >= stop:
            return []
        first = blocks[0] * self.per_block
        items = self._read_blocks(blocks)
        if len(items) != min(blocks.stop * self.per_block, self.n_items) - first:
            raise _other_content(self.file)
        return items[start - first : stop - first]

    def _read_blocks(self, blocks: range) -> "Items":
        entries = [_ENTRY.unpack_from(self.index, block * _ENTRY.size) for block in blocks]
        begin = entries[0][0]
        data = _read(self.file, begin, entries[-1][1])
        for first, last, digest in entries:
            if _block_digest(data[first - begin : last - begin]) != digest:
                raise _other_content(self.file)
        return _parse(self.kind, b"[" + data + b"]" if self.kind == "json" else data, self.file)


@dataclass(frozen=True)
class Reordered:
    """Items at the positions that `order` lists, of which slices are put together when asked."""

    items: "Items"
    order: Slices

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, positions: slice, /) -> Sequence[Any]:
        return reorder(self.items, self.order[positions])


def _read(file: Path, begin: int = 0, end: int | None = None) -> bytes:
    data = read_file(file, begin, end)
    if data is None:
        raise RunFolderError(f"{file} is missing. {START_ANEW}")
    return data


def _parse(kind: str, data: bytes, file: Path) -> "Items":
    try:
        if kind == "json":
            return list(json.loads(data))
        packed: array[int] = array("q")
        packed.frombytes(data)
        return packed
    except (ValueError, TypeError, RecursionError) as error:
        raise RunFolderError(f"{file} holds no list of items ({error}). {START_ANEW}") from error


def _other_content(file: Path) -> RunFolderError:
    return RunFolderError(f"{file} is not the item list of its manifest. {START_ANEW}")
