"""Explain how jobs ended and why others wait, and what to change."""

import json
import shlex
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from espnet3.findings import Finding, Level
from espnet3.parallel.clusters.job_logs import find_log, words_of_daemon
from espnet3.parallel.detached.crew import Job
from espnet3.schedulers import Scheduler, scheduler_of
from espnet3.shards.records import JobRecord, RecordPaths
from espnet3.text import count, duration, end_of_log, first_line

_N_LINES = 8
_MOST_IDS = 5
_OF_WORKERS = "detached-"
_NEVER = "will never start"


@dataclass(frozen=True)
class _End:
    """A kind of end, in words, and what to do."""

    kind: str
    words: str
    advice: str


_ENDS = (
    _End(
        "memory",
        "used more memory than asked for",
        "Ask for more: espnet3 resume {dir} options.memory=... ; or use smaller batches",
    ),
    _End(
        "walltime",
        "ran until the walltime was over",
        "Only the running shard is lost, and the next job continues. If shards do "
        "not fit at all, ask for a longer walltime: espnet3 resume {dir} options.walltime='...'",
    ),
    _End(
        "node",
        "lost the node",
        "Others take over their shards; tell the administrators if it is the same node again",
    ),
    _End(
        "preempted",
        "made room for jobs of higher priority",
        "Others take over their shards; another queue or account may be left in peace",
    ),
    _End(
        "cancelled",
        "was cancelled by a user",
        "If that was not meant: espnet3 resume {dir}",
    ),
    _End(
        "killed",
        "got killed (signal 9), mostly because memory ran out",
        "Ask for more memory, or use smaller batches: espnet3 resume {dir} options.memory=...",
    ),
    _End(
        "missing",
        "did not find a program or a file",
        "See the log; the Python of the run must be there on the nodes, too",
    ),
    _End(
        "gone",
        "ended without a word: killed, or the machine was restarted",
        "Other workers take over their shards; if none is left: espnet3 resume {dir}",
    ),
    _End(
        "failed",
        "ended with an error",
        "See the log: espnet3 logs {dir} --worker {job}",
    ),
)
# Words for processes of this machine, which have no scheduler, are the plain ones.
_NO_SCHEDULER = Scheduler()


def explain_ends(
    jobs: Iterable[Job], run_dir: Path, *, quoted: str, is_over: bool
) -> list[Finding]:
    """Return a finding for each kind of bad end; jobs whose worker ended well are left out."""
    groups: dict[str, list[Job]] = {}
    for job in jobs:
        if job.state.phase == "ended" and not _ended_well(job):
            groups.setdefault(_kind(job).kind, []).append(job)
    level: Level = "problem" if is_over else "warning"
    return [Finding(level, "jobs", *_describe(jobs, run_dir, quoted)) for jobs in groups.values()]


def _ended_well(job: Job) -> bool:
    if job.workers:
        return job.workers[-1].ended is not None and job.workers[-1].exit_code == 0
    # Ended before its worker signed in, with nothing to say: a successor that was not needed.
    return _scheduler_of(job).ended_well(job.state)


def is_cancelled(job: Job) -> bool:
    """Tell whether somebody cancelled a job."""
    return _scheduler_of(job).was_cancelled(job.state)


def _scheduler_of(job: Job) -> Scheduler:
    return scheduler_of(job.record.env) or _NO_SCHEDULER


def _kind(job: Job) -> _End:
    if job.workers and job.workers[-1].ended is not None:
        reason = first_line(job.workers[-1].reason)
        return _End(
            reason, f"ended with an error, {reason}", "See: espnet3 logs {dir} --worker {job}"
        )
    kind = _scheduler_of(job).kind_of_end(job.state)
    ended = next((end for end in _ENDS if end.kind == kind), None)
    told = f"{job.state.word} {job.state.reason}"
    return ended or _End(told, "ended without a word of their worker", "See the log")


def _describe(jobs: list[Job], run_dir: Path, quoted: str) -> tuple[str, str]:
    last = jobs[-1]
    kind = _kind(last)
    ids = ", ".join(job.record.job_id for job in jobs[-_MOST_IDS:])
    what = "process" if last.record.machine else "job"
    state = ", ".join(part for part in (last.state.word, last.state.reason) if part)
    said = f" ({state})" if state and not last.record.machine else ""
    told = f"{count(len(jobs), what)} {kind.words}{said}: {ids}"
    log = log_of(last, run_dir)
    scheduler = scheduler_of(last.record.env)
    daemon = words_of_daemon(log, scheduler)
    daemon = daemon or words_of_daemon(output_of(last.record, run_dir), scheduler)
    told += f". The scheduler wrote: {daemon}" if daemon else ""
    told += end_of_log(log, _N_LINES)
    return told, kind.advice.format(dir=quoted, job=last.record.job_id)


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
    found = find_log([logs, *_log_directory(job.env, run_dir)], job.job_id)
    return None if found is None or found.name.startswith(_OF_WORKERS) else found


def _log_directory(env: str, run_dir: Path) -> list[Path]:
    """Return the folder that the user's options name, if they do."""
    paths = RecordPaths(run_dir)
    with suppress(OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        options = json.loads(paths.parallel(env).read_bytes())["options"]
        if folder := options.get("log_directory"):
            found = Path(json.loads(paths.run.read_bytes())["cwd"]) / folder
            return [found] if "\0" not in str(found) else []
    return []


def explain_submitting(jobs: Iterable[Job], run_dir: Path) -> list[Finding]:
    """Return a finding for each job that may exist, though its number was never noted."""
    from espnet3.parallel.detached.submit import describe_submitting

    found = []
    for job in jobs:
        if job.record.is_submitting and not job.is_new:
            record = RecordPaths(run_dir).jobs / f"{job.record.key}.json"
            fix = (
                "One that starts notes its number, and works. If there is none: rm "
                f"{shlex.quote(str(record))}"
            )
            found.append(Finding("warning", "jobs", describe_submitting(job.record), fix))
    return found


def explain_waiting(jobs: list[Job], now: float, *, n_jobs: int) -> list[Finding]:
    """Return why jobs are in the queue, a finding for each reason."""
    groups: dict[tuple[str, str], list[Job]] = {}
    for job in jobs:
        reason = job.state.reason or job.state.word or "no reason given"
        groups.setdefault((job.record.env, reason), []).append(job)
    return [_waiting(env, reason, found, now, n_jobs) for (env, reason), found in groups.items()]


def _waiting(env: str, reason: str, jobs: list[Job], now: float, n_jobs: int) -> Finding:
    scheduler = scheduler_of(env)
    command = scheduler.status_command if scheduler else ""
    waited = duration(max(now - job.record.submitted for job in jobs))
    ids = ", ".join(job.record.job_id for job in jobs[:_MOST_IDS])
    told = f"{len(jobs)} of {n_jobs} jobs in the queue, for {waited} so far: {reason} (job {ids})"
    advice = (scheduler.advice(reason) if scheduler else "") or f"See: {command}"
    return Finding("problem" if _NEVER in advice else "warning", "queue", told, advice)
