"""Named NumPy arrays and some facts in one file that can be mapped into memory."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from espnet3.io.atomic import open_atomic
from espnet3.io.json_text import dump_json

Array = np.ndarray[Any, np.dtype[Any]]

_MAGIC = b"espnet3-columns-1\n"
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


def _header_end(data: Any, start: int, step: int = 4096) -> int:
    while start < len(data):
        found = data[start : start + step].tobytes().find(b"\n")
        if found >= 0:
            return int(start + found)
        start += step
    raise ValueError("its header has no end")


def _aligned(n: int) -> int:
    return _ALIGNMENT * math.ceil(n / _ALIGNMENT)
