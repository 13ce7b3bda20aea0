"""Records of detached workers, jobs, deaths and stop marks in a run folder.

Each process writes its own files only, so that none needs a lock: submitted jobs (`jobs/`), workers
that are or were there (`workers/`), crash notes (`deaths/`), and the stop mark (`stop.json`).
"""

import os
import random
import re
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from espnet3.io.atomic import create_bytes, dump_json, write_json
from espnet3.io.shared_files import (
    Count,
    DamagedFileError,
    FolderClock,
    JobId,
    LogText,
    Moment,
    Name,
    PathText,
    Pid,
    Seconds,
    is_log_name,
    is_there,
    look_time,
    read_or_skip,
    read_record,
    versions_in,
    warn_once,
)
from espnet3.shards.commit import Done
from espnet3.shards.lease import Owner

_FOLDER = "detached"
_READABLE = 0o644  # whatever the umask: workers of a second user must be counted, too
_WRITE_SECONDS = 60.0
_NOT_IN_NAMES = re.compile(r"[^\w.-]+", re.ASCII)

T = TypeVar("T")
DeathKind = Literal["died", "machine", "walltime"]
StopKind = Literal["cancelled", "failed"]


@dataclass(frozen=True)
class RecordPaths:
    """Paths of the records of a run: the only place that spells these names."""

    root: Path

    @property
    def folder(self) -> Path:
        """All of them."""
        return self.root / _FOLDER

    @property
    def run(self) -> Path:
        """The description of the run, to read."""
        return self.folder / "run.json"

    @property
    def code(self) -> Path:
        """The runner and what its workers need, serialised."""
        return self.folder / "code.pkl"

    def parallel(self, env: str) -> Path:
        """The `parallel` block with which workers were last submitted to a backend."""
        return self.folder / f"parallel-{env}.json"

    def unseen(self, env: str) -> Path:
        """The jobs of which a scheduler said nothing when it was asked, and how often."""
        return self.folder / f"unseen-{env}.json"

    def watch(self, minute: int) -> Path:
        """Says that a worker compares the jobs with what the scheduler says, in this minute."""
        return self.folder / f"watch.{minute}"

    def refused(self, env: str, job: str) -> Path:
        """Says that a job could not submit its successor, and when it last tried."""
        return self.folder / _NOT_IN_NAMES.sub("_", f"refused-{env}-{job}")

    def successor(self, env: str, job: str) -> Path:
        """Says that a job has a successor; named after the job, so that one look is enough."""
        return self.jobs / _NOT_IN_NAMES.sub("_", f"{env}-{job}.successor")

    @property
    def jobs(self) -> Path:
        """A record per submitted job, or per process that was started."""
        return self.folder / "jobs"

    @property
    def workers(self) -> Path:
        """A record per worker that ever began."""
        return self.folder / "workers"

    @property
    def deaths(self) -> Path:
        """A note per attempt that a worker did not survive."""
        return self.folder / "deaths"

    @property
    def stop(self) -> Path:
        """Stop mark: makes workers end, and says why."""
        return self.folder / "stop.json"


def make_folders(root: Path) -> RecordPaths:
    """Make the folders for the records of a run."""
    paths = RecordPaths(root)
    for folder in (paths.jobs, paths.workers, paths.deaths):
        folder.mkdir(parents=True, exist_ok=True)
    return paths


@dataclass(frozen=True)
class JobRecord:
    """A job that was submitted for one worker; on this machine, a process that was started."""

    env: Name
    job_id: JobId
    """The scheduler's number; of a process its pid."""
    submitted: Moment
    host: str = ""
    """Where it was submitted from; of a process, where it runs."""
    machine: str = ""
    """Of a process: the `machine_id` in which its pid means something."""
    started: Count = 0
    """Of a process: its start time in ticks, as `lease.start_time` returns it."""
    walltime: Seconds | None = None
    after: JobId = ""
    """The job that must end before this one may begin: a successor waits for it."""
    generation: Count = 0
    """How many jobs came before it in its chain of successors."""
    log: LogText = ""
    script: str = ""
    others: list[PathText] = field(default_factory=list)
    """Other run folders that its worker serves, relative to this one: cancelling one of them must
    not end the job."""
    gpu: str = ""
    """Of a process: the GPU that is its own."""
    marks_successor: bool = False
    """Whether `RecordPaths.successor` would be there if it had one; not in older folders."""
    tag: JobId = ""
    """Names the submission before the scheduler has given a number, and ever after: the job itself
    knows it. A record without a number is of a submission whose answer has not been seen yet."""

    @property
    def is_submitting(self) -> bool:
        """Tell whether its number is unknown: it is being submitted, or its submitter died."""
        return bool(self.tag) and not self.job_id

    @property
    def key(self) -> str:
        """The name of its file."""
        if self.is_submitting:
            return _NOT_IN_NAMES.sub("_", f"{self.env}-submitting-{self.tag}")
        # Two machines may have processes of one number.
        words = (self.env, self.host, self.job_id) if self.machine else (self.env, self.job_id)
        return _NOT_IN_NAMES.sub("_", "-".join(words))


@dataclass(frozen=True)
class WorkerRecord:
    """A worker, as it says itself: written when it begins, now and then, and when it ends."""

    owner_id: Name
    host: str
    pid: Pid
    started: Moment
    env: Name = "local"
    job_id: str = ""
    submitted: Moment | None = None
    """When its job was submitted; None if it has none."""
    log: LogText = ""
    """Its log, relative to the run folder."""
    limit: Moment | None = None
    """When the scheduler will end it, in seconds since 1970."""
    seen: Moment = 0.0
    """When this record was last written: of a worker that was killed, all that is known of its
    end."""
    ended: Moment | None = None
    reason: str = ""
    """Why it ended, in words."""
    exit_code: int | None = None
    generation: Count = 0
    n_shards: Count = 0
    n_items: Count = 0
    n_failed: Count = 0
    """Items of these that were given up on."""
    load_seconds: Seconds = 0.0
    compute_seconds: Seconds = 0.0
    """In shards that it published."""
    lost_seconds: Seconds = 0.0
    """In attempts that came to nothing: deaths, walltime, backup attempts that came second."""
    driver: str = ""
    """The driver that started this worker and writes its record; its own id in a driver's own."""
    waiting: str = ""
    """Of a driver: why workers are missing, and what to try."""

    @property
    def is_pool_worker(self) -> bool:
        """Tell whether a driver started it, and it ends with that."""
        return self.driver not in ("", self.owner_id)

    @property
    def seconds(self) -> float:
        """For how long it was there."""
        return max((self.ended or self.seen or self.started) - self.started, 0.0)

    @property
    def queue_seconds(self) -> float:
        """For how long its job waited."""
        return max(self.started - self.submitted, 0.0) if self.submitted else 0.0


@dataclass(frozen=True)
class CrashNote:
    """An attempt whose worker died, or whose machine failed."""

    shard: Count
    host: str
    reason: str
    start: Count | None = None
    """The batch that was running: its first position, and the one behind its last."""
    stop: Count | None = None
    kind: DeathKind = "died"
    seconds: Seconds = 0.0
    """How long the attempt had run."""
    owner_id: str = ""
    job_id: str = ""
    log: LogText = ""
    time: Moment = field(default_factory=time.time)
    note_id: Name = field(default_factory=lambda: uuid.uuid4().hex[:12])

    @property
    def key(self) -> str:
        """The name of its file."""
        return f"{self.shard}-{self.note_id}"


@dataclass(frozen=True)
class StopMark:
    """Request to all workers of a run to end, with its reason."""

    kind: StopKind
    reason: str
    by: str = ""
    time: Moment = 0.0
    """By the clock of the file system; `write_stop` fills it in."""


def write_job(paths: RecordPaths, record: JobRecord) -> None:
    """Record that a job was submitted, and mark the job before it as followed."""
    write_json(paths.jobs / f"{record.key}.json", asdict(record), permissions=_READABLE)
    if record.after:
        create_bytes(
            paths.successor(record.env, record.after), b"", sync=False, permissions=_READABLE
        )


def forget_job(paths: RecordPaths, record: JobRecord) -> None:
    """Remove the record of a job that was not submitted after all."""
    (paths.jobs / f"{record.key}.json").unlink(missing_ok=True)
    if record.after:
        paths.successor(record.env, record.after).unlink(missing_ok=True)


def complete_job(paths: RecordPaths, record: JobRecord) -> None:
    """Note a job; with its number, in the place of what was noted before it was submitted."""
    write_job(paths, record)
    if record.tag and not record.is_submitting:
        # Last: after a kill in between both are there, and `read_jobs` takes the numbered one.
        (paths.jobs / f"{replace(record, job_id='').key}.json").unlink(missing_ok=True)


def complete_own_job(paths: RecordPaths, env: str, tag: str, job_id: str) -> None:
    """Let a started job record its number, if its submitter could not."""
    record = read_or_skip(paths.jobs / f"{JobRecord(env, '', 0.0, tag=tag).key}.json", JobRecord)
    if record is not None:
        complete_job(paths, replace(record, job_id=job_id))


def write_worker(paths: RecordPaths, record: WorkerRecord) -> None:
    """Note how a worker stands."""
    path = paths.workers / f"{record.owner_id}.json"
    write_json(path, asdict(record), sync=False, permissions=_READABLE)


def write_death(paths: RecordPaths, note: CrashNote) -> bool:
    """Write a crash note, unless it exists; see `CrashNote.note_id`."""
    text = dump_json(asdict(note), indent=1) + "\n"
    path = paths.deaths / f"{note.key}.json"
    return create_bytes(path, text.encode(), sync=False, permissions=_READABLE)


def write_stop(paths: RecordPaths, mark: StopMark) -> None:
    """Tell all workers to end; they look at each heartbeat."""
    mark = replace(mark, time=mark.time or look_time(paths.root))
    write_json(paths.stop, asdict(mark), permissions=_READABLE)


def read_jobs(
    paths: RecordPaths, known: dict[str, Any] | None = None, *, submitting: bool = False
) -> list[JobRecord]:
    """Return all jobs in the order of their submission.

    What is in `known` is not read again; what cannot change any more is added to it. With
    `submitting`, those whose number is not known are among them.

    Raises:
        OSError: if one cannot be read from here: counting only the others would submit too many.
    """
    jobs = list(_read_all(paths.jobs, JobRecord, known=known, skips_unreadable=False))
    if known is not None:
        known |= {f"{job.key}.json": job for job in jobs if not job.is_submitting}
    # The number is noted beside the first record, which is removed afterwards.
    numbered = {job.tag for job in jobs if job.tag and not job.is_submitting}
    jobs = [
        job for job in jobs if not job.is_submitting or (submitting and job.tag not in numbered)
    ]
    return sorted(jobs, key=lambda job: (job.submitted, job.job_id))


def read_job(paths: RecordPaths, env: str, job_id: str) -> JobRecord | None:
    """Return the record of a scheduler's job; None if there is none that makes sense.

    Raises:
        OSError: if it cannot be read from here.
    """
    return _read(paths.jobs / f"{JobRecord(env, job_id, 0.0).key}.json", JobRecord)


def look_at_jobs(paths: RecordPaths) -> list[JobRecord]:
    """Return the jobs for display only: what cannot be read from here is left out."""
    return list(_read_all(paths.jobs, JobRecord))


def read_workers(paths: RecordPaths, known: dict[str, Any] | None = None) -> list[WorkerRecord]:
    """Return all workers in the order in which they began.

    With `known`, only records that were written since the call before are read.
    """
    if known is None:
        workers = list(_read_all(paths.workers, WorkerRecord))
    else:
        workers = list(_read_changed(paths.workers, known))
    return sorted(workers, key=lambda worker: worker.started)


def sample_workers(
    paths: RecordPaths, n_workers: int, *, without: str = ""
) -> tuple[list[WorkerRecord], int]:
    """Return the records of a few workers, chosen at random, and how many there are in all.

    Args:
        paths: of the run.
        n_workers: how many to read at most.
        without: the owner id of one that is not meant.
    """
    names = [name for name in _names(paths.workers) if name != f"{without}.json"]
    chosen = random.sample(names, min(len(names), n_workers))
    found = [_read(paths.workers / name, WorkerRecord) for name in chosen]
    return [record for record in found if record is not None], len(names)


def read_worker(paths: RecordPaths, owner_id: str) -> WorkerRecord | None:
    """Return what a worker said of itself; None if it said nothing, or nothing that makes sense."""
    return _read(paths.workers / f"{owner_id}.json", WorkerRecord)


def read_deaths(
    paths: RecordPaths, shard: int | None = None, known: dict[str, Any] | None = None
) -> list[CrashNote]:
    """Return the notes of all shards, or of one, the oldest first; for `known` see `read_jobs`."""
    # With the dash, so that shard 1 does not get the notes of shard 12.
    prefix = "" if shard is None else f"{shard}-"
    notes = list(_read_all(paths.deaths, CrashNote, prefix, known))
    if known is not None:
        known |= {f"{note.key}.json": note for note in notes}
    return sorted(notes, key=lambda note: (note.time, note.note_id))


def read_stop(paths: RecordPaths) -> StopMark | None:
    """Return the stop mark; None if there is none.

    A damaged mark still counts: the run was to be stopped.
    """
    try:
        return read_record(paths.stop, StopMark)
    except DamagedFileError as error:
        warn_once(f"{error} The run counts as stopped.")
        since = 0.0
        with suppress(OSError):
            since = paths.stop.stat().st_mtime
        return StopMark("failed", str(error), "an unknown user", since)


def clear_stop(paths: RecordPaths) -> None:
    """Let workers begin again."""
    paths.stop.unlink(missing_ok=True)


def find_damaged(paths: RecordPaths) -> list[str]:
    """Return what is wrong with records of jobs, workers and deaths that others had to leave out.

    Damaged, or not to be read from here: a sentence each.
    """
    kinds = {paths.jobs: JobRecord, paths.workers: WorkerRecord, paths.deaths: CrashNote}
    found = []
    for folder, kind in kinds.items():
        for name in _names(folder):
            try:
                read_record(folder / name, kind)
            except DamagedFileError as error:
                found.append(str(error))
            except OSError as error:
                found.append(f"{folder / name} cannot be read from here: {error.strerror}.")
    return found


def _names(folder: Path) -> list[str]:
    with suppress(FileNotFoundError):
        return _records_of(entry.name for entry in os.scandir(folder) if not entry.is_dir())
    return []


def _records_of(names: Iterable[str]) -> list[str]:
    # This also leaves out notes that were forgotten, and marks of successors.
    return sorted(name for name in names if name.endswith(".json") and not name.startswith("."))


def _read_all(
    folder: Path,
    kind: type[T],
    prefix: str = "",
    known: dict[str, Any] | None = None,
    *,
    skips_unreadable: bool = True,
) -> Iterator[T]:
    for name in _names(folder):
        if not name.startswith(prefix):
            continue
        try:
            record = (known or {}).get(name) or _read(folder / name, kind)
        except OSError as error:
            if not skips_unreadable:
                raise
            warn_once(f"{folder / name} cannot be read from here: {error.strerror}. Left out.")
            continue
        if record is not None:
            yield record


def _read_changed(folder: Path, known: dict[str, Any]) -> Iterator[WorkerRecord]:
    versions = versions_in(folder)
    for name in _records_of(versions):
        seen, record = known.get(name, (None, None))
        if seen is None or seen != versions[name]:  # each write is another file
            try:
                record = _read(folder / name, WorkerRecord)
            except OSError as error:
                warn_once(f"{folder / name} cannot be read from here: {error.strerror}. Left out.")
                continue
            known[name] = (versions[name], record)
        if record is not None:
            yield record


def _read(path: Path, kind: type[T]) -> T | None:
    """Return a record; None if it is not there, or damaged."""
    return read_or_skip(path, kind)


@dataclass(frozen=True)
class Identity:
    """Facts that a worker knows of itself when it is started."""

    env: str = "local"
    job_id: str = ""
    generation: int = 0
    submitted: float | None = None
    log: Path | None = None
    is_driver: bool = False
    """Whether it runs no shards itself, or others beside: its pool's workers do."""


def log_name(log: str | Path | None, root: Path) -> str:
    """Return a log as records name it: relative to the run folder, which may move."""
    name = os.path.relpath(log, root) if log else ""
    # Readers refuse a log outside of the run's folders, as it might be a forged record's.
    return name if is_log_name(name) else ""


class OwnRecord:
    """The record of this process in one run folder."""

    def __init__(
        self, root: Path, owner: Owner, identity: Identity, limit: float | None = None
    ) -> None:
        make_folders(root)
        self._paths = RecordPaths(root)
        self._next = 0.0
        self._clock = FolderClock(root)  # which all readers share
        self.record = WorkerRecord(
            owner_id=owner.owner_id,
            host=owner.host,
            pid=owner.pid,
            started=self.now(),
            env=identity.env,
            job_id=identity.job_id or owner.job_id,
            submitted=identity.submitted,
            log=log_name(identity.log, root),
            limit=limit,
            generation=identity.generation,
            driver=owner.owner_id if identity.is_driver else "",
        )

    def now(self) -> float:
        """Return the time by the clock of the file system."""
        return self._clock.now()

    def write(self) -> None:
        """Write the record."""
        self._next = time.monotonic() + _WRITE_SECONDS
        self.record = replace(self.record, seen=self.now())
        # Others read it; the work itself can do without.
        with suppress(OSError):
            write_worker(self._paths, self.record)

    def write_if_due(self) -> None:
        """Write the record if the last time was a while ago."""
        if time.monotonic() >= self._next:
            self.write()

    def published(self, done: Done) -> None:
        """Count a shard that this worker committed."""
        record = self.record
        self.record = replace(
            record,
            n_shards=record.n_shards + 1,
            n_items=record.n_items + done.n_items,
            n_failed=record.n_failed + done.n_failed,
            load_seconds=round(record.load_seconds + done.load_seconds, 3),
            compute_seconds=round(record.compute_seconds + done.seconds, 3),
        )

    def lost(self, seconds: float) -> None:
        """Count an attempt that came to nothing."""
        self.record = replace(
            self.record, lost_seconds=round(self.record.lost_seconds + seconds, 3)
        )

    def end(self, reason: str, code: int) -> None:
        """Say why the worker ends."""
        self.record = replace(self.record, ended=self.now(), reason=reason, exit_code=code)
        self.write()

    @contextmanager
    def kept(self) -> Iterator["OwnRecord"]:
        """Write the record now, and at the end of the block even if that comes unexpected."""
        self.write()
        try:
            yield self
        except BaseException as error:
            if self.record.ended is None:
                self.end(f"{type(error).__name__}: {error}"[:500], 1)
            raise


_MINUTE = 60.0


def takes_turn(root: Path, now: float) -> bool:
    """Take this minute's turn to look after the workers of a run; False if another has it.

    Raises:
        OSError: nothing can be written there.
    """
    paths = RecordPaths(root)
    minute = int(now // _MINUTE)
    turn = paths.watch(minute)
    # Looked at first: of a thousand workers, all but one need no more than that.
    # Exclusive creation decides at the server: of all workers one wins, even if views are late.
    if is_there(turn) or not create_bytes(turn, b"", sync=False):
        return False
    for path in paths.folder.glob(paths.watch(0).with_suffix(".*").name):
        with suppress(OSError, ValueError):
            # The last minute's stays, for a worker that looked at the clock a moment ago.
            if int(path.suffix[1:]) < minute - 1:
                path.unlink()
    return True
