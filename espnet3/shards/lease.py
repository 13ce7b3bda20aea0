"""Leases: owner files with a heartbeat, and claims that name an owner.

Leases only spare double work; what keeps outputs right is the commit. So a lease may be taken over
whenever its owner looks dead, and being wrong about that costs time, not results.

On a network file system the names of others' new files may be seen late. So an owner whose file is
not to be seen is dead only if its claim is old, and heartbeats are read from an open file, for
which the server is asked. An owner whose file cannot be read is judged by the time of its last
heartbeat, and counts as alive where not even that is known.
"""

import json
import logging
import os
import random
import re
import shlex
import socket
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

from espnet3 import __version__
from espnet3.errors import RunFolderError
from espnet3.io.atomic import create_bytes, temp_pid, write_bytes
from espnet3.io.shared_files import (
    Count,
    DamagedFileError,
    Name,
    Pid,
    Version,
    look_time,
    names_in,
    share_folder,
    versions_in,
)
from espnet3.schedulers import current_job, node_name
from espnet3.shards.layout import claimed_name, leases_folder

__all__ = [
    "HEARTBEAT", "TIMEOUT", "Lease", "Owner", "claims", "find_owner",
    "living_owners", "machine_id", "start_time",
]  # fmt: skip
logger = logging.getLogger(__name__)

HEARTBEAT = 15.0
"""Seconds between two heartbeats. A thousand workers share one file server: each may ask it for
something every four seconds while it runs a long shard, its other signs of life included."""
TIMEOUT = 60.0
"""Seconds without a heartbeat after which an owner counts as dead."""
_LATE_BEAT = 2.5 * HEARTBEAT
_CLOCK_SECONDS = 60.0  # between two looks at the file system's clock; `monotonic` carries it on
_OWNER_ID = re.compile("[0-9a-f]{16}")
_READABLE = 0o644  # whatever the umask: an unreadable lease cannot be respected
_MAX_PID = 2**31 - 1
_N_LIVING = 3
_N_LOOKED_AT = 16  # most of them may be dead, and not yet swept
_TYPES = {
    "host": str, "machine": str, "pid": int, "started": int, "job_id": str, "owner_id": str,
    "version": str,
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
    version: str = ""
    """Of the ESPnet3 that it runs; empty in owner files of versions before 0.2.0."""

    @classmethod
    def of_this_process(cls) -> "Owner":
        """Describe the calling process."""
        job, pid = current_job(), os.getpid()
        job_id = job.job_id if job else ""
        started = start_time(pid) or 0
        return cls(node_name(), machine_id(), pid, started, job_id, version=__version__)

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
    # Not isinstance, to which True is an int.
    wrong = [name for name, kind in _TYPES.items() if type(getattr(owner, name)) is not kind]
    if wrong or not 0 < owner.pid <= _MAX_PID:
        raise DamagedFileError(f"An owner file is damaged: {', '.join(wrong) or 'pid'}.")
    return owner


def unknown_owner(owner_id: str) -> Owner:
    """Return an owner of which only its heartbeat is known."""
    return Owner("unknown", "", 0, 0, owner_id=owner_id)


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
    # The program's name stands in parentheses, and may itself hold blanks and parentheses.
    fields = stat.rpartition(")")[2].split()
    # A zombie works no more, but keeps its pid until its parent asks for the exit code.
    is_zombie = fields[0] in "ZX"
    # Field 22 of proc(5), counted from the third, which follows the parenthesis.
    return None if is_zombie else int(fields[19])


def _alive_by_signal(pid: int) -> int | None:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return None
    except PermissionError:
        pass  # alive, but another user's
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
        self._path = owner_path(self.folder, self.owner.owner_id)
        self._names: set[str] = set()
        self._clock = (time.time(), time.monotonic())
        self._beat = time.monotonic()
        self._gap, self._gap_until = 0.0, 0.0
        self.taken_over: set[str] = set()
        """Claims of ours that had been a dead owner's."""
        self._stop = threading.Event()
        # A thread, so that a long call of the user's code does not look like a death.
        self._thread = threading.Thread(target=self._beat_until_stopped, daemon=True)

    def __enter__(self) -> "Lease":
        with suppress(FileExistsError):  # not `exist_ok`, which looks, and may not see it yet
            self.folder.mkdir(parents=True)
            share_folder(self.folder, is_writable=True)
        self._sign_in()
        self._gap_until = 0.0  # before this, nothing was missed
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        # Before the file is removed: a late heartbeat would miss it, and sign in again.
        self._thread.join()
        try:
            for name in list(self._names):
                self.release(name)
            self._path.unlink(missing_ok=True)
        except OSError as error:  # what ended the work matters more; a lease ends by itself
            logger.warning("%s could not be given back: %s", self._path, error)

    def _sign_in(self) -> None:
        # Not forced to disk: after a power cut the owner is dead as well.
        content = json.dumps(asdict(self.owner)).encode()
        create_bytes(self._path, content, sync=False, permissions=_READABLE)
        self._note_beat(looks_at_clock=True)

    def _beat_until_stopped(self) -> None:
        while not self._stop.wait(self._heartbeat):
            self.beat()

    def beat(self) -> None:
        """Say that the owner is alive. The file system's clock is used, never this machine's."""
        try:
            try:
                os.utime(self._path)
                is_old = time.monotonic() - self._clock[1] >= _CLOCK_SECONDS
                self._note_beat(looks_at_clock=is_old)
            except FileNotFoundError:  # suspended for long, taken for dead and swept
                self._sign_in()
        except OSError as error:  # a full or absent file system must not stop the work
            logger.warning("No heartbeat could be written to %s: %s", self._path, error)

    def claim(self, name: str) -> bool:
        """Claim `name`; False if a living owner has it."""
        path = claim_path(self.folder, name)
        content = self.owner.owner_id.encode()
        # Before the file exists: a claim that is interrupted half-way is released at the end, too.
        self._names.add(name)
        for _ in range(3):  # a claim may vanish or change between two looks
            if create_bytes(path, content, sync=False, permissions=_READABLE):
                return True
            found = _read_claim(path)
            if found is not None and found.owner_id == self.owner.owner_id:
                return True
            if found is None:  # given back just now, or so new that it is not to be seen here yet
                continue
            if self._is_alive(found):
                break
            if self._take_from(found, path, content):
                self.taken_over.add(name)
                return True
        self._names.discard(name)
        return False

    def release(self, name: str) -> None:
        """Give up a claim, so that others may take it at once."""
        path = claim_path(self.folder, name)
        self._names.discard(name)
        found = _read_claim(path)
        # While we counted as dead, another owner may have taken it over; theirs must stay.
        if found is not None and found.owner_id == self.owner.owner_id:
            path.unlink(missing_ok=True)

    def is_held(self, name: str) -> bool:
        """Tell whether a living owner has claimed `name`; a look that changes nothing."""
        return self.holder(name) is not None

    def holder(self, name: str) -> str | None:
        """Return the id of the living owner of the claim on `name`; None if there is none."""
        found = _read_claim(claim_path(self.folder, name))
        return found.owner_id if found is not None and self._is_alive(found) else None

    def now(self) -> float:
        """Return the time by the clock of the file system, which heartbeats are compared with."""
        then, since = self._clock
        return then + time.monotonic() - since

    @property
    def timeout(self) -> float:
        """Seconds without a heartbeat after which another owner counts as dead.

        More when ours was not heard for a while either: the file server was away, or this machine
        asleep, and others may need a moment longer to come back.
        """
        silent = time.monotonic() - self._beat
        if self._is_gap(silent):
            return self._timeout + silent
        return self._timeout + (self._gap if time.monotonic() < self._gap_until else 0.0)

    def _is_gap(self, seconds: float) -> bool:
        return seconds > max(self._timeout / 2, 3 * self._heartbeat)

    def sweep(self) -> None:
        """Remove what dead owners left in the lease folder."""
        # Each owner is looked up after the file that names it: one that comes in meanwhile lives.
        names = names_in(self.folder)
        for name in filter(claimed_name, names):
            found = _read_claim(self.folder / name)
            if found is not None and not self._is_alive(found):
                self._take_from(found, self.folder / name, None)
        for name in names:
            is_temp = name.startswith(".")  # of a mark that is just being made
            if ".taken-" in name and not is_temp:
                self._remove_dead_mark(self.folder / name)
        for owner_id in _owner_ids(names_in(self.folder)):
            if find_owner(self.folder, owner_id, self.now(), self.timeout) is None:
                # Last: for a minute, a claim without an owner file counts as a newcomer's.
                owner_path(self.folder, owner_id).unlink(missing_ok=True)
        self._remove_dead_temps()

    def others(self) -> list[Owner]:
        """Return the other living owners in this folder."""
        return list(self.each_other())

    def each_other(self) -> Iterator[Owner]:
        """Yield the same one by one, in random order, for a caller that stops at the first one."""
        owner_ids = _owner_ids(names_in(self.folder))
        random.shuffle(owner_ids)
        for owner_id in owner_ids:
            owner = find_owner(self.folder, owner_id, self.now(), self.timeout)
            if owner is not None and owner != self.owner:
                yield owner

    def refuse_other_versions(self) -> None:
        """Refuse to share the folder with a living owner that runs another version of ESPnet3.

        Raises:
            RunFolderError: naming both, and what to do.
        """
        found = _others_of(self.folder, self.owner.owner_id, self.now(), self.timeout)
        _refuse_other_versions(self.folder, found)

    def _is_alive(self, claim: "_Claim") -> bool:
        """Tell whether the owner of a claim or mark is alive."""
        now = self.now()
        if not claim.is_readable:
            # Unreadable is not dead: another user's umask may hide what a living worker holds.
            return now - claim.since < self._timeout or self._lives_one_of(claim.user)
        if not claim.owner_id:  # damaged
            return False
        sign = _last_sign(owner_path(self.folder, claim.owner_id))
        if sign is None:
            return now - claim.since < self._timeout  # its file may be there for all but us
        return _owner_if_alive(sign, claim.owner_id, now, self.timeout) is not None

    def _lives_one_of(self, user: int | None) -> bool:
        """Tell whether an owner is alive that may have made a claim that we cannot read.

        Claims that a dead one left are for the living of the same user to take: they can read them.
        """
        for owner in self.each_other():
            with suppress(OSError):
                of_owner = os.stat(owner_path(self.folder, owner.owner_id)).st_uid
                if user is not None and of_owner != user:
                    continue
            return True
        return False

    def _take_from(self, holder: "_Claim", path: Path, content: bytes | None) -> bool:
        """Replace or remove the claim of a dead owner; False if another process is about to.

        Whoever makes the mark may do so. Without it, a slow one could remove the claim that a
        quick one had just put in the dead one's place.
        """
        # With the dead owner's id in its name, a mark left behind cannot block later takeovers.
        mark = path.with_suffix(f".taken-{holder.owner_id}")
        own_id = self.owner.owner_id.encode()
        if not create_bytes(mark, own_id, sync=False, permissions=_READABLE):
            self._remove_dead_mark(mark)
            return False
        try:
            if _read_claim(path) != holder:  # also one that became readable, or is newer
                return False
            if content is None:
                path.unlink(missing_ok=True)
            else:
                # One rename: between a removal and a new claim, the name would be free for others.
                write_bytes(path, content, sync=False, permissions=_READABLE)
            return True
        finally:
            mark.unlink(missing_ok=True)

    def _remove_dead_mark(self, mark: Path) -> None:
        taker = _read_claim(mark)
        if taker is not None and not self._is_alive(taker):
            mark.unlink(missing_ok=True)

    def _remove_dead_temps(self) -> None:
        now = self.now()
        # A pid of another machine says nothing here; of those, only old files are removed.
        is_shared = any(owner.machine != machine_id() for owner in self.each_other())
        for name in names_in(self.folder):
            pid, path = temp_pid(name), self.folder / name
            if pid is None:
                continue
            with suppress(FileNotFoundError):
                is_old = now - path.stat().st_mtime > self._timeout
                if is_old or (not is_shared and start_time(pid) is None):
                    path.unlink()

    def _note_beat(self, *, looks_at_clock: bool) -> None:
        """Note that a heartbeat was written, and what the clock of the file system says of it.

        Not of this machine, whose own may be off, and stands still while it sleeps.
        """
        silent = time.monotonic() - self._beat
        if looks_at_clock:
            now = self._path.stat().st_mtime
            silent = max(silent, now - self.now())
            self._clock = (now, time.monotonic())
        if self._is_gap(silent):
            self._gap, self._gap_until = silent, time.monotonic() + self._timeout
        self._beat = time.monotonic()


@dataclass(frozen=True)
class _Claim:
    owner_id: str
    """Empty if the file is damaged, or cannot be read."""
    since: float
    """When it was made, by the clock of the file system."""
    is_readable: bool = True
    user: int | None = None
    """Of one that cannot be read, whose file it is, as far as that is known."""


@dataclass(frozen=True)
class _Sign:
    """The last sign of life of an owner."""

    content: bytes | None
    """What its file says; None if it cannot be read."""
    beat: float
    """By the clock of the file system."""


def claim_path(folder: Path, name: str) -> Path:
    """Return the claim file of `name` in a lease folder."""
    return folder / f"{name}.claim"


def owner_path(folder: Path, owner_id: str) -> Path:
    """Return the file in a lease folder that an owner keeps fresh."""
    return folder / f"{owner_id}.owner"


def _owner_ids(names: list[str]) -> list[str]:
    return [
        name.removesuffix(".owner")
        for name in names
        # A dot is that of a temp file, of an owner that is just signing in.
        if name.endswith(".owner") and not name.startswith(".")
    ]


def count_owners(folder: Path) -> int:
    """Return how many owners a lease folder has, dead ones that were not swept included."""
    return len(_owner_ids(names_in(folder)))


def living_owners(folder: Path, now: float | None = None) -> list[Owner]:
    """Return the owners in a lease folder that have a heartbeat.

    Args:
        folder: the lease folder.
        now: by the clock of the file system; looked up if None.

    Raises:
        FileSystemError: if the folder cannot be listed from here, which says nothing of owners in
            it.
    """
    owner_ids = _owner_ids(names_in(folder))
    if owner_ids and now is None:
        now = look_time(folder)
    found = (find_owner(folder, owner_id, now or 0.0, TIMEOUT) for owner_id in owner_ids)
    return [owner for owner in found if owner is not None]


def refuse_other_versions(root: Path) -> None:
    """Do what `Lease.refuse_other_versions` does, for one who takes no lease.

    Every command that changes a run in which others may work asks first, here or with its lease;
    those that refuse all company, as `tidy`, need not.

    Raises:
        RunFolderError: naming both, and what to do.
    """
    folder = leases_folder(root)
    if _owner_ids(names_in(folder)):
        _refuse_other_versions(folder, _others_of(folder, "", look_time(folder), TIMEOUT))


def _others_of(folder: Path, owner_id: str, now: float, timeout: float) -> Iterator[Owner]:
    """Yield some living owners, at random, without looking at many that are dead."""
    owner_ids = [each for each in _owner_ids(names_in(folder)) if each != owner_id]
    n_living = 0
    for other in random.sample(owner_ids, min(_N_LOOKED_AT, len(owner_ids))):
        if (owner := find_owner(folder, other, now, timeout)) is not None:
            yield owner
            n_living += 1
        if n_living == _N_LIVING:
            return


def _refuse_other_versions(folder: Path, owners: Iterable[Owner]) -> None:
    # A few are looked at: where a version works alone, all of them have it.
    for owner in owners:
        # Of one whose file cannot be read nothing is known but that it lives.
        if not owner.pid or owner.version == __version__:
            continue
        theirs, quoted = owner.version or "an earlier version", shlex.quote(str(folder.parent))
        raise RunFolderError(
            f"{owner} works in {folder.parent} with ESPnet3 {theirs}, and this is "
            f"{__version__}. Two versions do not share a run folder.",
            fix=f"Wait for its end (espnet3 wait {quoted}), or end it (espnet3 cancel "
            f"{quoted}), then run the same command again: finished shards are kept.",
        )


def find_owner(folder: Path, owner_id: str, now: float, timeout: float) -> Owner | None:
    """Return an owner if it is alive: heartbeat fresh and, on this machine, process there.

    One whose file cannot be read is alive while its heartbeat is fresh; its host is not known.
    """
    sign = _last_sign(owner_path(folder, owner_id))
    return None if sign is None else _owner_if_alive(sign, owner_id, now, timeout)


def _owner_if_alive(sign: _Sign, owner_id: str, now: float, timeout: float) -> Owner | None:
    if now - sign.beat > timeout:
        return None
    if sign.content is None:
        return unknown_owner(owner_id)
    try:
        owner = parse_owner(sign.content)
    except DamagedFileError:
        return None
    if owner.machine == machine_id():
        started = start_time(owner.pid)
        # A start time of 0 is unknown, on either side, and proves nothing.
        if started is None or (started and owner.started and started != owner.started):
            return None
    return owner


def _last_sign(path: Path) -> _Sign | None:
    """Return the last sign of life of an owner; None if its file is not there."""
    try:
        return _Sign(*_read_with_time(path))
    except FileNotFoundError:
        return None
    except OSError:
        pass
    # `stat` needs no permission to read the file itself.
    try:
        return _Sign(None, path.stat().st_mtime)
    except FileNotFoundError:
        return None
    except OSError:
        return _Sign(None, float("inf"))  # cannot be judged, so it counts as alive


def claims(folder: Path) -> dict[str, str]:
    """Return the claims in a lease folder: what is claimed, and the id of its owner."""
    found = {}
    for file_name in names_in(folder):
        name = claimed_name(file_name)
        if name and not name.startswith("."):
            found[name] = _read_claim(folder / file_name)
    return {name: claim.owner_id for name, claim in found.items() if claim is not None}


@dataclass(frozen=True)
class LeaseLook:
    """The living owners and the claims at one moment."""

    owners: dict[str, Owner] = field(default_factory=dict)
    """Those that are alive, by id."""
    beats: dict[str, float] = field(default_factory=dict)
    """When each of them gave its last sign of life."""
    claims: dict[str, tuple[str, float]] = field(default_factory=dict)
    """What is claimed: the id of the owner, and since when."""


class LeaseView:
    """The owners and claims of a run, for callers that show them again and again.

    A look takes one listing, with the times of the files. Opened are only files that are new, and
    owners whose heartbeat is late: a network file system may remember an older time.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._contents: dict[tuple[str, int], bytes] = {}
        self._claims: dict[tuple[str, Version], _Claim] = {}

    def look(self, now: float) -> LeaseLook:
        """Return what is there.

        Args:
            now: by the clock of the file system.

        Raises:
            FileSystemError: if the folder cannot be listed from here.
        """
        look = LeaseLook()
        contents, known = self._contents, self._claims
        self._contents, self._claims = {}, {}
        for name, version in versions_in(self._folder).items():
            if owner_ids := _owner_ids([name]):
                inode, beat = version or (0, 0.0)
                content = contents.get((name, inode))
                is_fresh = content is not None and now - beat < _LATE_BEAT
                sign = _Sign(content, beat) if is_fresh else _last_sign(self._folder / name)
                if sign is not None and sign.content is not None:
                    self._contents[name, inode] = sign.content
                owner = _owner_if_alive(sign, owner_ids[0], now, TIMEOUT) if sign else None
                if sign and owner:
                    look.owners[owner_ids[0]], look.beats[owner_ids[0]] = owner, sign.beat
            elif (claimed := claimed_name(name)) and not claimed.startswith("."):
                claim = known.get((name, version)) if version else None
                claim = claim or _read_claim(self._folder / name)
                if claim is not None:
                    look.claims[claimed] = (claim.owner_id, claim.since)
                if claim is not None and version:
                    self._claims[name, version] = claim
        return look


def _read_claim(path: Path) -> _Claim | None:
    """Return what a claim says; None if it is not there."""
    try:
        data, since = _read_with_time(path)
    except FileNotFoundError:
        return None
    except OSError:
        return _unreadable_claim(path)
    text = data.decode("ascii", "replace")
    return _Claim(text if _OWNER_ID.fullmatch(text) else "", since)


def _unreadable_claim(path: Path) -> _Claim | None:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    except OSError:
        return _Claim("", float("inf"), is_readable=False)
    return _Claim("", stat.st_mtime, is_readable=False, user=stat.st_uid)


def _read_with_time(path: Path) -> tuple[bytes, float]:
    # Opening a file makes NFS ask the server; a mere `stat` may be answered from its memory.
    with path.open("rb", buffering=0) as file:
        return file.read(), os.fstat(file.fileno()).st_mtime
