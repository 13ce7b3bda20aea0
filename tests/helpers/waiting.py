"""Wait for what other processes do, and look at them."""

import os
import time
from pathlib import Path

from espnet3.parallel.worker import WARM_NAME

FORKED = "espnet3-worker"  # what a spare process calls itself then


def wait_until(condition, seconds: float = 60.0, pause: float = 0.01, report=str) -> None:
    """Poll until a condition holds; fail after the deadline, with what `report` returns."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain\n{report()}"
        time.sleep(pause)


def worker_pids(driver: int | None = None) -> list[int]:
    """Return the worker processes of a driver that are alive, or of any.

    They are its children, or those of the process from which they are forked.
    """
    found = _ours()
    warm = {pid for pid, (parent, name) in found.items() if name == WARM_NAME and parent == driver}
    return [
        pid
        for pid, (parent, name) in found.items()
        if name != WARM_NAME and (driver is None or parent == driver or parent in warm)
    ]


def warm_pids(driver: int | None = None) -> list[int]:
    """Return the processes from which a driver's workers are forked, or those of any."""
    found = _ours().items()
    return [pid for pid, (parent, name) in found if name == WARM_NAME and driver in (None, parent)]


def _ours() -> dict[int, tuple[int, str]]:
    """Return parent and name of each worker process, and of those from which they are forked."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            name = (folder / "comm").read_text().strip()
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        is_worker = b"espnet3.parallel.worker import main" in command or name == FORKED
        if is_worker and fields[0] != "Z":
            found[int(folder.name)] = int(fields[1]), name
    return found


def wait_for_end(pids: list[int], seconds: float = 30.0) -> None:
    """Wait until processes are gone; for long, since others may use the machine as well."""
    wait_until(lambda: not any(is_alive(pid) for pid in pids), seconds)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state != "Z"
