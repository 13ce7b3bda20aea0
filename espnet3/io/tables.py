"""Tables of records: JSON Lines, and Parquet, which needs the extra of that name."""

from __future__ import annotations

import itertools
import json
import logging
import os
from collections.abc import Iterable, Iterator

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
