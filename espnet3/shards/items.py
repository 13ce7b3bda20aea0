"""The items of a run: a range, packed integers, or any JSON values; in memory and in a manifest.

Ten million items must plan in a second and leave a small manifest, so ranges stay ranges and
integers are packed into eight bytes each.
"""

import hashlib
import itertools
import json
import re
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from espnet3.errors import ConfigError, RunFolderError
from espnet3.shards.file_access import read_file

if TYPE_CHECKING:  # `array[int]` cannot be evaluated before Python 3.12
    Items: TypeAlias = range | array[int] | list[Any]

_DIGEST = re.compile("[0-9a-f]{64}")
_FEW = 100_000  # fewer are compared in less time than numpy takes to be imported


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
        step = indices.step if len(indices) > 1 else 1
        return range(indices.start, indices.start + step * len(indices), step)
    values = indices if isinstance(indices, list | tuple) else list(indices)
    if not values:
        return range(0)
    packed = _pack(values)
    if packed is None:
        return list(values)
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


def reorder(items: "Items", order: "Items | None") -> "Items":
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
    if isinstance(items, range) or (isinstance(items, array) and _are_distinct(items)):
        return
    seen: dict[Any, int] = {}
    for position, item in enumerate(items):
        key = item if isinstance(items, array) else json.dumps(item, sort_keys=True, default=repr)
        if key in seen:
            raise ConfigError(
                f"indices holds {item!r} twice, at positions {seen[key]} and {position}. "
                "Each item may be given once; write: runner(list(dict.fromkeys(indices)))"
            )
        seen[key] = position


def _are_distinct(items: "array[int]") -> bool:
    import numpy as np

    values = np.frombuffer(items, dtype=np.int64)
    if bool((values[1:] > values[:-1]).all()):
        return True
    values = np.sort(values)
    return bool((values[1:] != values[:-1]).all())


def items_digest(items: "Items") -> str:
    """Return a digest that is equal for equal item lists, however they were given."""
    if isinstance(items, range):
        return f"range({items.start}, {items.stop}, {items.step})" if items else "range(0)"
    data = items.tobytes() if isinstance(items, array) else _dump(items)
    return f"{len(items)} items, sha256:{hashlib.sha256(data).hexdigest()}"


def _dump(items: list[Any]) -> bytes:
    try:
        return json.dumps(items, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"indices holds an item that JSON cannot hold ({error}).",
            fix="Pass integers or strings and "
            "look the objects up in the dataset that the provider builds.",
        ) from error


def pack_items(items: "Items") -> tuple[dict[str, Any], bytes | None]:
    """Return how a manifest describes the items, and the bytes of the file beside it, if any."""
    if isinstance(items, range):
        return {"kind": "range", "range": [items.start, items.stop, items.step]}, None
    data = items.tobytes() if isinstance(items, array) else _dump(items)
    kind = "int64" if isinstance(items, array) else "json"
    return {"kind": kind, "sha256": hashlib.sha256(data).hexdigest()}, data


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
        digest = description.get("sha256")
        # A part of the name of a file.
        is_digest = isinstance(digest, str) and _DIGEST.fullmatch(digest)
        return "" if is_digest else f"{name}.sha256: {digest!r:.60} is no digest"
    return f"{name}: {description!r:.60} describes no items"


def unpack_items(description: dict[str, Any], file: Path) -> "Items":
    """Rebuild the items from a manifest's description and the file beside it.

    Raises:
        RunFolderError: if the file is missing or is not the one the manifest was written with.
        FileSystemError: if it cannot be read from here.
    """
    if description["kind"] == "range":
        return range(*description["range"])
    data = read_file(file)
    if data is None:
        raise RunFolderError(f"{file} is missing. {_START_ANEW}")
    if hashlib.sha256(data).hexdigest() != description["sha256"]:
        raise RunFolderError(f"{file} is not the item list of its manifest. {_START_ANEW}")
    try:
        if description["kind"] == "json":
            return list(json.loads(data))
        packed: array[int] = array("q")
        packed.frombytes(data)
        return packed
    except (ValueError, TypeError, RecursionError) as error:
        raise RunFolderError(f"{file} holds no list of items ({error}). {_START_ANEW}") from error


_START_ANEW = "Start over with resume=False, or restore the file."
