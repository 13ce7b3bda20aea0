"""Give new files in a run folder the permissions of the folder.

Runs are shared: a second user who helps with a umask of 077 would publish shards that the first
one cannot merge. Only what the umask took away is given back, so that a file which a runner made
private on purpose stays private.
"""

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_READ = 0o444


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
        if not stat.S_ISLNK(mode) and bits & ~mode:
            os.chmod(path, stat.S_IMODE(mode) | bits)
