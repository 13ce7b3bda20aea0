"""Fault policy of a run, its errors, crash notes and stop marks.

A worker that is killed with its whole job cannot say at what. The next one that takes its shard
finds the folder of the attempt, in which the position of the running batch is, and writes it down.
From the notes of a shard follows what to do with it: try again, halve a batch, or skip an item.
From those of a node follows whether workers and jobs avoid it.

A stop mark ends the drivers and workers of a run that was cancelled or has failed.
"""

import logging
import os
import shlex
import threading
from collections import Counter
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from espnet3.commands import same_command
from espnet3.errors import (
    ConfigError,
    EspnetError,
    FileSystemError,
    IncompleteRunError,
    ItemError,
    ProviderError,
    RunFolderError,
    WorkerError,
)
from espnet3.io.shared_files import is_there
from espnet3.parallel.signals import Interruption, ReleaseClaims
from espnet3.parallel.tasks import Died, Failure, ShardAttempt, Stopped
from espnet3.shards.commit import Done, discard_attempt, find_position
from espnet3.shards.layout import origin_of_attempt, shard_of_attempt
from espnet3.shards.lease import TIMEOUT, Lease, find_owner, owner_path
from espnet3.shards.manifest import Manifest
from espnet3.shards.merge import read_coverage
from espnet3.shards.records import (
    CrashNote,
    DeathKind,
    RecordPaths,
    StopMark,
    WorkerRecord,
    clear_stop,
    read_deaths,
    read_stop,
    read_worker,
    write_death,
)
from espnet3.text import count, end_of_log

logger = logging.getLogger(__name__)

MAX_EARLY_DEATHS = 3
"""Workers in a row that may die before their first item: then it is not the item."""
_FORGOTTEN = ".forgotten"
MIN_SHARDS = 3
"""Different shards that must have died on a node."""
MEMORY_SECONDS = 3600.0
"""For how long a node is held to what happened there: it may have been mended."""
_NEAR_LIMIT = 30.0  # seconds: heartbeats are 15 s apart, and clocks differ
Position = tuple[int, int]
"""The batch that was running: its first position, and the one behind its last."""
_LOOK_SECONDS = 5.0  # the user who typed `cancel` waits


@dataclass(frozen=True)
class Death:
    """A worker that died at a shard, as far as one must know it to find the reason."""

    reason: str
    position: Position | None = None
    log: str = ""
    host: str = ""


class EarlyDeaths(WorkerError):
    """Workers die before their first item: it is their machine, or the code."""


@dataclass(frozen=True)
class FaultPolicy:
    """Fault policy of a run."""

    skip_errors: bool = False
    max_errors: int | None = None
    retries: int = 3
    item_timeout: float | None = None
    start_timeout: float = 3600.0
    config_block: str = ""
    """Where the runner's settings come from, if from a config."""

    def setting(self, name: str, value: str) -> str:
        """Return how to change a setting of the runner."""
        if not self.config_block:
            return f"set the runner's {name} to {value}"
        override = f"{self.config_block}.{name}={value}"
        line = same_command(override)
        return f"set {override}" if line == override else f"type: {line}"


def keeps_dying(task: ShardAttempt, event: Death) -> str:
    """Say that a shard's workers die at no particular item."""
    log = f" Log: {event.log}" if event.log else ""
    return (
        f"The workers of shard {task.shard} (items {task.start} to {task.stop - 1}) keep dying, "
        f"at different items or in close_writers; the last one: {event.reason}. If memory grows "
        f"from item to item, use more and smaller shards: shards_per_worker: 64.{log}"
    )


def no_worker_message(policy: FaultPolicy, waiting: str) -> str:
    """Say that no worker came in time, and why, as far as that is known."""
    advice = waiting or "Look at the logs of the workers' jobs."
    return (
        f"No worker was there for {policy.start_timeout:g} s. {advice} To wait for longer, raise "
        "parallel.start_timeout."
    )


def too_many_message(n_failed: int, policy: FaultPolicy) -> str:
    """Say that more items failed than may."""
    return (
        f"{count(n_failed, 'item')} failed, more than max_errors={policy.max_errors}. Raise "
        "max_errors, or fix the cause; to run them again, "
        f"{policy.setting('retry_failed', 'true')}"
    )


def skip_advice(policy: FaultPolicy) -> str:
    """Say how to continue where an item kills its worker."""
    return (
        " If memory runs out, use fewer workers or smaller batches; to continue without it, "
        f"{policy.setting('on_error', 'skip')}"
    )


def describe_failure(failure: Failure) -> str:
    """Return what failed, where, and the user's traceback."""
    log = f", log {failure.log}" if failure.log else ""
    is_batch = isinstance(failure.index, list)
    id = f"{failure.ids[0]}, " if failure.ids else ""
    what = (
        f"{failure.name}, given to forward() as a list,"
        if is_batch
        else f"Item {failure.index!r} ({id}position {failure.position})"
    )
    head = (
        f"{what} of shard {failure.shard} failed on "
        f"{failure.host}, pid {failure.pid}{log}: {failure.error}"
    )
    return f"{head}\n\n{failure.traceback.rstrip()}\n" if failure.traceback else head


def error_of(stopped: Stopped, policy: FaultPolicy) -> EspnetError:
    """Return the error with which a run stops, built from one message."""
    failure = stopped.failure
    if stopped.kind == "config":
        # As it was raised, it knows its key; but not if a secret was taken out of its text.
        own = stopped.original
        if isinstance(own, ConfigError) and str(own) == failure.error:
            return own
        return ConfigError(failure.error)
    if stopped.kind in ("provider", "load"):
        if not failure.traceback:
            return ProviderError(failure.error)
        where = f"on {failure.host}{', log ' + failure.log if failure.log else ''}"
        return ProviderError(
            f"The provider or runner failed {where}: {failure.error}\n\n{failure.traceback}"
        )
    if stopped.kind == "node":
        return FileSystemError(
            f"Shard {failure.shard} could not be written or published on {failure.host}: "
            f"{failure.error}. Finished shards are kept, as they are.",
            fix="Run the same command again when the file system is back.",
        )
    if stopped.kind in ("disk", "lost"):
        return RunFolderError(
            f"Shard {failure.shard} could not be written on {failure.host}: {failure.error}.",
            fix="Make "
            "room or fix the folder, then run the same command again: finished shards are kept.",
        )
    return ItemError(
        f"{describe_failure(failure)}\nFinished shards are kept. To skip failing items, "
        f"{policy.setting('on_error', 'skip')}"
    )


def dies_at_once(event: Died) -> str:
    """Say that workers cannot even start, with the end of the last one's log."""
    return (
        f"{MAX_EARLY_DEATHS} workers died before their first item, the last one: {event.reason}. "
        f"Look at {event.log or 'the messages above'}; to see the error in this process, set "
        f"parallel.n_workers: 1.{end_of_log(Path(event.log) if event.log else None)}"
    )


@dataclass(frozen=True)
class Verdict:
    """Decision after a death: `retry`, `halve` the batch, blame the `item`, or `give up`."""

    kind: Literal["retry", "halve", "item", "give up"]
    start: int = -1
    stop: int = -1
    times: int = 0


@dataclass
class ShardDeaths:
    """Deaths of a shard's workers, and the verdict on the next one."""

    deaths: int = 0
    blamed: Counter[Position] = field(default_factory=Counter)
    is_isolating: bool = False
    machines: int = 0
    """Attempts that ended with a machine error."""

    def judge(self, position: Position | None, task: ShardAttempt, retries: int) -> Verdict:
        """Count a death, and decide what to do next."""
        self.deaths += 1
        # At the end of the task the writers are being closed: no item is to blame.
        if position is None or position[0] >= task.stop:
            return Verdict("retry" if self.deaths <= retries else "give up")
        self.blamed[position] += 1
        times = self.blamed[position]
        start, stop = position[0], min(position[1], task.stop)
        # While a batch is being taken apart, one death is enough: that it kills is known by then.
        if times <= retries and not self.is_isolating:
            # Deaths at ever new positions point to no item, and retrying would never end.
            is_hopeless = self.deaths > 3 * (retries + 1)
            return Verdict("give up" if is_hopeless else "retry", times=times)
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


def record_deaths(root: Path, attempts: Iterable[Path], lease: Lease) -> list[CrashNote]:
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
) -> CrashNote | None:
    shard = shard_of_attempt(attempt.name)
    # Another worker may have noted it, and removed it, since the folder was listed.
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
    return CrashNote(
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


def deaths_at(notes: Iterable[CrashNote], root: Path) -> list[Death]:
    """Return the notes from which follows what item is to blame, in the dispatcher's words."""
    deaths = []
    for note in notes:
        if note.kind == "died":
            position = None if note.start is None or note.stop is None else (note.start, note.stop)
            log = str(root / note.log) if note.log else ""
            deaths.append(Death(note.reason, position, log, note.host))
    return deaths


def avoided_nodes(
    root: Path, manifest: Manifest, notes: Iterable[CrashNote], now: float
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
    notes: Iterable[CrashNote], committed: Iterable[Done], now: float
) -> dict[str, str]:
    """Return the nodes where several shards died and none was done since, but was elsewhere.

    If all nodes fail, the node is not to blame.
    """
    last: dict[str, float] = {}
    for done in committed:
        last[done.host] = max(last.get(done.host, 0.0), done.finished)
    by_host: dict[str, list[CrashNote]] = {}
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


def _why(notes: list[CrashNote], shards: list[int]) -> str:
    shown = ", ".join(map(str, shards[:5])) + (", ..." if len(shards) > 5 else "")
    latest = max(notes, key=lambda note: note.time)
    return (
        f"attempts at {len(shards)} shards ({shown}) ended there without a result, and none was "
        f"finished since; the last one: {latest.reason}"
    )


class StopWatch:
    """Interrupts a driver as soon as its run is stopped.

    A thread looks for the mark: where items run in this very process, nothing else could before the
    shard is over.
    """

    def __init__(self, root: Path, interruption: Interruption) -> None:
        self._root, self._interruption = root, interruption
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stop mark", daemon=True)
        self.mark: StopMark | None = None
        """The mark that was found."""

    def __enter__(self) -> "StopWatch":
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(_LOOK_SECONDS):
            try:
                self.mark = read_stop(RecordPaths(self._root))
            except OSError:  # reported where the folder is used
                continue
            if self.mark is not None:
                self._interruption.interrupt(str(stop_error(self._root, self.mark)))
                return


def stop_error(root: Path, mark: StopMark) -> EspnetError:
    """Return the error of a driver whose run was stopped by another process."""
    if mark.kind == "failed":
        return WorkerError(
            f"The run in {root} was stopped by {mark.by or 'a worker'}: {mark.reason}"
        )
    by = mark.by or "an unknown user"
    why = "" if mark.reason == f"cancelled by {by}" else f" ({mark.reason})"
    # Only detached runs have this file; for others, `resume` has nothing that it could submit.
    again = "" if RecordPaths(root).run.exists() else ", then run the same command again"
    return IncompleteRunError(
        f"The run in {root} was cancelled by {by}{why}. Finished shards are kept. To continue: "
        f"espnet3 resume {shlex.quote(str(root))}{again}"
    )


def check_stop(root: Path) -> None:
    """Let a detached worker continue only if the run was not stopped.

    Raises:
        ReleaseClaims: with the reason.
    """
    mark = read_stop(RecordPaths(root))
    if mark is not None:
        raise stopped_by(mark)


def stopped_by(mark: StopMark) -> ReleaseClaims:
    """Return what ends a worker of a run that was stopped."""
    by = f" by {mark.by}" if mark.by else ""
    reason = f"the run was {'cancelled' if mark.kind == 'cancelled' else 'stopped'}{by}"
    code = 0 if mark.kind == "cancelled" else 1
    # Without a reason the mark only says that the run was cancelled, which is said already.
    why = "" if reason.endswith(mark.reason) else f": {mark.reason}"
    return ReleaseClaims(f"{reason}{why}", code=code, ends_all=False)


def refuse_cancelled(root: Path) -> None:
    """Let a driver begin only if the run was not cancelled; what merely failed is retried.

    Raises:
        IncompleteRunError: with the user that cancelled it, and how to continue.
    """
    mark = read_stop(RecordPaths(root))
    if mark is not None and mark.kind == "cancelled":
        raise stop_error(root, mark)
    forgive(root)


def forgive(root: Path) -> None:
    """Remove the mark that keeps workers from a run; after a failure, forget the deaths too.

    The user looked at what failed and wants it to be tried again.
    """
    paths = RecordPaths(root)
    mark = read_stop(paths)
    if mark is None:
        return
    if mark.kind == "failed":
        # Before the mark goes: workers begin as soon as it does, and read what was noted.
        forget_deaths(root)
    clear_stop(paths)
