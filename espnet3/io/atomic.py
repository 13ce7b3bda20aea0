"""Write files that are seen whole or not at all: a temp file, fsync, then one rename or link.

It is on the start-up path of every worker, so it imports next to nothing.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

TYPE_CHECKING = False  # what `typing.TYPE_CHECKING` is, without the import of `typing`
if TYPE_CHECKING:
    from typing import IO, Any

StrPath = str | os.PathLike[str]
PRIVATE = 0o600
"""Permissions of a file that only its owner may read."""

# Some network and FUSE file systems cannot sync a folder, and one may write to a folder without
# being allowed to read it; the rename is atomic there all the same.
_NO_DIR_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF, errno.EACCES}
_FOLDER_TROUBLE = {
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO,
    errno.ESTALE, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG,
}  # fmt: skip
# File systems without hard links (exFAT, some FUSE) say so in one of these ways.
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_MAX_SWEPT = 3
_IN_THE_WAY = (errno.EEXIST, errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_TEMP_NAME = re.compile(r"\..*\.tmp-([0-9]+)-[0-9a-f]{8}", re.DOTALL)
_MAX_NAME_BYTES = 200  # leaves room for the ending below the usual limit of 255


@contextmanager
def open_atomic(
    path: StrPath,
    mode: str = "w",
    *,
    sync: bool = True,
    permissions: int | None = None,
) -> Iterator[IO[Any]]:
    r"""Open a file that replaces `path` when the block ends, and only if it ends well.

    Until then the data is in `.<name>.tmp-<pid>-<random>` beside it. After an exception, also one
    at the last flush (disk full), the temp file is gone and `path` is as it was; after a SIGKILL
    the temp file stays behind (see `is_temp_name`). Text is written with "\n" line ends. The file
    gets the permissions that `open` would give it. A symbolic link is replaced, not followed.

    Args:
        path: The file to create or replace; its folder must exist.
        mode: "w" for UTF-8 text, "wb" for bytes.
        sync: Wait until the data is on the disk. Pass False for a file that a later commit syncs;
            it is then still whole for readers, but may be empty after a power cut.
        permissions: What it has from its first moment on, whatever the umask, and the file that it
            replaces, say; `PRIVATE` for what may hold a secret.
    """
    if mode not in ("w", "wb"):
        raise ValueError(f'open_atomic got mode={mode!r} for {path}. Use mode="w" or mode="wb".')
    target = os.path.abspath(path)  # the block may change the working directory
    temp = temp_path(target)
    file = _create(temp, mode, permissions)
    try:
        with file:
            if permissions is None:
                _copy_permissions(target, file.fileno())
            else:
                # `os.open` was asked for as much, but the umask took its share.
                os.fchmod(file.fileno(), permissions)
            yield file
            # fsync covers only what has left Python's own buffer.
            file.flush()
            if sync:
                os.fsync(file.fileno())
        # Not before it is closed: some network file systems report a full disk only then.
        os.replace(temp, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(temp)
        raise
    if sync:
        # A rename is durable only once the folder that holds the name is.
        fsync_dir(os.path.dirname(target))


def write_bytes(
    path: StrPath, data: bytes, *, sync: bool = True, permissions: int | None = None
) -> None:
    """Create or replace a file atomically; see `open_atomic`."""
    with open_atomic(path, "wb", sync=sync, permissions=permissions) as file:
        file.write(data)


def write_text(path: StrPath, text: str) -> None:
    """Create or replace a UTF-8 file atomically, the text as it is; see `open_atomic`."""
    write_bytes(path, text.encode("utf-8"))


def write_json(
    path: StrPath,
    value: Any,
    indent: int | None = 2,
    *,
    sync: bool = True,
    permissions: int | None = None,
) -> None:
    """Create or replace a JSON file atomically, keys in their order, with a newline at the end.

    Raises:
        RecordError: A value is NaN, infinite, or of a type unknown to JSON; `path` is as it was.
    """
    from espnet3.io.tables import dump_json  # not on the start-up path

    text = dump_json(value, indent=indent, where=path) + "\n"
    write_bytes(path, text.encode("utf-8"), sync=sync, permissions=permissions)


def create_bytes(
    path: StrPath, data: bytes, *, sync: bool = True, permissions: int | None = None
) -> bool:
    """Create a file with this content, unless it exists: one of several processes is the first.

    With `permissions` it has them whatever the umask is.

    Readers see nothing or all of it. Where there are no hard links, a process that is killed
    between creating and writing leaves an empty file.

    Returns:
        False if the file was there already; it is then as it was.
    """
    for _ in range(_MAX_SWEPT):
        with suppress(FileNotFoundError):  # another machine swept it, taking its writer for dead
            return _create_by_link(path, data, sync, permissions)
    return _create_by_link(path, data, sync, permissions)


def _create_by_link(path: StrPath, data: bytes, sync: bool, permissions: int | None) -> bool:
    temp = temp_path(os.path.abspath(path))
    try:
        with open(temp, "xb") as file:
            _fill(file, data, sync, permissions)
        try:
            os.link(temp, path)
        except FileExistsError:
            # NFS sends a request again when the answer is lost, and then finds its own link.
            if _n_links(temp) < 2:
                return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if not _create_plainly(path, data, sync, permissions):
                return False
    finally:
        with suppress(FileNotFoundError):
            # After a link this is a spare name of the file; after a failure it would be litter.
            os.unlink(temp)
    if sync:
        fsync_dir(os.path.dirname(os.path.abspath(path)))
    return True


def _n_links(path: str) -> int:
    # Opening a file makes NFS ask the server; a mere `stat` may be answered from its memory.
    with open(path, "rb", buffering=0) as file:
        return os.fstat(file.fileno()).st_nlink


def _fill(file: IO[bytes], data: bytes, sync: bool, permissions: int | None) -> None:
    if permissions is not None:
        os.fchmod(file.fileno(), permissions)
    file.write(data)
    file.flush()
    if sync:
        os.fsync(file.fileno())


def _create_plainly(path: StrPath, data: bytes, sync: bool, permissions: int | None) -> bool:
    try:
        # "x" is O_EXCL, which has to be atomic where hard links are missing (docs/file-systems.md).
        with open(path, "xb") as file:
            try:
                _fill(file, data, sync, permissions)
            except OSError:  # such as a full disk: half a file must not count as the first one's
                os.unlink(path)
                raise
    except FileExistsError:
        return False
    return True


def fsync_file(path: StrPath) -> None:
    """Wait until what was written to a file, by whichever process, is on the disk."""
    # Enough for fsync, and it also opens a file that a runner made read-only.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_dir(path: StrPath) -> None:
    """Wait until the names in a folder are on the disk; does nothing where that is unsupported."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _NO_DIR_SYNC:
            raise


def is_temp_name(name: str) -> bool:
    """Tell whether a file name is that of a write under way, or of one that was killed."""
    return _TEMP_NAME.fullmatch(name) is not None


def temp_pid(name: str) -> int | None:
    """Return which process made a temp file, on which machine is not in the name."""
    match = _TEMP_NAME.fullmatch(name)
    return int(match[1]) if match else None


def temp_path(target: str) -> str:
    """Return a name beside `target` for a write under way; see `is_temp_name`."""
    folder, name = os.path.split(target)
    # File systems limit bytes; "ignore" drops a character that the cut went through.
    name = os.fsencode(name)[:_MAX_NAME_BYTES].decode("utf-8", "ignore")
    # Machines that share the folder may have equal pids, and threads of a process have the same.
    return os.path.join(folder, f".{name}.tmp-{os.getpid()}-{os.urandom(4).hex()}")


def _create(temp: str, mode: str, permissions: int | None) -> IO[Any]:
    # "x" and not mkstemp, whose files only their owner may read. Permissions from the first moment
    # on: a reader that opens it before they are set could read all that is written later.
    def opener(name: str, flags: int) -> int:
        return os.open(name, flags, 0o666 if permissions is None else permissions)

    try:
        if mode == "wb":
            return open(temp, "xb", opener=opener)
        return open(temp, "x", encoding="utf-8", newline="\n", opener=opener)
    except FileNotFoundError as error:
        folder = os.path.dirname(temp)
        message = "Cannot write into a folder that does not exist; create it first: mkdir -p"
        raise FileNotFoundError(errno.ENOENT, message, folder) from error


def _copy_permissions(target: str, descriptor: int) -> None:
    # A private file must stay private when it is replaced.
    with suppress(OSError):  # there is no such file yet, or there are no permissions here
        os.fchmod(descriptor, stat.S_IMODE(os.stat(target).st_mode))


def is_folder_trouble(error: BaseException, folder: StrPath | None = None) -> bool:
    """Tell whether an error means that one cannot write here, or that `folder` is gone.

    Others, such as a missing file, are about what the caller's code opens.
    """
    if not isinstance(error, OSError):
        return False
    return error.errno in _FOLDER_TROUBLE or (folder is not None and not os.path.isdir(folder))


def folder_trouble(error: OSError, path: StrPath | None = None) -> str:
    """Return why the system refuses a path, with what is in the way where that can be seen.

    `File exists` may mean a link whose target is not there, and `Not a directory` a file far above.

    Args:
        error: what the system said.
        path: what was to be made; that of the error if None.
    """
    if error.errno in _IN_THE_WAY:
        for each in (path, error.filename):
            found = in_the_way(each) if isinstance(each, str | os.PathLike) else ""
            if found:
                return found
    return error.strerror or str(error)


def in_the_way(path: StrPath) -> str:
    """Say which link or file keeps a path from being a folder; empty if there is none."""
    from shlex import quote  # only after a failure

    # Downwards: whatever is wrong above makes everything below it look wrong as well.
    for place in _from_the_root(os.path.abspath(os.fspath(path))):
        if os.path.islink(place) and not os.path.exists(place):
            target = os.path.join(os.path.dirname(place), os.readlink(place))
            return (
                f"{place} is a symbolic link to {target}, which does not exist (make it: mkdir -p "
                f"{quote(target)} ; or remove the link: rm {quote(place)})"
            )
        if os.path.exists(place) and not os.path.isdir(place):
            return f"{place} is a file, not a folder"
    return ""


def _from_the_root(path: str) -> Iterator[str]:
    parent = os.path.dirname(path)
    if parent != path:
        yield from _from_the_root(parent)
    yield path
