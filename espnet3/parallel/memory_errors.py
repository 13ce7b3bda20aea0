"""Tell when a batch was too large for the memory, and make room for a smaller one."""

import gc
import sys

# What libraries say who have no class of their own for it: cuDNN and cuBLAS through torch, torch's
# allocator for the CPU, ONNX Runtime.
_PHRASES = (
    "out of memory",
    "ALLOC_FAILED",
    "can't allocate memory",
    "Failed to allocate memory",
    "std::bad_alloc",
)


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
