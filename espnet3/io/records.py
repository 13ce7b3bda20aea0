"""Read JSON that others wrote: a file may be absent, damaged, or unreadable from here.

Only a file that is not there, or is there with other content than it should have, says something
about the run. An EIO, ESTALE or EACCES says something about this node: it is raised as it is, and
nothing may be removed, taken over or computed again on its account.

A class says by its types what a file may hold; numbers and names have bounds as well (`Count`,
`Seconds`, `Name`, ...), and its method `problem` reports what no type can.
"""

import errno
import json
import logging
import os
import re
import stat
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

from espnet3.errors import RunFolderError
from espnet3.text import on_one_line

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")
logger = logging.getLogger(__name__)
_MAX_BYTES = 1 << 30  # a forged or broken file must not fill the memory
_BLOCK = 1 << 20
_FAR = 1e11  # seconds: in the year 5138, where the arithmetic of times still works
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
# Private use characters, which file names hardly ever hold.
_STAND_IN = re.compile("[\U0010f000-\U0010f7ff]")
_SHIFT = 0x10F000 - 0xD800


class DamagedFileError(RunFolderError):
    """A file could be read, but does not hold what it should."""


@dataclass(frozen=True)
class _Checked:
    """Lets pydantic, where a type is annotated with it, also ask a function what is wrong."""

    problem: Callable[[Any], str]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def _check(self, value: Any) -> Any:
        if problem := self.problem(value):
            raise ValueError(problem)
        return value


@dataclass(frozen=True)
class _Within:
    """Lets pydantic refuse numbers outside of a range; by itself, as shards have ten each."""

    low: float
    high: float

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        schema = {**handler(source), "ge": self.low, "le": self.high}
        # NaN is neither below nor above.
        return {**schema, "allow_inf_nan": False} if schema["type"] == "float" else schema


def _unlike(pattern: str, what: str) -> _Checked:
    shape = re.compile(pattern)
    return _Checked(lambda text: "" if shape.fullmatch(text) else f"no {what}")


Count = Annotated[int, _Within(0, 2**53)]
"""How many, or which: from 0 on."""
Pid = Annotated[int, _Within(0, 2**31 - 1)]
"""The number of a process; 0 if it is not known."""
Seconds = Annotated[float, _Within(0.0, _FAR)]
"""A time span."""
Moment = Annotated[float, _Within(0.0, _FAR)]
"""Seconds since 1970."""
Share = Annotated[float, _Within(0.0, 1.0)]
"""A part of a whole."""
Name = Annotated[str, _unlike(r"[\w][\w.@+-]{0,200}", "name that could be part of a path")]
"""A word of which file names are made: no slash, no dot at its beginning."""
# No dash at the start: a scheduler's command would take it for an option.
JobId = Annotated[str, _unlike(r"(?!-)[\w.:#@+\[\]-]{0,200}", "number of a job")]
"""What a scheduler calls a job; empty if that is not known. It becomes a word of a command line."""
PathText = Annotated[str, _unlike(r"[^\0]{0,4096}", "path")]
"""A path: no NUL, which no system call takes."""

LogText = Annotated[str, _Checked(lambda text: "" if is_log_name(text) else "no log of a run")]
"""Where a log is, relative to a run folder; it may be in the logs of another one beside it."""


def is_log_name(text: str) -> bool:
    """Tell whether a path leads to a log: a forged record must not make others show any file."""
    parts = text.split("/")
    if len(text) > 4096 or any(len(part.encode("utf-8", "replace")) > 255 for part in parts):
        return False  # longer than any name can be
    if not text or is_inside(text):
        return True
    return "\0" not in text and not os.path.isabs(text) and parts[-2] == "logs"


def is_inside(name: str) -> bool:
    """Tell whether a relative path cannot lead out of the folder that it is relative to."""
    is_plain = bool(name) and "\0" not in name and not os.path.isabs(name)
    return is_plain and ".." not in name.split("/")


def read_record(path: str | os.PathLike[str], kind: type[T]) -> T | None:
    """Read a JSON file as a dataclass or pydantic model, each value of its declared type.

    Keys that the class does not have are ignored, so that a newer version may add some.

    Returns:
        None if there is no such file.

    Raises:
        DamagedFileError: It is no JSON, or a value is missing or of another type; names the file.
        OSError: It cannot be read from here, which says nothing of its content.
    """
    try:
        content = read_content(path)
    except FileNotFoundError:
        return None
    return parse_record(content, kind, path)


def read_content(path: str | os.PathLike[str], begin: int = 0, end: int | None = None) -> bytes:
    """Return what a file holds that others may have put there, or the bytes `begin` to `end` of it.

    Raises:
        DamagedFileError: It is a pipe or a device, which could keep us waiting, or far too large.
        OSError: It is not there, or cannot be read from here.
    """
    # A pipe without a writer would block for ever; regular files ignore the flag.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        # Of the open file: what a path leads to may be exchanged between a look and the opening.
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        if not stat.S_ISREG(found.st_mode):
            raise DamagedFileError(f"{os.fspath(path)} is damaged: it is no file.")
        n_bytes = (found.st_size if end is None else end) - begin
        if n_bytes > _MAX_BYTES:
            raise DamagedFileError(f"{os.fspath(path)} is damaged: it has {n_bytes} bytes.")
        if begin:
            os.lseek(descriptor, begin, os.SEEK_SET)
        return _read(descriptor, None if end is None else n_bytes, found.st_size - begin)
    finally:
        os.close(descriptor)


def _read(descriptor: int, n_bytes: int | None, expected: int) -> bytes:
    """Read so many bytes, or all that are left: a file may grow while it is read."""
    content = os.read(descriptor, expected + 1 if n_bytes is None else n_bytes)
    if n_bytes is None and len(content) == expected:
        return content  # one more was asked for, so this is the end
    while n_bytes is None or len(content) < n_bytes:
        left = _BLOCK if n_bytes is None else n_bytes - len(content)
        if not (more := os.read(descriptor, left)):
            break
        content += more
    return content


def parse_record(content: bytes, kind: type[T], path: str | os.PathLike[str]) -> T:
    """Do the same with the content of a file.

    Raises:
        DamagedFileError: As above.
    """
    try:
        record = _validate(content, kind)
    except ValueError as error:
        from pydantic import ValidationError  # here: a merge reads ten thousand records

        if not isinstance(error, ValidationError):
            raise
        raise DamagedFileError(damaged(path, _problem(error))) from None
    problem: str = record.problem() if hasattr(record, "problem") else ""
    if problem:
        raise DamagedFileError(damaged(path, problem))
    return record


def damaged(path: str | os.PathLike[str], problem: str) -> str:
    """Return the words for a file that does not hold what it should."""
    return f"{os.fspath(path)} is damaged, or of another version: {problem}."


def parse_value(value: Any, kind: type[T], path: str | os.PathLike[str]) -> T:
    """Do the same with a part of a file that was read as plain data.

    Raises:
        DamagedFileError: As above.
    """
    # As JSON text, because in Python values strict validation refuses a list for a tuple.
    return parse_record(json.dumps(value).encode(), kind, path)


def read_or_skip(path: str | os.PathLike[str], kind: type[T]) -> T | None:
    """Read an optional file: if it is damaged, a warning says so, once.

    Raises:
        OSError: It cannot be read from here.
    """
    try:
        return read_record(path, kind)
    except DamagedFileError as error:
        warn_once(f"{error} It is left out.")
        return None


def read_lines(path: str | os.PathLike[str], kind: type[T]) -> Iterator[T]:
    """Yield each line of a JSON Lines file as a record; none if there is no such file.

    Damaged lines are left out, and a warning says so, once. That its writer was killed in the
    middle of the last one is no damage.

    Raises:
        OSError: It cannot be read from here.
    """
    try:
        content = read_content(path)
    except FileNotFoundError:
        return
    except DamagedFileError as error:
        warn_once(f"{error} The line is left out.")
        return
    yield from parse_lines(content, kind, path)


def parse_lines(content: bytes, kind: type[T], path: str | os.PathLike[str]) -> Iterator[T]:
    """Do the same with the content of a file."""
    problems: list[DamagedFileError] = []
    lines = content.splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        try:
            if not line.isspace():
                yield parse_record(line, kind, f"{os.fspath(path)}:{number}")
        except DamagedFileError as error:
            if line.endswith(b"\n"):
                problems.append(error)
    if problems:
        rest = "The line is" if len(problems) == 1 else f"It and {len(problems) - 1} more lines are"
        warn_once(f"{problems[0]} {rest} left out.")


@lru_cache(maxsize=1000)
def warn_once(message: str) -> None:
    """Log a warning, unless this process has done so: folders are looked at again and again."""
    logger.warning("%s", on_one_line(message))


def _validate(content: bytes, kind: type[T]) -> T:
    adapter = _adapter(cast(Hashable, kind))
    # Most have no escape at all, which is found sooner than that there is none of these.
    if b"\\" not in content or not _ESCAPED_SURROGATE.search(content):
        # Strict: a "12" in place of 12 is not something that we wrote.
        record: T = adapter.validator.validate_json(content, strict=True)
        return record
    # Names of files that are not UTF-8 are in our files as lone surrogates, which Python's JSON
    # knows and pydantic's does not: others stand in for them.
    try:
        text = json.dumps(json.loads(content), ensure_ascii=False)
    except (ValueError, RecursionError):
        text = ""
    text = _SURROGATE.sub(lambda match: chr(ord(match[0]) + _SHIFT), text)
    record = adapter.validate_json(text, strict=True)
    return cast(T, _with_surrogates(record))


def _with_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return _STAND_IN.sub(lambda match: chr(ord(match[0]) - _SHIFT), value)
    if isinstance(value, list):
        return [_with_surrogates(entry) for entry in value]
    if isinstance(value, dict):
        return {_with_surrogates(key): _with_surrogates(each) for key, each in value.items()}
    if is_dataclass(value):
        for each in fields(value):
            # Around the `__setattr__` of the class, because most records are frozen.
            object.__setattr__(value, each.name, _with_surrogates(getattr(value, each.name)))
    return value


# Building a validator costs far more than validating a record with it.
@cache
def _adapter(kind: Hashable) -> "TypeAdapter[Any]":
    from pydantic import TypeAdapter

    return TypeAdapter(cast(Any, kind))


def _problem(error: Any) -> str:
    first, *rest = error.errors(include_url=False, include_context=False)
    # Keys of the file are part of it: they, too, may be anything.
    place = on_one_line(".".join(map(str, first["loc"])))[:80] or "the file"
    more = f" (and {len(rest)} more)" if rest else ""
    said = first["msg"].removeprefix("Value error, ")[:200].rstrip(".")
    return f"{place}: {said}, found {first['input']!r:.60}{more}"
