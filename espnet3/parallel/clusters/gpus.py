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
    # Not its own alone: models on two GPUs and peer-to-peer copies need the others.
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
    """GPUs that a worker should see, and the message about it."""

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
    n_of_job = int(environ[REQUESTED])
    n_wanted = max(n_of_job // n_workers, 1)
    share = ""
    if n_workers > n_of_job:  # those of one job, whose parent is one process, share in turn
        share = f"{os.getppid()} {worker.rpartition('-')[0]} {number % n_of_job}"
    try:
        n_gpus = int(environ[ON_NODE]) if ON_NODE in environ else len(visible_gpus())
        return _by_slot(n_wanted, n_gpus, locks or _lock_folder(), share)
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


def _by_slot(n_wanted: int, n_gpus: int, folder: Path, share: str) -> Pinning:
    if not n_gpus:
        advice = f"say how many there are: job_script_prologue: ['export {ON_NODE}=4']"
        return _shared(n_wanted, f"no GPU is found there; {advice}")
    paths = [folder / f"{socket.gethostname()}-{device}" for device in range(n_gpus)]
    with (folder / f"{socket.gethostname()}-choice").open("w") as choice:
        fcntl.flock(choice, fcntl.LOCK_EX)  # two that share must not begin at two GPUs
        held = _join(paths, share) if share else {}
        held = held or _take(paths, n_wanted, share)
    if len(held) < n_wanted:
        for lock in held.values():
            lock.close()
        return _shared(n_wanted, f"other workers hold all but {len(held)} of its {n_gpus} GPUs")
    visible = ",".join(map(str, held))
    message = f"{VARIABLE} is {visible}: free GPUs by the locks in {folder}, as none were named"
    return Pinning(visible, message, locks=list(held.values()))


def _join(paths: Sequence[Path], share: str) -> dict[int, IO[str]]:
    """Return the lock of the GPU that another worker holds for the same share, if one does."""
    for device, path in enumerate(paths):
        # Not w, which would erase what the holder of the lock has written.
        lock = path.open("a+")
        lock.seek(0)
        # A name in a file that nobody has locked was left behind by a worker that ended.
        if lock.read() == share and not _is_free(lock) and _try_flock(lock, fcntl.LOCK_SH):
            return {device: lock}
        lock.close()
    return {}


def _take(paths: Sequence[Path], n_wanted: int, share: str) -> dict[int, IO[str]]:
    """Return the locks of the first free GPUs, with the name of the share in each."""
    held: dict[int, IO[str]] = {}
    for device, path in enumerate(paths):
        if len(held) == n_wanted:
            break
        lock = path.open("a+")
        if not _try_flock(lock, fcntl.LOCK_EX):
            lock.close()
            continue
        lock.truncate(0)
        lock.write(share)
        lock.flush()
        # Downgraded, so that the other workers of this share can join.
        if share:
            fcntl.flock(lock, fcntl.LOCK_SH)
        held[device] = lock
    return held


def _is_free(lock: IO[str]) -> bool:
    is_free = _try_flock(lock, fcntl.LOCK_EX)
    if is_free:
        fcntl.flock(lock, fcntl.LOCK_UN)
    return is_free


def _try_flock(lock: IO[str], kind: int) -> bool:
    try:
        # The kernel drops such a lock with the process: a killed worker keeps no GPU.
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock_folder() -> Path:
    # Not $TMPDIR: Grid Engine gives each job its own.
    folder = Path(f"/tmp/espnet3-gpus-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{folder} is not ours")  # its links could lead to files of ours
    return folder
