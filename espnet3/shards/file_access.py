"""Read files of a run folder: absent, or unreadable on this node; share what is new; its clock.

Only a file that is not there, or is there with other content than it should have, says something
about the run. An EIO, ESTALE or EACCES is about this node: `FileSystemError` ends its work, and
nothing is removed, taken over, computed again or declared complete on its account.

Runs are shared: a second user who helps with a umask of 077 would publish shards that the first
one cannot merge. Only what the umask took away is given back, so that a file which a runner made
private on purpose stays private.

Times of files, heartbeats and submissions are compared with the clock of the file system that holds
them: it is the one clock that all machines of a run share. A machine's own may be an hour off.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from espnet3.errors import FileSystemError, RunFolderError
from espnet3.io.records import read_content
from espnet3.schedulers import node_name
from espnet3.text import utc_time

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
"""What tells a file from the one that had its name before: its inode and its time."""


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
