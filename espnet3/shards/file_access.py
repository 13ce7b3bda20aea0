"""Read files of a run folder; distinguish absent from unreadable on this node.

Only a file that is not there, or is there with other content than it should have, says something
about the run. An EIO, ESTALE or EACCES is about this node: `FileSystemError` ends its work, and
nothing is removed, taken over, computed again or declared complete on its account.
"""

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from espnet3.errors import FileSystemError, RunFolderError
from espnet3.io.records import read_content
from espnet3.shards.owner import node_name

T = TypeVar("T")
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


def read_file(path: str | os.PathLike[str]) -> bytes | None:
    """Return the content of a file; None if there is none. What may pass is tried again.

    Raises:
        IsADirectoryError: A folder is in its place.
        DamagedFileError: A pipe or a device is.
        FileSystemError: It cannot be read from here.
    """
    try:
        return _steadily(read_content, path)
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


def _steadily(call: Callable[[Any], T], path: str | os.PathLike[str]) -> T:
    """Call a function with a path, and again after what may be over in a moment."""
    for pause in (*_PAUSES, None):
        try:
            return call(path)
        except (*_ABSENT, IsADirectoryError):
            raise
        except OSError as error:
            if pause is None or error.errno not in _PASSING:
                raise unreachable(error, path) from error
            time.sleep(pause)
    raise AssertionError("the last try returns or raises")
