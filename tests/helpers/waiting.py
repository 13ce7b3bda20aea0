"""Wait for what other processes do, and look at them."""

import os
import time
from pathlib import Path


def wait_until(condition, seconds: float = 30.0, pause: float = 0.01) -> None:
    """Poll until a condition holds; fail after the deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(pause)


def worker_pids(driver: int | None = None) -> list[int]:
    """Return the worker processes of a driver that are alive, or of any."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        is_ours = driver is None or int(fields[1]) == driver
        if b"espnet3.parallel.worker import main" in command and is_ours and fields[0] != "Z":
            pids.append(int(folder.name))
    return pids


def wait_for_end(pids: list[int], seconds: float = 5.0) -> None:
    """Wait until processes are gone."""
    wait_until(lambda: not any(is_alive(pid) for pid in pids), seconds)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state != "Z"
