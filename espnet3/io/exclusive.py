"""Create a file that must not exist yet: how one of several processes becomes the first."""

import errno
import os
from contextlib import suppress
from typing import IO

from espnet3.io.atomic import StrPath, fsync_dir, temp_path

# File systems without hard links (exFAT, some FUSE) say so in one of these ways.
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_MAX_SWEPT = 3


def create_bytes(
    path: StrPath, data: bytes, *, sync: bool = True, permissions: int | None = None
) -> bool:
    """Create a file with this content, unless it exists.

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
        with open(path, "xb") as file:
            try:
                _fill(file, data, sync, permissions)
            except OSError:  # such as a full disk: half a file must not count as the first one's
                os.unlink(path)
                raise
    except FileExistsError:
        return False
    return True
