"""JSON and tables of records: JSON text as we write it, JSON Lines, and Parquet.

JSON is on one line unless indented, NumPy is converted, and errors name the key. Parquet needs the
extra of that name.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from json import JSONEncoder

from espnet3.errors import MissingExtraError, RecordError
from espnet3.io.atomic import StrPath, open_atomic

TYPE_CHECKING = False  # what `typing.TYPE_CHECKING` is, without the import of `typing`
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

logger = logging.getLogger(__name__)
_ROWS_AT_ONCE = 10_000
# Parquet has no larger integers: a column that holds one becomes JSON text.
_INT64 = range(-(2**63), 2**63)
_JSON = "json"


class JsonlWriter:
    """Write records to a file, opened at once and buffered.

    A crash leaves what was flushed so far, perhaps with half a line at the end.

    Example:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/items.jsonl"
        >>> with JsonlWriter(path) as writer:
        ...     writer.write({"id": "utt1", "frames": 310})
        >>> list(read_jsonl(path))
        [{'id': 'utt1', 'frames': 310}]
    """

    def __init__(self, path: StrPath, *, allow_nan: bool = False) -> None:
        """Create or empty the file; its folder must exist. For `allow_nan` see `dump_json`."""
        self._path = path
        self._allow_nan = allow_nan
        self._file = open(path, "w", encoding="utf-8", newline="\n")  # noqa: SIM115

    def write(self, record: Any) -> None:
        """Add a record, or raise a `RecordError` and leave the file as it is."""
        self._file.write(dump_json(record, allow_nan=self._allow_nan, where=self._path) + "\n")

    def flush(self) -> None:
        """Show other processes what was written so far."""
        self._file.flush()

    def close(self) -> None:
        """Flush and close the file; a second call does nothing."""
        self._file.close()

    def __enter__(self) -> JsonlWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_jsonl(path: StrPath, *, tolerate_truncated: bool = False) -> Iterator[Any]:
    """Yield the records in order of the file, line by line; blank lines are skipped.

    Args:
        path: The file.
        tolerate_truncated: Skip a last line that its writer, killed, left unfinished, and log a
            warning. A finished last line may lack its newline, unless it is a bare number: `12` may
            be the start of `123`.

    Raises:
        RecordError: A line is no JSON. The message starts with `<path>:<line>`.
    """
    with open(path, "rb") as file:
        for number, raw in enumerate(file, 1):
            if raw.isspace():
                continue
            try:
                record = _parse_line(raw)
            except ValueError as error:
                place = f"{os.fspath(path)}:{number}"
                if raw.endswith(b"\n") or not tolerate_truncated:
                    raise RecordError(f"{place}: {_diagnose(raw, error)}") from error
                logger.warning("%s: skipped an unfinished last line of %d bytes", place, len(raw))
            else:
                yield record


def _parse_line(raw: bytes) -> Any:
    value = json.loads(raw.decode("utf-8-sig"))  # some editors put a BOM in front
    if isinstance(value, int | float) and not isinstance(value, bool) and not raw.endswith(b"\n"):
        raise ValueError("a number without an end of line")
    return value


def _diagnose(raw: bytes, error: ValueError) -> str:
    if raw.endswith(b"\n"):
        return (
            f"The line {raw!r:.80} is not JSON in UTF-8: {error}. Write one JSON value per line, "
            'such as {"id": "utt1"}, or delete the line.'
        )
    return (
        f"The last line {raw!r:.80} is unfinished; its writer was stopped. Write the file again, "
        "or skip the line: read_jsonl(path, tolerate_truncated=True)"
    )


def jsonl_to_parquet(source: Path, target: Path) -> None:
    """Write the records of a JSON Lines file as a table, block by block; `target` appears whole.

    A column whose values all are texts, numbers, truth values or lists of texts is of that type;
    any other, such as an n-best list with scores, holds JSON text.

    Raises:
        MissingExtraError: pyarrow is not installed.
    """
    arrow, parquet = _pyarrow()
    # Not pyarrow's own reader: it settles types by the first megabyte, fails where a later value
    # is of another, and takes a text such as 2024-01-02 for a date.
    kinds = _kinds_of_columns(read_jsonl(source))
    types = {
        "text": arrow.string(),
        "texts": arrow.list_(arrow.string()),
        "bool": arrow.bool_(),
        "int": arrow.int64(),
        "float": arrow.float64(),
        _JSON: arrow.string(),
    }
    schema = arrow.schema([(_plain(name), types[kind]) for name, kind in kinds.items()])
    with open_atomic(target, "wb") as file, parquet.ParquetWriter(file, schema) as writer:
        # Read a second time rather than held in memory: the types depend on all records.
        for rows in _blocks(read_jsonl(source)):
            columns = [[_cell(row.get(n), kind) for row in rows] for n, kind in kinds.items()]
            writer.write_table(arrow.table(_arrays(arrow, columns, schema), schema))


def _arrays(arrow: Any, columns: list[list[Any]], schema: Any) -> list[Any]:
    return [arrow.array(values, kind) for values, kind in zip(columns, schema.types, strict=True)]


def _kinds_of_columns(records: Iterable[dict[str, Any]]) -> dict[str, str]:
    kinds: dict[str, str | None] = {}
    for record in records:
        for name, value in record.items():
            known = kinds.get(name)
            if known != _JSON:
                kinds[name] = _both(known, _kind(value))
    return {name: kind or _JSON for name, kind in kinds.items()}


def _kind(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, str):
        return "text"
    if isinstance(value, bool):  # before int, of which bool is a subclass
        return "bool"
    if isinstance(value, float):
        return "float"
    if isinstance(value, int) and value in _INT64:
        return "int"
    is_texts = isinstance(value, list) and all(isinstance(each, str) for each in value)
    return "texts" if is_texts else _JSON


def _both(one: str | None, other: str | None) -> str | None:
    """Return the kind of column that holds both; None, of a null, goes with any."""
    if one is None or other is None or one == other:
        return one or other
    return "float" if {one, other} == {"int", "float"} else _JSON


def _cell(value: Any, kind: str) -> Any:
    if value is None:
        return None
    if kind == _JSON:
        return json.dumps(value)
    if kind == "texts":
        return [_plain(each) for each in value]
    return _plain(value) if kind == "text" else value


def _plain(text: str) -> str:
    """Escape what UTF-8 cannot hold: lone surrogates."""
    return text.encode("utf-8", "backslashreplace").decode()


def _blocks(records: Iterator[Any]) -> Iterator[list[Any]]:
    while block := list(itertools.islice(records, _ROWS_AT_ONCE)):
        yield block


def check_parquet() -> None:
    """Raise a `MissingExtraError` now rather than after the work is done."""
    _pyarrow()


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise MissingExtraError(
            f"results: parquet needs pyarrow, which cannot be imported ({error}).",
            fix="In your clone of "
            "ESPnet3: pip install -c constraints.txt -e '.[parquet]'; or write results: jsonl",
        ) from error
    return pyarrow, parquet


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
