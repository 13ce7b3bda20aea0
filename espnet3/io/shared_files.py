"""Files that others write as well: absent, damaged, or unreadable from here; sharing what is new.

Only a file that is not there, or is there with other content than it should have, says something
about the run. An EIO, ESTALE or EACCES is about this node: `FileSystemError` ends its work, and
nothing is removed, taken over, computed again or declared complete on its account.

Of a JSON record a class says by its types what it may hold; numbers and names have bounds as well
(`Count`, `Seconds`, `Name`, ...), and its method `problem` reports what no type can.

Runs are shared: a second user who helps with a umask of 077 would publish shards that the first
one cannot merge. Only what the umask took away is given back, so that a file which a runner made
private on purpose stays private.

Times of files, heartbeats and submissions are compared with the clock of the file system that holds
them: it is the one clock that all machines of a run share. A machine's own may be an hour off.
"""

import errno
import itertools
import json
import logging
import os
import re
import stat
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

from espnet3.errors import FileSystemError, RunFolderError
from espnet3.schedulers import node_name
from espnet3.text import on_one_line, utc_time

if TYPE_CHECKING:
    from pydantic import TypeAdapter


A = TypeVar("A")
T = TypeVar("T")
_N_READERS = 16  # a network answers many at once
_AT_ONCE = 4  # for a thread to read: handing over one at a time would cost as much as reading it
_MOST_AHEAD = 2 * _N_READERS
_N_TRIED = 64
_SLOW_SECONDS = 3e-4
_ABSENT = (FileNotFoundError, NotADirectoryError)  # also a file in the place of its folder
# What may be over in a moment: a server that fails over, a handle that was replaced.
_PASSING = {errno.EIO, errno.ESTALE, errno.EAGAIN, errno.EINTR}
_PAUSES = (0.05, 0.2, 0.5)
# What a node says that has lost its file server, or whose user has no rights there; a full or
# read-only disk is the same for all.
_NAMES_OF_NODE = (
    "EIO", "ESTALE", "ENXIO", "ENODEV", "ETIMEDOUT", "EHOSTDOWN", "EHOSTUNREACH", "ENETDOWN",
    "ENETUNREACH", "ENOTCONN", "ECONNABORTED", "ECONNRESET", "ECONNREFUSED", "ESHUTDOWN",
    "EREMOTEIO", "ENOLINK", "ECOMM", "EPROTO", "EBADMSG", "EUCLEAN", "ENOLCK", "EKEYEXPIRED",
    "ENOKEY", "EACCES", "EPERM",
)  # fmt: skip
_OF_DISK = {errno.EIO, errno.ESTALE}
_OF_NODE = {getattr(errno, name) for name in _NAMES_OF_NODE if hasattr(errno, name)}
_READ = 0o444


def is_of_node(error: BaseException, folder: str | os.PathLike[str]) -> bool:
    """Tell whether an error of the operating system means that this node cannot reach a folder.

    Errors of `read` and `write` name no file: those that only a disk has are taken to be about the
    folder, those that a network connection of the user's has as well are not.
    """
    if isinstance(error, FileSystemError):
        return True
    if isinstance(error, RunFolderError):  # which says the same in words of its own
        error = error.__cause__ or error
    if not isinstance(error, OSError) or error.errno not in _OF_NODE:
        return False
    if error.filename is None:
        return error.errno in _OF_DISK
    return _is_inside(error, folder)


def _is_inside(error: OSError, folder: str | os.PathLike[str]) -> bool:
    """Tell whether an error is about a folder, or about something in it."""
    if not isinstance(error.filename, str | bytes | os.PathLike):
        return False
    path, root = os.path.abspath(os.fsdecode(error.filename)), os.path.abspath(folder)
    return path == root or path.startswith(os.path.join(root, ""))


def unreachable(
    error: OSError, path: str | os.PathLike[str], verb: str = "read"
) -> FileSystemError:
    """Return what to say of a file that is there, or may be, and cannot be read from here."""
    code = errno.errorcode.get(error.errno or 0, "no number")
    reason = error.strerror or str(error)
    return FileSystemError(
        f"{os.fspath(path)} cannot be {verb} on {node_name()}: {reason} ({code}). That says "
        "nothing about its content, so nothing was removed or recomputed.",
        fix="Run the same command "
        "again when the file system is back, or the permissions are mended.",
    )


@contextmanager
def reaching(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn each error of the operating system into one that names the file and this node."""
    try:
        yield
    except OSError as error:
        raise unreachable(error, error.filename or path) from error


def read_file(path: str | os.PathLike[str], begin: int = 0, end: int | None = None) -> bytes | None:
    """Return the content of a file, or the bytes `begin` to `end` of it; None if there is none.

    What may pass is tried again.

    Raises:
        IsADirectoryError: A folder is in its place.
        DamagedFileError: A pipe or a device is.
        FileSystemError: It cannot be read from here.
    """
    try:
        return _steadily(lambda file: read_content(file, begin, end), path)
    except _ABSENT:
        return None


def is_there(path: str | os.PathLike[str]) -> bool:
    """Tell whether something has this name, a dangling link included.

    Unlike `Path.exists`, which answers False to some errors in one Python and to all in another.

    Raises:
        FileSystemError: unknown from this node.
    """
    try:
        _steadily(os.lstat, path)
    except _ABSENT:
        return False
    return True


def names_in(folder: str | os.PathLike[str]) -> list[str]:
    """Return the names in a folder; none if it is not there.

    Raises:
        FileSystemError: They cannot be listed from here.
    """
    try:
        return list_names(folder)
    except FileSystemError as error:
        # Only this cause: a file in the folder's place is an error, not an empty folder.
        if isinstance(error.__cause__, FileNotFoundError):
            return []
        raise


def list_names(folder: str | os.PathLike[str]) -> list[str]:
    """Return the names in a folder that must be there.

    Raises:
        FileSystemError: They cannot be listed from here, or the folder is gone.
    """
    try:
        return _steadily(os.listdir, folder)
    except _ABSENT as error:
        raise unreachable(error, folder) from error


Version = tuple[int, float]
"""Identity of a file, also beside one that had its name before: its inode and its time."""


def versions_in(folder: Path) -> dict[str, Version | None]:
    """Return the names in a folder, with the versions of the files; none if there is no folder.

    None for a file that cannot be looked at from here.

    Raises:
        FileSystemError: They cannot be listed from here.
    """
    found: dict[str, Version | None] = {}
    try:
        for entry in os.scandir(folder):
            try:
                seen = entry.stat(follow_symlinks=False)
                found[entry.name] = (seen.st_ino, seen.st_mtime)
            except FileNotFoundError:  # removed meanwhile
                continue
            except OSError:
                found[entry.name] = None
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise unreachable(error, folder) from error
    return found


def _steadily(call: Callable[[Any], T], path: str | os.PathLike[str]) -> T:
    """Call a function with a path, and again after what may be over in a moment."""
    for pause in (*_PAUSES, None):
        try:
            return call(path)
        except (*_ABSENT, IsADirectoryError):
            # These are answers about the run, and no errors of this node that might pass.
            raise
        except OSError as error:
            if pause is None or error.errno not in _PASSING:
                raise unreachable(error, path) from error
            time.sleep(pause)
    raise AssertionError("the last try returns or raises")


def count_free_files(folder: Path) -> int | None:
    """Return how many more files the file system of a folder, there or not, has room for.

    None where it makes them as they are needed, or does not say. A quota is not known here.
    """
    place = next((each for each in (folder, *folder.absolute().parents) if each.is_dir()), None)
    with suppress(OSError):
        found = os.statvfs(place or "/")
        return found.f_favail if found.f_files else None
    return None


def read_in_order(
    read: Callable[[A], T], items: Iterable[A], *, is_slow: bool = False
) -> Iterator[T]:
    """Yield `read(item)` for each item, in their order, by threads ahead where one has to wait.

    Of files that are small and at hand one thread reads more than several, which would pass
    Python's lock around. So they come in once most items take longer than that costs: over a
    network, or because they are large.

    Args:
        read: is called by any thread; what it raises is raised here, when it is that item's turn.
        items: at most some hundred are read ahead.
        is_slow: threads from the first item on.
    """
    rest = iter(items)
    while not is_slow:
        n_read = n_slow = 0
        for item in itertools.islice(rest, _N_TRIED):
            begin = time.perf_counter()
            found = read(item)
            n_slow += time.perf_counter() - begin > _SLOW_SECONDS
            n_read += 1
            yield found
        if n_read < _N_TRIED:
            return
        is_slow = n_slow > n_read / 2
    yield from _read_ahead(read, rest)


def _read_ahead(read: Callable[[A], T], items: Iterator[A]) -> Iterator[T]:
    from concurrent.futures import Future, ThreadPoolExecutor  # when needed: it takes its time

    def read_some(some: list[A]) -> list[T]:
        return [read(item) for item in some]

    ahead: deque[Future[list[T]]] = deque()
    with ThreadPoolExecutor(_N_READERS) as pool:
        try:
            while some := list(itertools.islice(items, _AT_ONCE)):
                ahead.append(pool.submit(read_some, some))
                if len(ahead) > _MOST_AHEAD:
                    yield from ahead.popleft().result()
            while ahead:
                yield from ahead.popleft().result()
        except BaseException:  # also a signal: the rest is not waited for
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def share_folder(folder: Path, *, is_writable: bool = False) -> None:
    """Give a new folder the read (and with `is_writable` write) permissions of its parent."""
    with suppress(OSError):  # a file system without permissions, or a folder of another user
        wanted = stat.S_IMODE(os.stat(folder.parent).st_mode)
        mode = stat.S_IMODE(os.stat(folder).st_mode)
        missing = wanted & (0o777 if is_writable else 0o555) & ~mode
        if missing:
            os.chmod(folder, mode | missing)


def share_files(paths: Iterable[Path], folder: Path, sample: Path) -> None:
    """Give files and folders the right to be read that the umask took, as far as `folder` has it.

    Args:
        paths: What to share.
        folder: Users that may read it may read the rest.
        sample: A file that this process made without asking for any permissions.
    """
    with suppress(OSError):
        taken = _READ & ~os.stat(sample).st_mode & os.stat(folder).st_mode
        if not taken:  # nearly always
            return
        for path in paths:
            _add(path, taken)


def _add(path: Path, bits: int) -> None:
    with suppress(OSError):  # gone, or of another user
        mode = os.lstat(path).st_mode
        if stat.S_ISDIR(mode):
            bits |= bits >> 2  # to list a folder is not to enter it
        # chmod would follow a link to a file that is not part of the run.
        if not stat.S_ISLNK(mode) and bits & ~mode:
            os.chmod(path, stat.S_IMODE(mode) | bits)


MAX_SKEW = 30.0
"""Seconds by which this machine's clock may differ from a folder's before it submits no jobs."""
_BEGIN = (time.time(), time.monotonic())


def folder_time(folder: str | os.PathLike[str]) -> float:
    """Return the time by the clock of the file system that holds a folder.

    A file without a name, or one that is gone at once, gets its time there.

    Raises:
        OSError: nothing can be written there.
    """
    import tempfile  # on the start-up path of workers: imported when needed

    with tempfile.TemporaryFile(dir=folder, prefix=".clock-", buffering=0) as file:
        # As a heartbeat does: "now", which a network file system takes from its server.
        os.utime(file.fileno())
        return os.fstat(file.fileno()).st_mtime


def look_time(folder: str | os.PathLike[str]) -> float:
    """Return the same for a mere reader: this machine's time where the folder is read-only."""
    try:
        return folder_time(folder)
    except OSError:
        return time.time()


class FolderClock:
    """The clock of a folder's file system, looked at once and carried on from there."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._then, self._since = look_time(folder), time.monotonic()

    def now(self) -> float:
        """Return the time, in seconds since 1970."""
        # Every look costs a file on the server, and no one can set the monotonic clock.
        return self._then + time.monotonic() - self._since


def steady_time() -> float:
    """Return this machine's time as it was when the program began, and the seconds since.

    A change of the clock in between makes no difference.
    """
    wall, since = _BEGIN
    return wall + time.monotonic() - since


def clock_skew(folder: str | os.PathLike[str]) -> float:
    """Return how many seconds this machine's clock is ahead of the folder's; below 0: behind.

    Raises:
        OSError: nothing can be written there.
    """
    before = time.time()
    there = folder_time(folder)
    after = time.time()
    # The file got its time in between, however long that took.
    return before - there if before > there else min(after - there, 0.0)


def describe_skew(folder: str | os.PathLike[str], skew: float) -> str:
    """Describe a clock that is off, with both times and the limit."""
    import socket

    here = time.time()
    return (
        f"the clock of {socket.gethostname()} says {utc_time(here)}, and that of the file system "
        f"of {os.fspath(folder)} {utc_time(here - skew)}: it is {abs(skew):.0f} s "
        f"{'ahead' if skew > 0 else 'behind'}, and may differ by {MAX_SKEW:.0f} s"
    )


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
"""Id of a job at its scheduler; empty if that is not known. It becomes a word of a command line."""
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
