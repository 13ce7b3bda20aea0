"""Collect worker logs: of one worker, of one shard, or of failures."""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from espnet3.errors import RunFolderError, suggest
from espnet3.io.shared_files import is_log_name
from espnet3.parallel.clusters.job_logs import find_log
from espnet3.parallel.detached.workforce import Job, Worker, has_living_owner, living_ids
from espnet3.schedulers import Scheduler, scheduler_of
from espnet3.shards.layout import RunLayout
from espnet3.shards.manifest import require_manifest
from espnet3.shards.merge import read_failures
from espnet3.shards.records import (
    JobRecord,
    RecordPaths,
    WorkerRecord,
    look_at_jobs,
    read_deaths,
    read_workers,
)
from espnet3.text import first_line, last_lines

# Around each attempt, a worker says which shard the lines are of.
# 18 digits at most: a log may hold anything, and int() refuses thousands of digits.
_BEGINS = re.compile(r"\bshard (\d{1,18}) begins\b")
_ENDS = re.compile(r"\bshard (\d{1,18}) ends: ")
_N_SECTIONS = 10
_N_LINES = 30
_OF_WORKERS = "detached-"
# What a file that others may have written can raise.
_UNREADABLE = (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError)


@dataclass(frozen=True)
class LogPart:
    """Some lines of a log."""

    title: str
    path: Path
    lines: list[str] = field(default_factory=list)

    def last(self, n_lines: int | None) -> "LogPart":
        """Return its end, of so many lines; all of it if None."""
        return self if n_lines is None else LogPart(self.title, self.path, self.lines[-n_lines:])


def logs_of_workers(
    run_dir: Path, name: str | None = None, n_lines: int | None = None
) -> list[LogPart]:
    """Return the logs of the workers with a name; without one, of those that are at work.

    Without active workers: those of the last ones, and of jobs that started none.

    Args:
        run_dir: the run folder.
        name: job id, node, `node:pid`, the beginning of an owner id, or the name of a log file.
        n_lines: the last lines of each; all if None.

    Raises:
        RunFolderError: if no worker has that name, with those that there are.
    """
    workers = known_workers(run_dir)
    if name is not None:
        return _texts(run_dir, _named(run_dir, workers, name), n_lines)
    # Those at work first: a long run has hundreds that ended.
    chosen = [worker for worker in workers if worker.is_alive] or workers[-_N_SECTIONS:]
    parts = _texts(run_dir, chosen, n_lines)
    return parts or [_part(path.name, path, n_lines) for path in _files(run_dir)[-_N_SECTIONS:]]


def known_workers(run_dir: Path) -> list[Worker]:
    """Return all workers that left a record, in the order in which they began."""
    living = living_ids(run_dir)
    records = read_workers(RecordPaths(run_dir))
    return [Worker(record, has_living_owner(record, living)) for record in records]


def _named(run_dir: Path, workers: list[Worker], name: str) -> list[Worker]:
    found = [worker for worker in workers if _has_name(worker.record, name)]
    if found:
        return found
    for job in look_at_jobs(RecordPaths(run_dir)):
        path = _written_for(job, run_dir) if job.job_id == name else None
        if path is not None:
            record = WorkerRecord("", job.host, 0, job.submitted, job_id=name, log=str(path))
            return [Worker(replace(record, reason="it began no worker"), False)]
    for path in _files(run_dir):
        if name in (path.name, path.stem):
            return [Worker(WorkerRecord("", "", 0, 0.0, job_id=path.name, log=str(path)), False)]
    names = list(dict.fromkeys(worker.name for worker in workers if worker.record.log))
    names = names or [path.stem for path in _files(run_dir)]
    listed = ", ".join(names[-_N_SECTIONS:]) or "none so far"
    raise RunFolderError(
        f"No worker of {run_dir} is called {name!r}.{suggest(name, names)} There are: {listed}."
    )


def _written_for(job: JobRecord, run_dir: Path) -> Path | None:
    """Return the log of a job that no worker record names."""
    own = run_dir / job.log
    return own if job.log and own.is_file() else output_of(job, run_dir)


def _has_name(record: WorkerRecord, name: str) -> bool:
    # Shorter, it could be meant as the number of a job.
    if len(name) >= 4 and record.owner_id.startswith(name):
        return True
    log = Path(record.log)
    # A process is its own job: its number was recorded when it was started.
    number = record.job_id or str(record.pid)
    known = (number, record.host, f"{record.host}:{record.pid}", log.name, log.stem)
    return bool(name) and name in known


def _texts(run_dir: Path, workers: Iterable[Worker], n_lines: int | None) -> list[LogPart]:
    # Who waits for workers of its own ends them when the run is complete.
    silent = "ended" if RunLayout(run_dir, n_shards=1).success.exists() else "gone without a word"
    paths = {run_dir / w.record.log: _title(w, silent) for w in workers if w.record.log}
    return [_part(title, path, n_lines) for path, title in paths.items() if path.is_file()]


def _title(worker: Worker, silent: str) -> str:
    record = worker.record
    where = f" on {record.host}" if record.host and record.job_id else ""
    if worker.is_alive:
        return f"worker {worker.name}{where}"
    end = first_line(record.reason) or ("ended" if record.ended else silent)
    return f"worker {worker.name}{where} ({end})"


def _part(title: str, path: Path, n_lines: int | None) -> LogPart:
    lines = list(read_lines(path)) if n_lines is None else last_lines(path, n_lines)
    return LogPart(title, path, lines)


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a log; none if it cannot be read."""
    # newline: progress bars write bare carriage returns, which are no ends of lines.
    with suppress(OSError), path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        for line in file:
            yield line.rstrip("\r\n")


def _files(run_dir: Path) -> list[Path]:
    """Return the logs in the folder of a run, the latest last."""
    folder = require_manifest(run_dir).layout(run_dir).logs
    found: list[tuple[float, Path]] = []
    with suppress(OSError):
        found = [(path.stat().st_mtime, path) for path in folder.iterdir() if path.is_file()]
    return [path for _, path in sorted(found)]


def logs_of_shard(run_dir: Path, shard: int) -> list[LogPart]:
    """Return what was written during each attempt at a shard, the oldest first.

    Raises:
        RunFolderError: if there is no such shard, or if no log mentions it.
    """
    n_shards = require_manifest(run_dir).n_shards
    if not 0 <= shard < n_shards:
        raise RunFolderError(f"{run_dir} has no shard {shard}: its shards are 0 to {n_shards - 1}.")
    parts = [part for path in _all_logs(run_dir) for part in cut(path, shard)]
    if parts:
        return parts
    if not RecordPaths(run_dir).run.exists():
        raise RunFolderError(
            f"The logs of {run_dir} do not tell shards apart: its workers were started by a "
            "program that waited for them.",
            fix=f"Look at all of it: {run_dir / 'logs'}",
        )
    raise RunFolderError(f"No worker of {run_dir} has begun shard {shard} so far.")


def _all_logs(run_dir: Path) -> list[Path]:
    """Return all logs: those in the folder, and those of workers that serve several folders."""
    recorded = [run_dir / record.log for record in read_workers(RecordPaths(run_dir)) if record.log]
    # A worker of several runs writes into one of their folders: the same file twice.
    named = {path.resolve(): path for path in [*recorded, *_files(run_dir)]}
    return list(named.values())


def cut(path: Path, shard: int) -> Iterator[LogPart]:
    """Yield the lines of each attempt at a shard from the log of a worker."""
    lines: list[str] | None = None
    title = f"shard {shard} in {path.name}"
    for line in read_lines(path):
        begins, ends = _BEGINS.search(line), _ENDS.search(line)
        if begins:
            if lines:  # killed before it could say how that attempt ended
                yield LogPart(title, path, lines)
            lines = [line] if int(begins[1]) == shard else None
        elif lines is not None:
            lines.append(line)
            if ends and int(ends[1]) == shard:
                yield LogPart(title, path, lines)
                lines = None
    if lines:
        yield LogPart(title, path, lines)


def logs_of_failed(run_dir: Path) -> list[LogPart]:
    """Return the end of what was written at each death and each item that failed, the newest last.

    Those of the last ten; jobs that ended before their worker began count as deaths.
    """
    notes = read_deaths(RecordPaths(run_dir))
    wanted = {(note.log, note.shard): f"shard {note.shard}: {note.reason}" for note in notes}
    for failure in read_failures(run_dir):
        key = (failure.get("log", ""), failure.get("shard", -1))
        index = failure.get("index")
        ids = failure.get("ids") or []
        what = "the provider" if index is None else f"item {ids[0] if ids else repr(index)}"
        wanted[key] = f"shard {key[1]}, {what}: {failure.get('error')}"
    parts = []
    for (log, shard), title in list(wanted.items())[-_N_SECTIONS:]:
        path = run_dir / log
        # A forged record must not make this print any file that the user can read.
        if log and is_log_name(log) and path.is_file():
            sections = list(cut(path, shard))
            lines = sections[-1].lines if sections else last_lines(path, _N_LINES)
            parts.append(LogPart(title, path, lines[-_N_LINES:]))
    return parts + _logs_of_stillborn(run_dir)


def _logs_of_stillborn(run_dir: Path) -> list[LogPart]:
    """Return the logs of jobs that never brought a worker, if they wrote anything."""
    paths = RecordPaths(run_dir)
    began = {(record.env, record.job_id) for record in read_workers(paths)}
    parts = []
    for job in look_at_jobs(paths):
        if job.machine or (job.env, job.job_id) in began:
            continue
        path = _written_for(job, run_dir)
        lines = last_lines(path, _N_LINES)
        if path is not None and lines:
            parts.append(LogPart(f"job {job.job_id}, which began no worker", path, lines))
    return parts[-_N_SECTIONS:]


def log_of(job: Job, run_dir: Path) -> Path | None:
    """Return the log of a job: its worker's, else what the scheduler wrote."""
    logs = [worker.log for worker in reversed(job.workers)] + [job.record.log]
    own = next((run_dir / log for log in logs if log and (run_dir / log).is_file()), None)
    return own or output_of(job.record, run_dir)


def output_of(job: JobRecord, run_dir: Path) -> Path | None:
    """Return what the scheduler kept of a job's output, or the shell of a process; None if nothing.

    A worker that has begun writes into a log of its own.
    """
    if job.is_submitting:
        return None
    logs = (run_dir / job.log).parent if job.log else run_dir / "logs"
    if job.machine:
        path = logs / f"{_OF_WORKERS}{job.env}.out"
        return path if path.is_file() and path.stat().st_size else None
    scheduler = scheduler_of(job.env) or Scheduler()
    found = find_log([logs, *_log_directory(job.env, run_dir)], job.job_id, scheduler)
    # The worker's own log matches the same pattern, but the scheduler did not write it.
    return None if found is None or found.name.startswith(_OF_WORKERS) else found


def option_of(env: str, run_dir: Path, name: str) -> str:
    """Return what the options say with which jobs were last submitted; empty if nothing."""
    with suppress(*_UNREADABLE):
        options = json.loads(RecordPaths(run_dir).parallel(env).read_bytes())["options"]
        return str(options.get(name) or "")
    return ""


def _log_directory(env: str, run_dir: Path) -> list[Path]:
    """Return the folder that the user's options name, if they do."""
    with suppress(*_UNREADABLE):
        if folder := option_of(env, run_dir, "log_directory"):
            found = Path(json.loads(RecordPaths(run_dir).run.read_bytes())["cwd"]) / folder
            return [found] if "\0" not in str(found) else []
    return []


class LogFollower:
    """Reads what is added to the logs of a run's workers, also of those that begin meanwhile."""

    def __init__(self, run_dir: Path, name: str | None = None) -> None:
        self._run_dir = run_dir
        self._name = name
        self._offsets: dict[Path, int] = {}
        self._titles: dict[Path, str] = {}
        self._find(from_start=False)

    def read(self) -> Iterator[tuple[str, str]]:
        """Yield the name of the worker and each whole line that it wrote since the last call."""
        self._find(from_start=True)
        for path, offset in self._offsets.items():
            with suppress(OSError), path.open("rb") as file:
                file.seek(offset)
                data = file.read()
                whole = data[: data.rfind(b"\n") + 1]  # the rest of a line comes later
                self._offsets[path] = offset + len(whole)
                for line in whole.decode(errors="replace").splitlines():
                    yield self._titles[path], line

    def _find(self, *, from_start: bool) -> None:
        for worker in known_workers(self._run_dir):
            record = worker.record
            path = self._run_dir / record.log
            if not record.log or path in self._offsets:
                continue
            if self._name is not None and not _has_name(record, self._name):
                continue
            with suppress(OSError):
                size = path.stat().st_size
                # Of a worker that begins meanwhile all is new; of the others only what comes now.
                self._offsets[path] = 0 if from_start else size
                self._titles[path] = worker.name
