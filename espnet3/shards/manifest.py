"""The plan of a run and its items as files: written once, read by every driver, worker and command.

Ten million items must be planned in seconds, and a worker must not load all of them for the few of
its shard. So ranges stay ranges, integers are packed into eight bytes, the rest is written as one
JSON list, and beside a long file there is an index: where each block of it begins and ends, with a
digest, so that a slice is checked without reading the rest.
"""

import bisect
import hashlib
import itertools
import json
import os
import re
import struct
import time
import uuid
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from espnet3.errors import ConfigError, RunFolderError
from espnet3.io.atomic import create_bytes, fsync_dir, open_atomic, write_bytes
from espnet3.io.shared_files import (
    Count,
    DamagedFileError,
    Moment,
    PathText,
    Seconds,
    Share,
    parse_record,
    read_content,
    read_file,
    unreachable,
)
from espnet3.shards.layout import RunLayout, index_path, items_path, manifest_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from espnet3.shards.plan import Batches


_RUN_ID_SHAPE = re.compile(r"[^\x00-\x1f\x7f]{1,200}")
_MAX_COST = 1e30
_RUN_ID = re.compile(rb'\{\s*"run_id":\s*"([^"\\]*)"')
_ANY = cast("type[Any]", Any)
FORMAT = "espnet3-run"
VERSION = 2
"""The newest version of the format. A plan without groups is written as version 1."""
_FLAT = 1  # versions that know of no groups refuse the other one, and do not run all again


@dataclass(frozen=True)
class Manifest:
    """Plan of a run, and the settings that its results depend on.

    `fingerprint` holds every key that the results depend on; neither the number of workers nor
    the backend is among them, so both may change between two runs of one plan.
    """

    items: dict[str, Any]
    n_items: Count
    bounds: list[int]
    costs: list[float]
    batch_size: Count | None
    fingerprint: dict[str, Any]
    files: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    output_dir: PathText = "."
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: Moment = field(default_factory=time.time)
    versions: dict[str, str] = field(default_factory=dict)
    batch_seconds: Seconds | None = None
    batches: dict[str, Any] | None = None
    """Where items are sorted into batches by length: how `order` and `edges` are packed."""
    padded_share: Share | None = None
    audio_seconds: Seconds | None = None
    group_size: Count | None = None
    """Shards per sub-folder; None if they stand directly in the run folder. See `RunLayout`."""
    format: str = FORMAT
    version: int = _FLAT

    @property
    def n_shards(self) -> int:
        """Number of shards in the plan."""
        return len(self.bounds) - 1

    def problem(self) -> str:
        """Return in which way the plan makes no sense; empty if it does."""
        bounds, costs = self.bounds, self.costs
        if not bounds or bounds[0] != 0 or bounds[-1] != self.n_items:
            return f"bounds: not from 0 to n_items, {self.n_items}"
        if any(first >= last for first, last in pairwise(bounds)):
            return "bounds: not increasing"
        if len(costs) != self.n_shards:
            return f"costs: {len(costs)} for {self.n_shards} shards"
        # In this form, NaN is refused as well.
        if not all(0 <= cost <= _MAX_COST for cost in costs):
            return f"costs: not all from 0 to {_MAX_COST:g}"
        if not _RUN_ID_SHAPE.fullmatch(self.run_id):
            return f"run_id: {self.run_id!r:.60} is no id"
        if self.group_size == 0:
            return "group_size: 0 shards in a group"
        packed: dict[str, Any] = {"items": self.items}
        if self.batches is not None:
            described = {"order": None, "edges": None, **self.batches}
            packed |= {f"batches.{name}": value for name, value in described.items()}
        found = (describe_problem(value, name) for name, value in packed.items())
        return next(filter(None, found), "")

    def layout(self, root: Path) -> RunLayout:
        """Return the paths of this run under `root`."""
        return RunLayout(root, self.n_shards, self.group_size)

    def output_folder(self, root: Path) -> Path:
        """Return where the merge of the run in `root` writes: into it, or a folder above it.

        A run folder may come from someone else: its plan must not choose any place to write to.

        Raises:
            RunFolderError: if it is elsewhere.
        """
        folder = Path(os.path.normpath(root / self.output_dir))
        if not Path(os.path.abspath(root)).is_relative_to(os.path.abspath(folder)):
            raise RunFolderError(
                f"{manifest_path(root)} says that the outputs belong into {folder}, which is not "
                "above it.",
                fix="Run the same command as before again: it merges without computing "
                "anything again.",
            )
        return folder

    def open_items(self, root: Path, items: "Items | None" = None) -> "Slices":
        """Return the items in the order of the plan, read from the folder a slice at a time.

        Args:
            root: the run folder.
            items: in dataset order, where they are in memory anyway.

        Raises:
            RunFolderError: if they are not there, or not those of the plan.
        """
        opened = self._open_items(root, items)
        if items is None and len(opened) != self.n_items:
            raise DamagedFileError(
                f"{manifest_path(root)} is damaged: it plans {self.n_items} items, and names "
                f"{len(opened)}. {START_ANEW}"
            )
        return opened

    def _open_items(self, root: Path, items: "Items | None") -> "Slices":
        if self.batches is None:
            return open_items(root, self.items, self.n_items) if items is None else items
        if items is None and "items" in self.batches:
            return open_items(root, self.batches["items"], self.n_items)
        order = open_items(root, self.batches["order"], self.n_items)
        return Reordered(load_items(root, self.items) if items is None else items, order)

    def load_edges(self, root: Path) -> "Items | None":
        """Return the edges of the batches; None if they are all of one size."""
        if self.batches is None:
            return None
        edges = load_items(root, self.batches["edges"])
        # Bisected: a set of millions of edges would take more memory than a worker should.
        if isinstance(edges, list) or not all(_is_among(edges, bound) for bound in self.bounds):
            raise self._other_batches(root)
        return edges

    def load_order(self, root: Path) -> "Items | None":
        """Return which item is at each position of the plan; None if they are those of the dataset.

        Raises:
            DamagedFileError: if some are there twice, or not at all.
        """
        if self.batches is None:
            return None
        order = load_items(root, self.batches["order"])
        if not _is_permutation(order, self.n_items):
            raise self._other_batches(root)
        return order

    def _other_batches(self, root: Path) -> DamagedFileError:
        return DamagedFileError(
            f"{manifest_path(root)} is damaged: its batches are not those of its items. "
            f"{START_ANEW}"
        )


def publish_manifest(
    root: Path, manifest: Manifest, items: "Items", batches: "Batches | None" = None
) -> Manifest:
    """Write the plan, unless another driver wrote one first.

    Returns:
        The manifest that is now in the folder: the given one, or the other driver's.
    """
    # The run's id comes first: see read_run_id.
    values = {"run_id": manifest.run_id, **asdict(manifest), "items": store_items(root, items)}
    if manifest.group_size is None:
        del values["group_size"]
    else:
        values["version"] = VERSION
    if batches is not None:
        # Before the manifest that names them: a plan without its items could not be run.
        packed = {"order": store_items(root, batches.order)}
        packed["edges"] = store_items(root, batches.edges)
        if is_long(items) and not isinstance(items, range):
            # In run order once more: those of a shard lie all over the list in dataset order.
            packed["items"] = store_items(root, reorder(items, batches.order))
        values |= {"batches": packed, "padded_share": round(batches.padded_share, 6)}
    text = json.dumps(values, ensure_ascii=False, indent=1, default=str) + "\n"
    # By exclusive creation: of drivers that start at once, one writes the plan and all use it.
    # A lone surrogate becomes \udcxx here, which happens to be its escape in JSON.
    if create_bytes(manifest_path(root), text.encode("utf-8", "backslashreplace")):
        return Manifest(**values)
    other = load_manifest(root)
    if other is None:  # the other driver restarted at this very moment
        raise RunFolderError(
            f"Another driver is starting a run in {root}.", fix="Run the command again."
        )
    return other


def _is_among(values: "Sequence[int]", value: int) -> bool:
    place = bisect.bisect_left(values, value)
    return place < len(values) and values[place] == value


def _is_permutation(order: "Items", n_items: int) -> bool:
    if isinstance(order, list) or len(order) != n_items:
        return False
    if isinstance(order, range):
        return {order[0], order[-1]} == {0, n_items - 1}
    import numpy as np

    seen, positions = np.zeros(n_items, bool), np.frombuffer(order, dtype=np.int64)
    if positions.min() < 0 or positions.max() >= n_items:
        return False
    seen[positions] = True
    return bool(seen.all())


def load_manifest(root: str | os.PathLike[str]) -> Manifest | None:
    """Read the plan of the run in `root`; None if there is none.

    Raises:
        RunFolderError: if the file is damaged or was written by another version of the format.
        FileSystemError: if it cannot be read from here.
    """
    path = manifest_path(Path(root))
    try:
        content = read_content(path)
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:
        raise RunFolderError(
            f"{root} is not a folder.", fix="Choose another output_dir."
        ) from error
    except IsADirectoryError as error:
        raise RunFolderError(f"{path} is a folder. {START_ANEW}") from error
    except OSError as error:
        raise unreachable(error, path) from error
    try:
        # Before the values: a plan of a newer format should be called that, and not damaged.
        _check_format(path, parse_record(content, _ANY, path))
        return parse_record(content, Manifest, path)
    except DamagedFileError as error:
        raise DamagedFileError(f"{error} {START_ANEW}") from None


def require_manifest(run_dir: Path) -> Manifest:
    """Return the manifest of a run folder, or say that this is none.

    Raises:
        RunFolderError: with the run folders that were found below, if any.
    """
    manifest = load_manifest(run_dir)
    if manifest is not None:
        return manifest
    below = sorted(str(path.parent) for path in run_dir.glob("*/manifest.json"))[:5]
    hint = f"Did you mean {' or '.join(below)}?" if below else "Give the output_dir of a runner."
    raise RunFolderError(f"{run_dir} holds no run: there is no manifest.json in it. {hint}")


def read_run_id(root: Path) -> str | None:
    """Return the id of the run in `root` without reading its plan, which may be long.

    Every commit asks for it, so it must not grow with the number of shards.
    """
    try:
        with manifest_path(root).open("rb") as file:
            match = _RUN_ID.match(file.read(200))
    except FileNotFoundError:
        return None
    if match and match[1].isascii():
        return match[1].decode()
    # Reformatted by hand, or damaged: finished work must not be dropped without a word.
    manifest = load_manifest(root)
    return manifest.run_id if manifest else None


def refuse_foreign(root: Path) -> None:
    """Raise if the `manifest.json` in `root` is some other program's; a damaged one is let pass."""
    path = manifest_path(root)
    with suppress(DamagedFileError):
        _check_origin(path, parse_record(read_content(path), _ANY, path))


def _check_origin(path: Path, values: Any) -> None:
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise RunFolderError(
            f"{path} was not written by ESPnet3.",
            fix="Use another output_dir, or move that file away.",
        )


def _check_format(path: Path, values: Any) -> None:
    _check_origin(path, values)
    version, versions = values.get("version"), values.get("versions")
    if version not in (_FLAT, VERSION) or isinstance(version, bool):  # True equals 1
        writer = versions.get("espnet3", "unknown") if isinstance(versions, dict) else "unknown"
        raise RunFolderError(
            f"{path} has version {version!s:.40} of the run format; this ESPnet3 reads "
            f"version {VERSION}. Finish the run with the ESPnet3 that began it "
            f"({writer!s:.40}), or start over with resume=False."
        )


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


def open_items(root: Path, description: dict[str, Any], n_items: int) -> "Slices":
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


def run_order(costs: Sequence[float]) -> list[int]:
    """Return shard numbers, the costliest first, equal ones in dataset order."""
    # Longest first: a long shard that starts last would keep one worker busy while all others idle.
    return sorted(range(len(costs)), key=lambda shard: -costs[shard])
