"""Errors that are about the machine and not about the item: a broken disk, too little memory."""

import errno
import gc
import os
import sys

_TROUBLE = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE}
# What libraries say who have no class of their own for it: cuDNN and cuBLAS through torch, torch's
# allocator for the CPU, ONNX Runtime.
_PHRASES = (
    "out of memory",
    "ALLOC_FAILED",
    "can't allocate memory",
    "Failed to allocate memory",
    "std::bad_alloc",
)


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


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether a smaller batch might do what this one could not."""
    if isinstance(error, MemoryError):
        return True
    names = {cls.__name__ for cls in type(error).__mro__}
    if "OutOfMemoryError" in names:  # of torch, whatever the version
        return True
    # ONNX Runtime's errors are plain exceptions.
    is_candidate = isinstance(error, RuntimeError) or "RuntimeException" in names
    return is_candidate and any(phrase in str(error) for phrase in _PHRASES)


def free_memory() -> None:
    """Give back what a failed batch still holds; call it when its exception is gone."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
