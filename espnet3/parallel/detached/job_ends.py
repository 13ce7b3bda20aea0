"""How jobs ended, in words, and what to change: the exit states of all schedulers."""

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from espnet3.findings import Finding, Level
from espnet3.parallel.clusters.advice import find_advice
from espnet3.parallel.clusters.job_logs import words_of_daemon
from espnet3.parallel.clusters.schedulers import scheduler_of
from espnet3.parallel.detached.crew import Job
from espnet3.parallel.detached.job_output import output_of
from espnet3.shards.records import RecordPaths
from espnet3.text import count, duration, end_of_log, first_line

_N_LINES = 8
_MOST_IDS = 5
_NEVER = "will never start"
_CANCELLED = r"CANCELLED|deleted by|TERM_OWNER|TERM_ADMIN|removed"


@dataclass(frozen=True)
class _End:
    """A kind of end: its mark in what a scheduler says, in words, and what to do."""

    pattern: str
    words: str
    advice: str


# The first that fits is taken. Slurm names the kind; the others say it in their own words.
_ENDS = (
    _End(
        r"OUT_OF_MEMORY|more memory|MEMLIMIT|h_vmem|oom|Cannot allocate memory",
        "used more memory than asked for",
        "Ask for more: espnet3 resume {dir} options.memory=... ; or use smaller batches",
    ),
    _End(
        r"TIMEOUT|DEADLINE|walltime|h_rt|RUNLIMIT|CPULIMIT",
        "ran until the walltime was over",
        "Nothing is lost but the shard that was running, and the next job goes on. If shards do "
        "not fit at all, ask for a longer walltime: espnet3 resume {dir} options.walltime='...'",
    ),
    _End(
        r"NODE_FAIL|BOOT_FAIL|node (was lost|failed)|ZOMBI|LaunchFailed|launch failed",
        "lost the node",
        "Others take over their shards; tell the administrators if it is the same node again",
    ),
    _End(
        r"PREEMPTED|preempt",
        "made room for jobs of higher priority",
        "Others take over their shards; another queue or account may be left in peace",
    ),
    _End(
        _CANCELLED,
        "got cancelled by somebody",
        "If that was not meant: espnet3 resume {dir}",
    ),
    _End(
        r"signal 9\b|exit (code|status) 137|SIGKILL",
        "got killed (signal 9), mostly because memory ran out",
        "Ask for more memory, or use smaller batches: espnet3 resume {dir} options.memory=...",
    ),
    _End(
        r"exit (code|status) 127|command not found|No such file",
        "did not find a program or a file",
        "See the log; the Python of the run must be there on the nodes, too",
    ),
    _End(
        r"^gone\b",
        "ended without a word: killed, or the machine was restarted",
        "Others take over their shards; if nobody is left: espnet3 resume {dir}",
    ),
    _End(
        r"FAILED|Error|exit (code|status) [1-9]|signal [1-9]",
        "ended with an error",
        "See the log: espnet3 logs {dir} --worker {job}",
    ),
)


def explain_ends(
    jobs: Iterable[Job], run_dir: Path, *, quoted: str, is_over: bool
) -> list[Finding]:
    """Return a finding for each kind of bad end; jobs whose worker ended well are left out."""
    groups: dict[str, list[Job]] = {}
    for job in jobs:
        if job.state.phase == "ended" and not _ended_well(job):
            groups.setdefault(_kind(job).pattern, []).append(job)
    level: Level = "problem" if is_over else "warning"
    return [Finding(level, "jobs", *_describe(jobs, run_dir, quoted)) for jobs in groups.values()]


def _ended_well(job: Job) -> bool:
    if job.workers:
        return job.workers[-1].ended is not None and job.workers[-1].exit_code == 0
    told = f"{job.state.word} {job.state.reason}"
    # Ended before its worker signed in, with nothing to say: a successor that was not needed.
    return bool(re.search(r"COMPLETED|exit (code|status) 0\b|^DONE\b|^ *$", told))


def is_cancelled(job: Job) -> bool:
    """Tell whether somebody cancelled a job."""
    return bool(re.search(_CANCELLED, f"{job.state.word} {job.state.reason}"))


def _kind(job: Job) -> _End:
    if job.workers and job.workers[-1].ended is not None:
        reason = first_line(job.workers[-1].reason)
        return _End(
            reason, f"ended with an error, {reason}", "See: espnet3 logs {dir} --worker {job}"
        )
    told = f"{job.state.word} {job.state.reason}"
    ended = next((end for end in _ENDS if re.search(end.pattern, told, re.IGNORECASE)), None)
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
    daemon = words_of_daemon(log) or words_of_daemon(output_of(last.record, run_dir))
    told += f". The scheduler wrote: {daemon}" if daemon else ""
    told += end_of_log(log, _N_LINES)
    return told, kind.advice.format(dir=quoted, job=last.record.job_id)


def log_of(job: Job, run_dir: Path) -> Path | None:
    """Return the log of a job: its worker's, else what the scheduler wrote."""
    logs = [worker.log for worker in reversed(job.workers)] + [job.record.log]
    own = next((run_dir / log for log in logs if log and (run_dir / log).is_file()), None)
    return own or output_of(job.record, run_dir)


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
    advice = find_advice(reason, command) or f"See: {command}"
    return Finding("problem" if _NEVER in advice else "warning", "queue", told, advice)
