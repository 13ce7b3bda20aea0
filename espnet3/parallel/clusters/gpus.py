"""List the visible GPUs of this machine without initialising CUDA.

Asked of NVML, the library of NVIDIA's driver: torch may be a build for the CPU, takes seconds to
import, and remembers what it saw first.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from espnet3.errors import ResourceError

VARIABLE = "CUDA_VISIBLE_DEVICES"


def visible_gpus(setting: str | None = None) -> list[str]:
    """Return the GPUs that CUDA would see, each spelled as `CUDA_VISIBLE_DEVICES` may spell it.

    Args:
        setting: in place of that variable.

    Raises:
        ResourceError: if one of them is there but does not answer.
    """
    setting = os.environ.get(VARIABLE) if setting is None else setting
    gpus = _ask_nvml()
    if gpus is None:  # no such driver: AMD's GPUs, or none
        return _ask_torch(setting)
    chosen = _selected(setting, [gpu.uuid for gpu in gpus])
    for index in chosen.values():
        if index is not None and gpus[index].fault:
            others = ",".join(entry for entry, other in chosen.items() if other != index)
            raise ResourceError(
                f"GPU {index} of this machine does not answer ({gpus[index].fault}). Look at "
                f"nvidia-smi; to continue without it: export {VARIABLE}={others}"
            )
    return list(chosen)


def rotated(gpus: Sequence[str], first: int) -> str:
    """Return a value for `CUDA_VISIBLE_DEVICES` with one GPU first; the others follow in a ring."""
    return ",".join([*gpus[first:], *gpus[:first]])


@dataclass(frozen=True)
class Gpu:
    """One GPU of this machine."""

    uuid: str
    fault: str = ""


def _selected(setting: str | None, uuids: Sequence[str]) -> dict[str, int | None]:
    """Do as CUDA does: take entries up to the first that names no GPU; a repeated one is none.

    Returns:
        The index of each chosen entry; None for a slice of a GPU, which only CUDA can look up.
    """
    if setting is None:
        return {str(i): i for i in range(len(uuids))}
    chosen: dict[str, int | None] = {}
    for entry in (entry.strip() for entry in setting.split(",")):
        if entry.startswith("MIG-"):
            chosen[entry] = None
            continue
        entry = entry.removeprefix("CUDA")  # HTCondor writes CUDA0, which CUDA does not know
        index = _index(entry, uuids)
        if index is None:  # also what schedulers write for none: "", "-1", "NoDevFiles"
            break
        if index in chosen.values():
            return {}
        # Written out: CUDA takes a UUID that is cut short, dask-cuda does not.
        chosen[entry if entry.isdecimal() else uuids[index]] = index
    return chosen


def _index(entry: str, uuids: Sequence[str]) -> int | None:
    if entry.isdecimal():
        return int(entry) if int(entry) < len(uuids) else None
    # A UUID may be cut short as long as it stands for one GPU.
    matches = [i for i, uuid in enumerate(uuids) if uuid.startswith(entry or "no GPU")]
    return matches[0] if len(matches) == 1 else None


def _ask_nvml() -> list[Gpu] | None:
    """Return all GPUs; None if NVIDIA's driver is not there."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        return [_ask(i) for i in range(pynvml.nvmlDeviceGetCount())]
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _ask(index: int) -> Gpu:
    import pynvml

    try:
        return Gpu(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index)))
    except pynvml.NVMLError as error:
        return Gpu(f"GPU {index} without an answer", fault=str(error))


def _ask_torch(setting: str | None) -> list[str]:
    import torch

    n_visible = torch.cuda.device_count()
    if setting is None:
        return [str(i) for i in range(n_visible)]
    return [entry.strip() for entry in setting.split(",")][:n_visible]
