"""Deaths of workers: crash notes that all workers of a run share, and which item or node to blame.

A worker that is killed with its whole job cannot say at what. The next one that takes its shard
finds the folder of the attempt, in which the position of the running batch is, and writes it down.
From the notes of a shard follows what to do with it: try again, halve a batch, or skip an item.
From those of a node follows whether workers and jobs avoid it.
"""

import logging
import os
from collections import Counter
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from espnet3.parallel.tasks import ShardTask
from espnet3.shards.commit import Done, discard_attempt, find_position
from espnet3.shards.file_access import is_there
from espnet3.shards.layout import origin_of_attempt, shard_of_attempt
from espnet3.shards.lease import TIMEOUT, Lease, find_owner, owner_path
from espnet3.shards.manifest import Manifest
from espnet3.shards.merge import read_coverage
from espnet3.shards.records import (
    DeathKind,
    DeathNote,
    RecordPaths,
    WorkerRecord,
    read_deaths,
    read_worker,
    write_death,
)

logger = logging.getLogger(__name__)
_FORGOTTEN = ".forgotten"
MIN_SHARDS = 3
"""Different shards that must have died on a node."""
MEMORY_SECONDS = 3600.0
"""For how long a node is held to what happened there: it may have been mended."""
_NEAR_LIMIT = 30.0  # seconds: heartbeats are 15 s apart, and clocks differ
Position = tuple[int, int]
"""The batch that was running: its first position, and the one behind its last."""


@dataclass(frozen=True)
class Death:
    """A worker that died at a shard, as far as one must know it to find the reason."""

    reason: str
    position: Position | None = None
    log: str = ""
    host: str = ""


@dataclass(frozen=True)
class Verdict:
    """What to do after a death: `again`, `halve` the batch, blame the `item`, or `give up`."""

    kind: Literal["again", "halve", "item", "give up"]
    start: int = -1
    stop: int = -1
    times: int = 0


@dataclass
class ShardDeaths:
    """What is known of the deaths of a shard's workers."""

    deaths: int = 0
    blamed: Counter[Position] = field(default_factory=Counter)
    is_isolating: bool = False
    machines: int = 0
    """Attempts that ended with trouble of their machine."""

    def judge(self, position: Position | None, task: ShardTask, retries: int) -> Verdict:
        """Count a death, and decide what to do next."""
        self.deaths += 1
        # At the end of the task the writers are being closed: no item is to blame.
        if position is None or position[0] >= task.stop:
            return Verdict("again" if self.deaths <= retries else "give up")
        self.blamed[position] += 1
        times = self.blamed[position]
        start, stop = position[0], min(position[1], task.stop)
        if times <= retries and not self.is_isolating:
            is_hopeless = self.deaths > 3 * (retries + 1)
            return Verdict("give up" if is_hopeless else "again", times=times)
        if stop - start > 1:
            self.is_isolating = True
            return Verdict("halve", start, stop, times)
        return Verdict("item", start, stop, times)


def forget_deaths(root: Path, shards: Collection[int] | None = None, *, owner_id: str = "") -> None:
    """Let items that killed their workers be tried again, in some shards or in all.

    With an owner, those of its workers only. What is known of the walltime stays: it is as true
    as before.
    """
    paths = RecordPaths(root)
    for note in read_deaths(paths):
        is_meant = owner_id in ("", note.owner_id) and (shards is None or note.shard in shards)
        if note.kind != "walltime" and is_meant:
            path = paths.deaths / f"{note.key}.json"
            with suppress(FileNotFoundError):
                os.rename(path, path.with_name(path.name + _FORGOTTEN))


def record_deaths(root: Path, attempts: Iterable[Path], lease: Lease) -> list[DeathNote]:
    """Note the deaths of workers that left these attempts behind, and remove the attempts.

    Those of living workers stay. The note comes first: without it the batch would be forgotten.

    Raises:
        FileSystemError: what one says cannot be read from here; it is left alone.
    """
    notes = []
    for attempt in attempts:
        origin = origin_of_attempt(attempt.name)
        if origin is None:  # of a driver that may be alive, or half removed: no item is blamed
            if lease.now() - _last_change(attempt) > TIMEOUT:
                discard_attempt(attempt)
            continue
        if origin[0] == lease.owner.owner_id or _may_be_alive(lease, origin[0], attempt):
            continue
        if note := _note_of(root, attempt, *origin, lease):
            if write_death(RecordPaths(root), note):
                logger.warning("Shard %d: %s", note.shard, note.reason)
            notes.append(note)
        discard_attempt(attempt)
    return notes


def _may_be_alive(lease: Lease, owner_id: str, attempt: Path) -> bool:
    if find_owner(lease.folder, owner_id, lease.now(), lease.timeout) is not None:
        return True
    if is_there(owner_path(lease.folder, owner_id)):
        return False  # those that are killed leave it behind
    # Its file may be there for all but us.
    return lease.now() - _last_change(attempt) < TIMEOUT


def _note_of(
    root: Path, attempt: Path, owner_id: str, began: int, lease: Lease
) -> DeathNote | None:
    shard = shard_of_attempt(attempt.name)
    if shard is None or not is_there(attempt):
        return None
    position = find_position(attempt)
    worker = read_worker(RecordPaths(root), owner_id)
    last_sign = max(_last_sign(lease, owner_id, worker), _last_change(attempt))
    kind: DeathKind = "died"
    limit = worker.limit if worker else None
    if limit is not None and last_sign > limit - _NEAR_LIMIT:
        kind = "walltime"
    elif position is None:
        kind = "machine"  # it had not begun: no item is to blame
    who = f"{worker.host}:{worker.pid}" if worker else f"worker {owner_id}"
    job = f" (job {worker.job_id})" if worker and worker.job_id else ""
    how = "was ended at its walltime" if kind == "walltime" else "vanished without a word"
    return DeathNote(
        shard,
        worker.host if worker else "",
        f"{who}{job} {how}",
        start=position[0] if position else None,
        stop=position[1] if position else None,
        kind=kind,
        seconds=round(max(last_sign - began, 0.0), 3),
        owner_id=owner_id,
        job_id=worker.job_id if worker else "",
        log=worker.log if worker else "",
        time=lease.now(),
        # Named by the attempt, so that two workers that find it write one note.
        note_id=attempt.name.rpartition(".part-")[2],
    )


def _last_sign(lease: Lease, owner_id: str, worker: WorkerRecord | None) -> float:
    """Return when an owner was last known to live: its last heartbeat, if it is still there."""
    with suppress(OSError):
        return owner_path(lease.folder, owner_id).stat().st_mtime
    return worker.seen if worker else 0.0


def _last_change(attempt: Path) -> float:
    """Return when something was last written to an attempt: heartbeats are seconds apart.

    Infinite if unknown: then the attempt is left alone.
    """
    last = 0.0
    try:
        last = attempt.stat().st_mtime
        for entry in os.scandir(attempt):
            last = max(last, entry.stat().st_mtime)
    except (FileNotFoundError, NotADirectoryError):  # gone meanwhile, or a part of it
        return last
    except OSError:
        return float("inf")
    return last


def deaths_at(notes: Iterable[DeathNote], root: Path) -> list[Death]:
    """Return the notes from which follows what item is to blame, in the dispatcher's words."""
    deaths = []
    for note in notes:
        if note.kind == "died":
            position = None if note.start is None or note.stop is None else (note.start, note.stop)
            log = str(root / note.log) if note.log else ""
            deaths.append(Death(note.reason, position, log, note.host))
    return deaths


def avoided_nodes(
    root: Path, manifest: Manifest, notes: Iterable[DeathNote], now: float
) -> dict[str, str]:
    """Return the nodes to avoid, each with the reason.

    Args:
        root: the run folder.
        manifest: its plan.
        notes: of all nodes, or of the one that is asked about.
        now: by the clock of the file system.
    """
    notes = [note for note in notes if note.time > now - MEMORY_SECONDS]
    died = {(note.host, note.shard) for note in notes if note.kind != "walltime"}
    n_shards = Counter(name for name, _ in died)
    if max(n_shards.values(), default=0) < MIN_SHARDS:
        return {}  # nearly always; and then no shard need be looked at
    return judge_nodes(notes, read_coverage(root, manifest).committed.values(), now)


def judge_nodes(
    notes: Iterable[DeathNote], committed: Iterable[Done], now: float
) -> dict[str, str]:
    """Return the nodes where several shards died and none was done since, but was elsewhere.

    If all nodes fail, the node is not to blame.
    """
    last: dict[str, float] = {}
    for done in committed:
        last[done.host] = max(last.get(done.host, 0.0), done.finished)
    by_host: dict[str, list[DeathNote]] = {}
    for note in notes:
        is_recent = note.time > max(now - MEMORY_SECONDS, last.get(note.host, 0.0))
        if note.kind != "walltime" and is_recent and note.host:
            by_host.setdefault(note.host, []).append(note)
    bad = {}
    for host, found in by_host.items():
        shards = sorted({note.shard for note in found})
        since = min(note.time for note in found)
        others = [finished for other, finished in last.items() if other != host]
        if len(shards) >= MIN_SHARDS and max(others, default=0.0) > since:
            bad[host] = _why(found, shards)
    return bad


def _why(notes: list[DeathNote], shards: list[int]) -> str:
    shown = ", ".join(map(str, shards[:5])) + (", ..." if len(shards) > 5 else "")
    latest = max(notes, key=lambda note: note.time)
    return (
        f"attempts at {len(shards)} shards ({shown}) ended there without a result, and none was "
        f"finished since; the last one: {latest.reason}"
    )
