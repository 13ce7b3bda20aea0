"""Preconditions of a submission: correct clock, readable records, submission limit.

A program that submits jobs for others looks at files that other machines write. If its clock is
off, or if it cannot read them, those at work look dead to it, and it would submit more and more.
"""

import math
import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from espnet3.errors import EspnetError, ResourceError
from espnet3.io.clock import MAX_SKEW, clock_skew, describe_skew, folder_time
from espnet3.io.records import read_record
from espnet3.parallel.config import ParallelConfig
from espnet3.shards.records import JobRecord, RecordPaths
from espnet3.text import duration

HOUR = 3600.0
_SHORTEST_WALLTIME = 60.0
_SPARE = 4
BY_HAND = 4.0
"""How many times as many jobs a person may submit as workers may by themselves."""


class SubmissionRefusedError(ResourceError):
    """Nothing is submitted from here, or not now; the message says why."""


def jobs_per_hour(config: ParallelConfig, walltime: float | None) -> int:
    """Return how many jobs may be submitted for a run within an hour.

    Each of `n_workers` may have a successor as often as the walltime ends it (taken as an hour if
    it is not known, and as a minute if it is less), and 4 more: its first job, the successor that
    waits behind that, and two in the place of jobs that were lost.
    """
    each = math.ceil(HOUR / min(max(walltime or HOUR, _SHORTEST_WALLTIME), HOUR))
    return config.n_workers * (each + _SPARE)


def check_clock(root: Path) -> None:
    """Refuse to submit from a machine whose clock is off.

    Raises:
        SubmissionRefusedError: with both times.
    """
    try:
        skew = clock_skew(root)
    except OSError as error:
        raise SubmissionRefusedError(
            f"no job is submitted: nothing can be written to {root} ({error.strerror or error}), "
            "so a job could not be recorded there.",
            fix="Make room or fix the permissions",
        ) from error
    if abs(skew) > MAX_SKEW:
        raise SubmissionRefusedError(
            f"no job is submitted: {describe_skew(root, skew)}. Let both follow one time server "
            "(timedatectl status, chronyc tracking), or submit from another machine"
        )


def read_all_jobs(root: Path) -> list[JobRecord]:
    """Return the records of all jobs of a run, each of them.

    Raises:
        SubmissionRefusedError: if one cannot be read: then the queued jobs are not known.
    """
    folder = RecordPaths(root).jobs
    try:
        names = sorted(n for n in os.listdir(folder) if n.endswith(".json") and n[0] != ".")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise SubmissionRefusedError(_unreadable(folder, error)) from error
    found = []
    for name in names:
        try:
            record = read_record(folder / name, JobRecord)
            written = (folder / name).stat().st_mtime
        except FileNotFoundError:
            continue
        except (OSError, EspnetError) as error:
            raise SubmissionRefusedError(_unreadable(folder / name, error)) from error
        if record is not None:  # else completed meanwhile, under another name
            # The writer's clock may have been ahead; the time of the file is the file system's.
            found.append(replace(record, submitted=min(record.submitted, written)))
    numbered = {record.tag for record in found if record.tag and record.job_id}
    found = [r for r in found if not (r.is_submitting and r.tag in numbered)]
    return sorted(found, key=lambda record: (record.submitted, record.job_id))


def _unreadable(path: Path, error: Exception) -> str:
    reason = error.strerror or error if isinstance(error, OSError) else error
    return (
        f"no job is submitted: the run's jobs cannot be determined, {path} cannot be read "
        f"({reason}). If it is damaged, and no such job is in the queue any more: "
        f"rm {shlex.quote(str(path))}"
    )


def check_limit(
    roots: Sequence[Path],
    config: ParallelConfig,
    n_more: int,
    *,
    walltime: float | None,
    times: float = 1.0,
) -> None:
    """Refuse more jobs than a run can need within an hour, counted in the run folders.

    Args:
        roots: the run folders.
        config: with the number of workers.
        n_more: how many jobs are to be submitted.
        walltime: of a job, in seconds.
        times: factor on the limit for this caller; the records must be readable in any case.

    Raises:
        SubmissionRefusedError: with the numbers, or if they cannot be determined.
    """
    limit = jobs_per_hour(config, walltime) * times
    for root in roots:
        # Workers ask so often that the names must be enough, nearly always; a person may wait.
        if times <= 1.0 and _count_records(root) + n_more <= limit:
            continue
        now = _now(root)
        # Of a time to come counts too: the clock of the file system may have been set back.
        recent = [job for job in read_all_jobs(root) if job.submitted > now - HOUR]
        recent = [job for job in recent if not job.machine]
        if len(recent) + n_more > limit:
            oldest = min((job.submitted for job in recent), default=now)
            wait = duration(max(oldest + HOUR - now, 60.0))
            quoted = shlex.quote(str(root))
            raise SubmissionRefusedError(
                f"no job is submitted: {len(recent)} were within an hour for {root}, and {n_more} "
                f"more would be above the limit of {limit:.0f} for {config.n_workers} workers"
                f"{_why(walltime)}. Jobs that end at once, or records that are not seen, could be "
                f"the reason: espnet3 explain {quoted}. In {wait} it may continue; to add workers "
                f"all the same: espnet3 resume {quoted} --workers {n_more}"
            )


def _count_records(root: Path) -> int:
    folder = RecordPaths(root).jobs
    try:
        return sum(name.endswith(".json") for name in os.listdir(folder))
    except OSError as error:
        raise SubmissionRefusedError(_unreadable(folder, error)) from error


def _now(root: Path) -> float:
    try:
        return folder_time(root)
    except OSError as error:
        raise SubmissionRefusedError(_unreadable(root, error)) from error


def _why(walltime: float | None) -> str:
    return f" with a walltime of {duration(walltime)}" if walltime else ""
