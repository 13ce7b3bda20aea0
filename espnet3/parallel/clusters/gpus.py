"""GPUs of this machine: which are visible, and which ones a worker is pinned to.

NVML is asked, the library of NVIDIA's driver: torch may be a build for the CPU, takes seconds to
import, and remembers what it saw first. Some schedulers tell a job its GPUs; others only count
them, and tell nobody which are meant: there, workers choose free ones by lock files on the node.
"""

import fcntl
import os
import re
import socket
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from espnet3.errors import ResourceError

VARIABLE = "CUDA_VISIBLE_DEVICES"
REQUESTED = "ESPNET3_JOB_GPUS"
"""How many GPUs the job asked for, where the scheduler does not tell which it got."""
WORKERS = "ESPNET3_JOB_WORKERS"
"""How many workers share the job, if more than one."""
ON_NODE = "ESPNET3_NODE_GPUS"
"""How many GPUs the node has, where NVML cannot be asked."""


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
                f"GPU {index} of this machine does not answer ({gpus[index].fault}).",
                fix=f"Look at nvidia-smi; to continue without it: export {VARIABLE}={others}",
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


@dataclass(frozen=True)
class Pinning:
    """What a worker is to see, and what to say of it."""

    visible: str | None
    """The value of `CUDA_VISIBLE_DEVICES`; None leaves it as it is."""
    message: str = ""
    is_warning: bool = False
    locks: list[IO[str]] = field(default_factory=list)
    """Held as long as they are open: by the worker until it ends."""


def choose_gpus(environ: Mapping[str, str], worker: str, *, locks: Path | None = None) -> Pinning:
    """Return which GPUs a worker sees.

    Args:
        environ: of the job.
        worker: the worker's name, which ends with its number if several share the job.
        locks: the folder for lock files; one of this user and node if not given.
    """
    given = environ.get(VARIABLE)
    n_workers = int(environ.get(WORKERS, "1"))
    number = int(worker.rpartition("-")[2]) if n_workers > 1 else 0
    if given:
        return _of_scheduler(given, number)
    if REQUESTED not in environ:
        return Pinning(None)
    n_wanted = max(int(environ[REQUESTED]) // n_workers, 1)
    try:
        n_gpus = int(environ[ON_NODE]) if ON_NODE in environ else len(visible_gpus())
        return _by_slot(n_wanted, n_gpus, locks or _lock_folder())
    except (OSError, ResourceError) as error:
        return _shared(n_wanted, str(error))


def _shared(n_wanted: int, why: str) -> Pinning:
    return Pinning(
        None,
        f"{n_wanted} GPU(s) were asked for, but the scheduler does not tell which, and on "
        f"{socket.gethostname()} none can be chosen: {why}. Workers of one node may share a GPU.",
        is_warning=True,
    )


def _of_scheduler(given: str, number: int) -> Pinning:
    # HTCondor says CUDA0, which CUDA itself does not understand.
    devices = [re.sub(r"^CUDA(?=\d+$)", "", device.strip()) for device in given.split(",")]
    visible = rotated(devices, number % len(devices))
    if visible == given:
        return Pinning(None)
    return Pinning(visible, f"{VARIABLE} is {visible}; the scheduler gave {given}")


def _by_slot(n_wanted: int, n_gpus: int, folder: Path) -> Pinning:
    if not n_gpus:
        advice = f"say how many there are: job_script_prologue: ['export {ON_NODE}=4']"
        return _shared(n_wanted, f"no GPU is found there; {advice}")
    held: dict[int, IO[str]] = {}
    for device in range(n_gpus):
        lock = _try_lock(folder / f"{socket.gethostname()}-{device}")
        if lock is not None:
            held[device] = lock
        if len(held) == n_wanted:
            break
    else:
        for lock in held.values():
            lock.close()
        return _shared(n_wanted, f"other workers hold all but {len(held)} of its {n_gpus} GPUs")
    visible = ",".join(map(str, held))
    message = f"{VARIABLE} is {visible}: free GPUs by the locks in {folder}, as none were named"
    return Pinning(visible, message, locks=list(held.values()))


def _try_lock(path: Path) -> IO[str] | None:
    lock = path.open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock


def _lock_folder() -> Path:
    # Not $TMPDIR: Grid Engine gives each job its own.
    folder = Path(f"/tmp/espnet3-gpus-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{folder} is not ours")  # its links could lead to files of ours
    return folder
