"""JSON Lines tables: one line is one record, always."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator

from espnet3.io.atomic import StrPath
from espnet3.io.json_text import dump_json, to_jsonable
from espnet3.io.scp import RecordError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["JsonlWriter", "read_jsonl", "to_jsonable"]

logger = logging.getLogger(__name__)


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
    value = json.loads(raw.decode("utf-8-sig"))
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
