"""Why jobs wait, in one line, and what to try."""

import re
from collections import Counter
from collections.abc import Iterable

from espnet3.parallel.clusters.kept_job import KeptJob
from espnet3.text import duration

# The scheduler's words, and what a colleague would say. The first that fits is taken.
_ADVICE = (
    (
        r"PartitionTimeLimit|exceeds.*(walltime|limit)|RUNLIMIT",
        "These jobs will never start: set a shorter parallel.options.walltime",
    ),
    (
        r"InvalidAccount|InvalidQOS|AccountNotAllowed|QOSNotAllowed",
        "These jobs will never start: set parallel.options.account to one of yours",
    ),
    (
        r"BadConstraints|NodeLimit|can never run|cannot run in any|no suitable queues",
        "These jobs will never start: ask for less cores, memory or GPUs per job",
    ),
    (r"held|\bhold\b|^h[a-z]*qw", "Somebody holds these jobs; see {status}"),
    (
        r"QOSMax|AssocMax|MaxJobs|PerUser|PerAccount|slot limit reached|user.*limit",
        "You may not have more jobs at once: set a lower parallel.n_workers; the run goes on with "
        "the jobs that start",
    ),
    (
        r"AssocGrp|QOSGrp|Licenses",
        "Your group has used up its share: wait, or set another parallel.options.account",
    ),
    (
        r"ReqNodeNotAvail|DOWN|DRAINED|Reservation|maintenance|offline|unavailable",
        "Nodes are down, drained or reserved: a shorter parallel.options.walltime may fit before "
        "a reservation; or set another parallel.options.queue",
    ),
    (r"BeginTime", "They start by themselves; Slurm lets a requeued job wait for two minutes"),
    (
        r"Resources|insufficient|not enough|offers only|resource requirement",
        "Nothing is free: ask for less (memory, cores, GPUs, walltime), or set another "
        "parallel.options.queue",
    ),
    (r"Priority", "Others are first: a shorter parallel.options.walltime may fit into a gap"),
    (r"Eqw|error", "The scheduler could not start them: mend the reason, or look at {status}"),
)


def describe_waiting(jobs: Iterable[KeptJob], now: float, status_command: str) -> str:
    """Return how many jobs are not there, why, and what to try; empty if none is missing."""
    jobs = list(jobs)
    pending = [job for job in jobs if not job.is_connected and job.state.phase == "pending"]
    starting = [job for job in jobs if not job.is_connected and job.state.phase == "running"]
    unknown = [job for job in jobs if not job.is_connected and job.state.phase == "unknown"]
    parts = []
    if pending:
        parts.append(_describe_pending(pending, len(jobs), now, status_command))
    if starting:
        parts.append(_describe_starting(starting, len(jobs), now))
    if unknown:
        parts.append(
            f"{len(unknown)} of {len(jobs)} jobs were submitted {_longest(unknown, now)} ago, and "
            f"nothing is known of them yet. See: {status_command}."
        )
    return " ".join(parts)


def _describe_pending(jobs: list[KeptJob], n_jobs: int, now: float, status_command: str) -> str:
    reasons = Counter(job.state.reason or job.state.word for job in jobs)
    told = ", ".join(f"{reason} ({n})" for reason, n in reasons.most_common(3))
    line = f"{len(jobs)} of {n_jobs} jobs are pending for {_longest(jobs, now)}: {told}."
    advice = find_advice(reasons.most_common(1)[0][0], status_command)
    return f"{line} {advice or f'See: {status_command}'}."


def _describe_starting(jobs: list[KeptJob], n_jobs: int, now: float) -> str:
    numbers = ", ".join(job.job_id for job in jobs[:3])
    line = f"{len(jobs)} of {n_jobs} jobs run, but their workers have not connected"
    return f"{line} for {_longest(jobs, now)} (job {numbers}). If this lasts, see their logs."


def _longest(jobs: list[KeptJob], now: float) -> str:
    return duration(max(now - (job.gone or job.submitted) for job in jobs))


def find_advice(reason: str, status_command: str) -> str:
    """Return what to try when jobs wait for a reason; empty if it is not a well-known one."""
    for pattern, advice in _ADVICE:
        if re.search(pattern, reason, re.IGNORECASE):
            return advice.format(status=status_command)
    return ""
