"""Identity of a process in an owner file, and whether it is still alive."""

import json
import os
import socket
import uuid
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from espnet3.io.records import Count, DamagedFileError, Name, Pid
from espnet3.schedulers import current_job, node_of_job

_MAX_PID = 2**31 - 1
_TYPES = {
    "host": str, "machine": str, "pid": int, "started": int, "job_id": str, "owner_id": str
}  # fmt: skip


@dataclass(frozen=True)
class Owner:
    """A process that works in a run folder."""

    host: str
    machine: str
    pid: Pid
    started: Count
    job_id: str = ""
    owner_id: Name = field(default_factory=lambda: uuid.uuid4().hex[:16])

    @classmethod
    def of_this_process(cls) -> "Owner":
        """Describe the calling process."""
        job, pid = current_job(), os.getpid()
        job_id = job.job_id if job else ""
        return cls(node_name(), machine_id(), pid, start_time(pid) or 0, job_id)

    def __str__(self) -> str:
        """Return `host:pid`, with the scheduler's job if there is one."""
        return f"{self.host}:{self.pid}" + (f" (job {self.job_id})" if self.job_id else "")


def parse_owner(content: bytes) -> Owner:
    """Return what an owner file says; what a newer version adds is ignored.

    Raises:
        DamagedFileError: It is not what an owner wrote.
    """
    # Not by pydantic: checking a claim should not wait for its import.
    try:
        found = json.loads(content)
        values = {name: found[name] for name in _TYPES if name in found}
        owner = Owner(**values)
    except (ValueError, TypeError, RecursionError) as error:
        raise DamagedFileError(f"An owner file is damaged: {error}.") from None
    wrong = [name for name, kind in _TYPES.items() if type(getattr(owner, name)) is not kind]
    if wrong or not 0 < owner.pid <= _MAX_PID:
        raise DamagedFileError(f"An owner file is damaged: {', '.join(wrong) or 'pid'}.")
    return owner


def unknown_owner(owner_id: str) -> Owner:
    """Return an owner of which only its heartbeat is known."""
    return Owner("unknown", "", 0, 0, owner_id=owner_id)


def node_name() -> str:
    """Return the name of this machine, as its scheduler calls it.

    That is the name by which a scheduler can exclude it, and nodes that are containers of
    one machine may share a host name.
    """
    return node_of_job() or socket.gethostname()


@cache
def machine_id() -> str:
    """Identify the kernel and process namespace, in which a pid means one process."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def start_time(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if it is gone.

    With the pid it names a process for good: pids are used again. 0 if it is there and one cannot
    tell: no /proc, or one that hides the processes of other users.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return _alive_by_signal(pid)
    fields = stat.rpartition(")")[2].split()
    is_zombie = fields[0] in "ZX"
    return None if is_zombie else int(fields[19])


def _alive_by_signal(pid: int) -> int | None:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return None
    except PermissionError:
        pass
    return 0
