"""Errors that are about the machine and not about the item."""

import errno
import os

_TROUBLE = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE}


def is_machine_trouble(error: BaseException, run_dir: str | None) -> bool:
    """Tell whether an error of the user's code says that a disk of this machine is full or broken.

    The run folder is no part of the machine: all workers share it, and another one would find it
    as full. Errors of `write` name no file; they are taken to be about the machine.
    """
    if not isinstance(error, OSError) or error.errno not in _TROUBLE:
        return False
    if run_dir is None or not isinstance(error.filename, str | bytes | os.PathLike):
        return True
    path = os.path.realpath(os.fsdecode(error.filename))
    return not path.startswith(os.path.join(os.path.realpath(run_dir), ""))
