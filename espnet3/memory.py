"""Memory: when Python looks for reference cycles, and running out of memory."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_RARELY = 100_000  # new objects, in place of some hundred
# Messages of libraries that have no exception class for it: cuDNN and cuBLAS through torch, torch's
# allocator for the CPU, ONNX Runtime.
_PHRASES = (
    "out of memory",
    "ALLOC_FAILED",
    "can't allocate memory",
    "Failed to allocate memory",
    "std::bad_alloc",
)


@contextmanager
def rare_collections() -> Iterator[None]:
    """Let Python look for reference cycles less often in the block, in which things are loaded.

    Nearly all that is made then stays. While torch and transformers are imported and a model is
    built, or configs are checked, a tenth of the time would go into looking through it again and
    again.
    """
    before = gc.get_threshold()
    rare = (max(before[0], _RARELY), *before[1:])
    if before[0]:  # else the user has switched it off
        gc.set_threshold(*rare)
    try:
        yield
    finally:
        if gc.get_threshold() == rare:  # else the user's code has set another
            gc.set_threshold(*before)


@contextmanager
def no_collections() -> Iterator[None]:
    """Keep Python from looking for cycles in the block, which makes many objects without any."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


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
    # Not imported: if the user's code did not do so either, there is nothing to free.
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
