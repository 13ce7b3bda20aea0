"""Read files of a run folder, and tell "not there" from "not to be reached from this node".

Only a file that is not there, or is there with other content than it should have, says something
about the run. An EIO, ESTALE or EACCES is about this node: `FileSystemError` ends its work, and
nothing is removed, taken over, computed again or declared complete on its account.
"""

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from espnet3.errors import FileSystemError
from espnet3.shards.owner import node_name

_ABSENT = (FileNotFoundError, NotADirectoryError)  # also a file in the place of its folder
# What may be over in a moment: a server that fails over, a handle that was replaced.
_PASSING = {errno.EIO, errno.ESTALE, errno.EAGAIN, errno.EINTR}
_PAUSES = (0.05, 0.2, 0.5)
# What a node says that has lost its file server; a full or read-only disk is the same for all.
_NAMES_OF_NODE = (
    "EIO", "ESTALE", "ENXIO", "ENODEV", "ETIMEDOUT", "EHOSTDOWN", "EHOSTUNREACH", "ENETDOWN",
    "ENETUNREACH", "ENOTCONN", "ECONNABORTED", "ECONNRESET", "ECONNREFUSED", "ESHUTDOWN",
    "EREMOTEIO", "ENOLINK", "ECOMM", "EPROTO", "EBADMSG", "EUCLEAN", "EAGAIN", "ENFILE", "EMFILE",
    "ENOLCK", "EKEYEXPIRED", "ENOKEY",
)  # fmt: skip
_OF_NODE = {getattr(errno, name) for name in _NAMES_OF_NODE if hasattr(errno, name)}


def is_of_node(error: BaseException, folder: str | os.PathLike[str]) -> bool:
    """Tell whether an error of the operating system means that this node cannot reach a folder.

    Errors of `write` name no file; they are taken to be about the folder.
    """
    if isinstance(error, FileSystemError):
        return True
    if not isinstance(error, OSError) or error.errno not in _OF_NODE:
        return False
    return error.filename is None or is_inside(error, folder)


def is_inside(error: OSError, folder: str | os.PathLike[str]) -> bool:
    """Tell whether an error is about a folder, or about something in it."""
    if not isinstance(error.filename, str | bytes | os.PathLike):
        return False
    path, root = os.path.abspath(os.fsdecode(error.filename)), os.path.abspath(folder)
    return path == root or path.startswith(os.path.join(root, ""))


def unreachable(error: OSError, path: str | os.PathLike[str]) -> FileSystemError:
    """Return what to say of a file that is there, or may be, and cannot be read from here."""
    code = errno.errorcode.get(error.errno or 0, "no number")
    reason = error.strerror or str(error)
    return FileSystemError(
        f"{os.fspath(path)} cannot be read on {node_name()}: {reason} ({code}). This tells nothing "
        "of what is in it, so nothing was removed or computed anew. Run the same command again "
        "when the file system is back, or the permissions are mended."
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
        FileSystemError: It cannot be read from here.
    """
    for pause in (*_PAUSES, None):
        try:
            with open(path, "rb") as file:
                return file.read()
        except _ABSENT:
            return None
        except IsADirectoryError:
            raise
        except OSError as error:
            if pause is None or error.errno not in _PASSING:
                raise unreachable(error, path) from error
            time.sleep(pause)
    raise AssertionError("the last try returns or raises")


def is_there(path: str | os.PathLike[str]) -> bool:
    """Tell whether something has this name, a dangling link included.

    Unlike `Path.exists`, which answers False to some errors in one Python and to all in another.

    Raises:
        FileSystemError: It cannot be told from here.
    """
    try:
        os.lstat(path)
    except _ABSENT:
        return False
    except OSError as error:
        raise unreachable(error, path) from error
    return True


def names_in(folder: str | os.PathLike[str]) -> list[str]:
    """Return the names in a folder; none if it is not there.

    Raises:
        FileSystemError: They cannot be listed from here.
    """
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise unreachable(error, folder) from error
