"""Choose the device of a worker's model."""

import os
import sys
from pathlib import Path
from typing import Any

from espnet3.errors import ResourceError

# Of drivers: NVIDIA's, that of Windows' subsystem for Linux, and AMD's.
_DRIVERS = ("/dev/nvidiactl", "/proc/driver/nvidia", "/dev/dxg", "/dev/kfd")


def resolve_device(config: Any) -> str:
    """Return the device for this worker's model.

    It is `config.device` if set; else the GPU with this worker's `LOCAL_RANK`, counted among the
    visible ones and starting over if there are more workers than GPUs; else the CPU. Never a
    physical number: a scheduler that gives a job GPU 3 shows it as the only one, number 0.
    """
    device = config.get("device") if hasattr(config, "get") else getattr(config, "device", None)
    if device:
        return _checked(str(device))
    if not _may_have_gpus():
        return "cpu"
    import torch

    n_gpus = torch.cuda.device_count()
    if n_gpus == 0:
        return "cpu"
    return f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % n_gpus}"


def _may_have_gpus() -> bool:
    """Tell whether asking torch is worth its import, of seconds, in each worker."""
    return "torch" in sys.modules or any(Path(driver).exists() for driver in _DRIVERS)


def _checked(device: str) -> str:
    """Refuse a GPU that is not there, instead of an error from deep inside the model.

    Raises:
        ResourceError: no GPU, or not so many, can be seen from this worker.
    """
    if not device.startswith("cuda"):
        return device
    import torch

    n_gpus = torch.cuda.device_count()
    if n_gpus > int(device.partition(":")[2] or 0):
        return device
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    raise ResourceError(
        f"device is {device!r}, but this worker sees {n_gpus} GPU(s) "
        f"(CUDA_VISIBLE_DEVICES={visible!r}). Leave device unset: each worker takes what it has."
    )
