"""JSON as we write it: one line unless indented, NumPy converted, errors that name the key."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from json import JSONEncoder

from espnet3.errors import RecordError

TYPE_CHECKING = False  # what `typing.TYPE_CHECKING` is, without the import of `typing`
if TYPE_CHECKING:
    from typing import Any

# JSON may hold these as they are, but `str.splitlines` breaks at the first three, and surrogates
# cannot be written as UTF-8.
_TO_ESCAPE = re.compile("[\x85\u2028\u2029\ud800-\udfff]")
_NOT_JSON = "which JSON cannot hold."


def dump_json(
    value: Any,
    *,
    indent: int | None = None,
    allow_nan: bool = False,
    where: str | os.PathLike[str] = "",
) -> str:
    r"""Return the value as JSON, without a newline at the end.

    Plain values go straight through the C encoder; only what it does not know is converted, as in
    `to_jsonable`. Letters stay readable; a lone surrogate becomes `\udXXX`. (JSON cannot tell two
    lone surrogates that happen to form a pair from the character: they come back as that.)

    Args:
        value: Plain or NumPy values in dicts, lists and tuples; tuples come back as lists, keys
            that are numbers as text.
        indent: Blanks per level; None for one line.
        allow_nan: Write NaN and infinities as `NaN` and `Infinity`, which Python reads and strict
            parsers refuse.
        where: The file that it is for, named in errors.

    Raises:
        RecordError: A value has no form in JSON; the message has its key and what to do.
    """
    try:
        text = _encoder(indent, allow_nan).encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        place = f"{os.fspath(where)}: " if where else ""
        raise RecordError(place + _explain(value, allow_nan, error)) from None
    # CPython keeps `isascii` as a flag, whereas the regex reads the whole text.
    return text if text.isascii() else _TO_ESCAPE.sub(_escape_match, text)


def to_jsonable(value: Any) -> Any:
    """Return the value in plain JSON types, at all depths.

    NumPy scalars and arrays and tensors become numbers and lists, paths become text.

    Raises:
        RecordError: The type has no natural form in JSON: bytes, sets, objects of your own.
    """
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, dict):
        return {key: to_jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_jsonable(item) for item in value]
    return to_jsonable(_convert(value))


def _convert(value: Any) -> Any:
    # The encoder calls this for what it does not know; it may return what again needs converting.
    if isinstance(value, bytes | bytearray | memoryview):
        raise _refusal(value, "decode text with value.decode(), or store the data with type: npy")
    if isinstance(value, set | frozenset):
        raise _refusal(value, "a set has no order; write sorted(value)")
    if hasattr(value, "tolist"):
        plain = value.tolist()
        # longdouble and clongdouble return themselves
        return plain if type(plain) is not type(value) else float(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):  # such as OmegaConf's, which are no dicts
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise _refusal(value, "convert it to numbers, text, lists or dicts first, such as vars(value)")


def _refusal(value: Any, advice: str) -> RecordError:
    what = f"is {value!r:.80}, of type {type(value).__name__}"
    return RecordError(f"{what}, {_NOT_JSON} Fix: {advice}.")


def _explain(value: Any, allow_nan: bool, error: Exception) -> str:
    if isinstance(error, RecursionError) or "Circular" in str(error):
        return "The value holds itself or is nested too deeply for JSON. Fix: write a flat dict."
    for key, problem in _problems(value, "value", allow_nan):
        return f"{key} {problem}"
    return (
        f"The value cannot be written as JSON: {error}. Fix: write numbers, text, lists and dicts."
    )


def _problems(value: Any, key: str, allow_nan: bool) -> Iterator[tuple[str, str]]:
    """Yield each place and what is wrong there; slow, and so only called after a failure."""
    if isinstance(value, dict):
        for name, item in value.items():
            if not (name is None or isinstance(name, str | int | float)):
                yield key, f"has the key {name!r}, {_NOT_JSON} Fix: use str(key)."
            yield from _problems(item, f"{key}[{name!r}]", allow_nan)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _problems(item, f"{key}[{index}]", allow_nan)
    elif isinstance(value, float):
        if not (allow_nan or math.isfinite(value)):
            yield key, f"is {float(value)}, {_NOT_JSON} Fix: write None, or leave the key out."
    elif not (value is None or isinstance(value, str | int)):
        try:
            converted = _convert(value)
        except (TypeError, ValueError) as error:
            yield key, str(error)
        else:
            yield from _problems(converted, key, allow_nan)


# `json.dumps` caches only the encoder of its defaults; any other is built again at each call.
@lru_cache(maxsize=8)
def _encoder(indent: int | None, allow_nan: bool) -> JSONEncoder:
    return JSONEncoder(ensure_ascii=False, allow_nan=allow_nan, indent=indent, default=_convert)


def _escape_match(match: re.Match[str]) -> str:
    return f"\\u{ord(match.group()):04x}"
