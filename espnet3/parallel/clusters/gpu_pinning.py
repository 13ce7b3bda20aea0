"""Pin a worker to the GPUs that the scheduler gave to its job.

Slurm, LSF and HTCondor tell a job its GPUs. Grid Engine and PBS count them, and tell nobody which
are meant: there, workers choose free ones by lock files on the node.
"""

import fcntl
import os
import re
import socket
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from espnet3.errors import ResourceError
from espnet3.parallel.clusters.gpus import VARIABLE, rotated, visible_gpus

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
