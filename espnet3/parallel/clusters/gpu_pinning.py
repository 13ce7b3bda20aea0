"""Which GPUs a worker's process sees: those that the scheduler gave to its job.

Slurm, LSF and HTCondor tell a job its GPUs. Grid Engine and PBS count them, and tell nobody which
are meant: there, workers choose free ones by lock files on the node.
"""

import ctypes
import fcntl
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

VISIBLE = "CUDA_VISIBLE_DEVICES"
REQUESTED = "ESPNET3_JOB_GPUS"
"""How many GPUs the job asked for, where the scheduler does not tell which it got."""
WORKERS = "ESPNET3_JOB_WORKERS"
"""How many workers share the job, if more than one."""
ON_NODE = "ESPNET3_NODE_GPUS"
"""How many GPUs the node has, where NVML cannot be asked."""


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
    given = environ.get(VISIBLE)
    n_workers = int(environ.get(WORKERS, "1"))
    number = int(worker.rpartition("-")[2]) if n_workers > 1 else 0
    if given:
        return _of_scheduler(given, number)
    if REQUESTED not in environ:
        return Pinning(None)
    n_wanted = max(int(environ[REQUESTED]) // n_workers, 1)
    n_gpus = int(environ[ON_NODE]) if ON_NODE in environ else count_gpus()
    if not n_gpus:
        return Pinning(
            None,
            f"{n_wanted} GPU(s) were asked for, but the scheduler does not tell which, and NVML "
            f"finds none on {socket.gethostname()}: workers on one node may share a GPU. Say how "
            f"many GPUs a node has: job_script_prologue: ['export {ON_NODE}=4']",
            is_warning=True,
        )
    return _by_slot(n_wanted, n_gpus, locks or _lock_folder())


def _of_scheduler(given: str, number: int) -> Pinning:
    # HTCondor says CUDA0, which CUDA itself does not understand.
    devices = [re.sub(r"^CUDA(?=\d+$)", "", device.strip()) for device in given.split(",")]
    first = number % len(devices)
    visible = ",".join(devices[first:] + devices[:first])
    if visible == given:
        return Pinning(None)
    return Pinning(visible, f"{VISIBLE} is {visible}; the scheduler gave {given}")


def _by_slot(n_wanted: int, n_gpus: int, folder: Path) -> Pinning:
    held: dict[int, IO[str]] = {}
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for device in range(n_gpus):
        if len(held) == n_wanted:
            break
        lock = _try_lock(folder / f"{socket.gethostname()}-{device}")
        if lock is not None:
            held[device] = lock
    visible = ",".join(map(str, held))
    if len(held) < n_wanted:
        return Pinning(
            visible or None,
            f"{n_wanted} GPU(s) were asked for, but other workers hold all but {len(held)} of the "
            f"{n_gpus} on {socket.gethostname()}: GPUs may be shared. Does the scheduler count "
            "GPUs (Grid Engine: a consumable per host)?",
            is_warning=True,
            locks=list(held.values()),
        )
    message = f"{VISIBLE} is {visible}: free GPUs by the locks in {folder}, as none were named"
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
    return Path(f"/tmp/espnet3-gpus-{os.getuid()}")


def count_gpus() -> int:
    """Return how many GPUs NVML finds on this machine, whatever `CUDA_VISIBLE_DEVICES` says."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return 0
    count = ctypes.c_uint(0)
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return 0
    nvml.nvmlShutdown()
    return count.value
