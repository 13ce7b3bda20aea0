"""Who works on what: owner files with a heartbeat, and claims that name an owner.

Leases only spare double work; what keeps outputs right is the commit. So a lease may be taken over
whenever its owner looks dead, and being wrong about that costs time, not results.
"""

import json
import logging
import os
import socket
import threading
import time
import uuid
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

from espnet3.io.exclusive import create_bytes
from espnet3.shards.layout import leases_folder

logger = logging.getLogger(__name__)

HEARTBEAT = 5.0
"""Seconds between two heartbeats."""
TIMEOUT = 60.0
"""Seconds without a heartbeat after which an owner counts as dead."""
_JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "JOB_ID", "LSB_JOBID", "OAR_JOB_ID")


@dataclass(frozen=True)
class Owner:
    """A process that works in a run folder."""

    host: str
    machine: str
    pid: int
    started: int
    job_id: str = ""
    owner_id: str = field(default_factory=lambda: uuid.uuid4().hex[:16])

    @classmethod
    def of_this_process(cls) -> "Owner":
        """Describe the calling process."""
        job_id = next((os.environ[name] for name in _JOB_VARIABLES if name in os.environ), "")
        pid = os.getpid()
        return cls(socket.gethostname(), machine_id(), pid, start_time(pid) or 0, job_id)

    def __str__(self) -> str:
        """Return `host:pid`, with the scheduler's job if there is one."""
        return f"{self.host}:{self.pid}" + (f" (job {self.job_id})" if self.job_id else "")


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

    With the pid it names a process for good: pids are used again. Where there is no /proc, 0.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return _alive_by_signal(pid)
    fields = stat.rpartition(")")[2].split()
    is_zombie = fields[0] in "ZX"
    return None if is_zombie else int(fields[19])


def _alive_by_signal(pid: int) -> int | None:
    if os.path.isdir("/proc/self"):
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return 0


class Lease:
    """The calling process's presence in a run folder, kept alive by a thread.

    Example:
        ```python
        with Lease(run_dir) as lease:
            if lease.claim("split.3"):
                ...
        ```
    """

    def __init__(
        self, root: Path, *, heartbeat: float = HEARTBEAT, timeout: float = TIMEOUT
    ) -> None:
        self.folder = leases_folder(root)
        self.owner = Owner.of_this_process()
        self._heartbeat = heartbeat
        self._timeout = timeout
        self._path = self.folder / f"{self.owner.owner_id}.owner"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat_until_stopped, daemon=True)

    def __enter__(self) -> "Lease":
        self.folder.mkdir(parents=True, exist_ok=True)
        create_bytes(self._path, json.dumps(asdict(self.owner)).encode(), sync=False)
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()
        for claim in self.folder.glob("*.claim"):
            if _read_owner_id(claim) == self.owner.owner_id:
                claim.unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)

    def _beat_until_stopped(self) -> None:
        while not self._stop.wait(self._heartbeat):
            self.beat()

    def beat(self) -> None:
        """Say that the owner is alive. The file system's clock is used, never this machine's."""
        try:
            os.utime(self._path)
        except OSError as error:  # a full or absent file system must not stop the work
            logger.warning("No heartbeat could be written to %s: %s", self._path, error)

    def claim(self, name: str) -> bool:
        """Try to become the one who works on `name`; False if a living owner has it."""
        path = self.folder / f"{name}.claim"
        content = self.owner.owner_id.encode()
        for _ in range(3):  # a claim may vanish or change between two looks
            if create_bytes(path, content, sync=False):
                return True
            holder = _read_owner_id(path)
            if holder == self.owner.owner_id:
                return True
            if holder and find_owner(self.folder, holder, self._now(), self._timeout):
                return False
            self._take_away(path, holder)
        return False

    def release(self, name: str) -> None:
        """Give up a claim, so that others may take it at once."""
        path = self.folder / f"{name}.claim"
        if _read_owner_id(path) == self.owner.owner_id:
            path.unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove what dead owners left in the lease folder."""
        now = self._now()
        alive = {owner.owner_id for owner in living_owners(self.folder, now, self._timeout)}
        for name, holder in claims(self.folder).items():
            if holder not in alive:
                self._take_away(self.folder / f"{name}.claim", holder)
        for path in self.folder.glob("*.owner"):
            if path.stem not in alive:
                path.unlink(missing_ok=True)

    def others(self) -> list[Owner]:
        """Return the other living owners in this folder."""
        return [
            o for o in living_owners(self.folder, self._now(), self._timeout) if o != self.owner
        ]

    def _take_away(self, path: Path, holder: str) -> None:
        grabbed = path.with_suffix(f".taken-{uuid.uuid4().hex[:8]}")
        try:
            os.rename(path, grabbed)
        except FileNotFoundError:
            return
        if _read_owner_id(grabbed) == holder:
            (self.folder / f"{holder}.owner").unlink(missing_ok=True)
        else:  # someone was quicker, and this is the new, living claim: put it back
            create_bytes(path, grabbed.read_bytes(), sync=False)
        grabbed.unlink(missing_ok=True)

    def _now(self) -> float:
        try:
            os.utime(self._path)
            return self._path.stat().st_mtime
        except OSError:
            return time.time()


def living_owners(folder: Path, now: float | None = None, timeout: float = TIMEOUT) -> list[Owner]:
    """Return the owners in a lease folder whose heart beats."""
    now = time.time() if now is None else now
    names = [path.stem for path in folder.glob("*.owner")]
    return [owner for name in names if (owner := find_owner(folder, name, now, timeout))]


def find_owner(folder: Path, owner_id: str, now: float, timeout: float) -> Owner | None:
    """Return an owner if it is alive: heartbeat fresh and, on this machine, process there."""
    path = folder / f"{owner_id}.owner"
    try:
        age = now - path.stat().st_mtime
        owner = Owner(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    if age > timeout:
        return None
    if owner.machine == machine_id() and start_time(owner.pid) != owner.started:
        return None
    return owner


def claims(folder: Path) -> dict[str, str]:
    """Return the claims in a lease folder: what is claimed, and the id of its owner."""
    return {path.stem: _read_owner_id(path) for path in folder.glob("*.claim")}


def _read_owner_id(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""
