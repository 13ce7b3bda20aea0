"""Who works on what: owner files with a heartbeat, and claims that name an owner.

Leases only spare double work; what keeps outputs right is the commit. So a lease may be taken over
whenever its owner looks dead, and being wrong about that costs time, not results.
"""

import json
import logging
import os
import re
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from espnet3.io.atomic import temp_pid, write_bytes
from espnet3.io.exclusive import create_bytes
from espnet3.shards.layout import leases_folder
from espnet3.shards.owner import Owner, machine_id, node_name, start_time

__all__ = [
    "HEARTBEAT", "TIMEOUT", "Lease", "Owner", "claims", "find_owner", "living_owners", "machine_id",
    "node_name", "start_time",
]  # fmt: skip
logger = logging.getLogger(__name__)

HEARTBEAT = 5.0
"""Seconds between two heartbeats."""
TIMEOUT = 60.0
"""Seconds without a heartbeat after which an owner counts as dead."""
_OWNER_ID = re.compile("[0-9a-f]{16}")


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
        self._sign_in()
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()
        for claim in self.folder.glob("*.claim"):
            if _read_owner_id(claim) == self.owner.owner_id:
                claim.unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)

    def _sign_in(self) -> None:
        create_bytes(self._path, json.dumps(asdict(self.owner)).encode(), sync=False)

    def _beat_until_stopped(self) -> None:
        while not self._stop.wait(self._heartbeat):
            self.beat()

    def beat(self) -> None:
        """Say that the owner is alive. The file system's clock is used, never this machine's."""
        try:
            try:
                os.utime(self._path)
            except FileNotFoundError:  # suspended for long, and swept by one who took it for dead
                self._sign_in()
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
            if holder is None:
                continue
            if self._is_alive(holder):
                return False
            if self._take_from(holder, path, content):
                return True
        return False

    def release(self, name: str) -> None:
        """Give up a claim, so that others may take it at once."""
        path = self.folder / f"{name}.claim"
        if _read_owner_id(path) == self.owner.owner_id:
            path.unlink(missing_ok=True)

    def is_held(self, name: str) -> bool:
        """Tell whether a living owner has claimed `name`; a look that changes nothing."""
        holder = _read_owner_id(self.folder / f"{name}.claim")
        return holder is not None and self._is_alive(holder)

    def sweep(self) -> None:
        """Remove what dead owners left in the lease folder."""
        # Each owner is looked up after the file that names it: one that comes in meanwhile lives.
        for name, holder in claims(self.folder).items():
            if not self._is_alive(holder):
                self._take_from(holder, self.folder / f"{name}.claim", None)
        for path in self.folder.glob("[!.]*.taken-*"):  # not the temp file of one being made
            self._remove_dead_mark(path)
        for path in self.folder.glob("*.owner"):
            if not self._is_alive(path.stem):
                path.unlink(missing_ok=True)
        self._remove_dead_temps()

    def others(self) -> list[Owner]:
        """Return the other living owners in this folder."""
        return [
            o for o in living_owners(self.folder, self._now(), self._timeout) if o != self.owner
        ]

    def _is_alive(self, owner_id: str) -> bool:
        return find_owner(self.folder, owner_id, self._now(), self._timeout) is not None

    def _take_from(self, holder: str, path: Path, content: bytes | None) -> bool:
        """Replace or remove the claim of a dead owner; False if another process is about to.

        Whoever makes the mark may do so. Without it, a slow one could remove the claim that a
        quick one had just put in the dead one's place.
        """
        mark = path.with_suffix(f".taken-{holder}")
        if not create_bytes(mark, self.owner.owner_id.encode(), sync=False):
            self._remove_dead_mark(mark)
            return False
        try:
            if _read_owner_id(path) != holder:
                return False
            if content is None:
                path.unlink(missing_ok=True)
            else:
                write_bytes(path, content, sync=False)
            return True
        finally:
            mark.unlink(missing_ok=True)

    def _remove_dead_mark(self, mark: Path) -> None:
        taker = _read_owner_id(mark)
        if taker is not None and not self._is_alive(taker):
            mark.unlink(missing_ok=True)

    def _remove_dead_temps(self) -> None:
        now = self._now()
        # A pid of another machine says nothing here; of those, only old files are removed.
        is_shared = any(owner.machine != machine_id() for owner in self.others())
        for path in self.folder.iterdir():
            pid = temp_pid(path.name)
            if pid is None:
                continue
            with suppress(FileNotFoundError):
                is_old = now - path.stat().st_mtime > self._timeout
                if is_old or (not is_shared and start_time(pid) is None):
                    path.unlink()

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
    if owner.machine == machine_id():
        started = start_time(owner.pid)
        if started is None or (started and owner.started and started != owner.started):
            return None
    return owner


def claims(folder: Path) -> dict[str, str]:
    """Return the claims in a lease folder: what is claimed, and the id of its owner."""
    return {path.stem: _read_owner_id(path) or "" for path in folder.glob("*.claim")}


def _read_owner_id(path: Path) -> str | None:
    """Return the owner that a file names; empty if it is damaged, None if it is not there."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return ""
    return text if _OWNER_ID.fullmatch(text) else ""
