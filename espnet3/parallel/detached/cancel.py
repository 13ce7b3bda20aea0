"""Cancel a run: mark it, cancel its jobs, and wait until no driver or worker is left."""

import getpass
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from espnet3.errors import RunFolderError
from espnet3.parallel.detached.workforce import Job, Workforce, read_workforce
from espnet3.parallel.folder_run import folder_errors
from espnet3.shards.layout import leases_folder
from espnet3.shards.lease import living_owners
from espnet3.shards.manifest import load_manifest, require_manifest
from espnet3.shards.merge import read_success
from espnet3.shards.records import (
    JobRecord,
    RecordPaths,
    StopMark,
    clear_stop,
    make_folders,
    read_stop,
    write_stop,
)
from espnet3.shards.status import read_status

_POLL_SECONDS = 1.0
PATIENCE_SECONDS = 90.0
"""How long to wait until all are gone: schedulers give a job some time to end."""


@dataclass
class Cancelled:
    """Result of cancelling one run."""

    run_dir: Path
    was_complete: bool = False
    n_workers: int = 0
    """Workers that were at work."""
    n_jobs: int = 0
    """Jobs that were cancelled."""
    n_processes: int = 0
    """Local processes that got a signal to end."""
    shared: list[str] = field(default_factory=list)
    """Jobs that stay, because they serve other runs as well."""
    problems: list[str] = field(default_factory=list)
    """Messages for jobs and workers that could not be cancelled."""
    left: list[str] = field(default_factory=list)
    """Workers and jobs that have not ended."""


def cancel_runs(
    run_dirs: Sequence[Path], *, reason: str = "", patience: float = PATIENCE_SECONDS
) -> list[Cancelled]:
    """Cancel runs, and return when all workers have ended, or after a timeout.

    Detached workers and drivers see the mark at their next heartbeat; a driver cancels the jobs of
    its own cluster. Finished shards are kept, and `resume` lets the rest continue.

    Raises:
        RunFolderError: if a run has neither workers nor a driver; nothing is cancelled then.
    """
    # All are checked before the first is marked: a refusal must leave nothing half cancelled.
    for run_dir in run_dirs:
        _refuse_idle(run_dir)
    results = [_mark(run_dir, reason) for run_dir in run_dirs]
    active = [result for result in results if not result.was_complete]
    deadline = time.monotonic() + patience
    notified: dict[str, JobRecord] = {}
    refused: dict[Path, dict[str, str]] = {result.run_dir: {} for result in active}
    while True:
        # Each time: a worker may have submitted a successor before it saw the mark.
        workforces = {result.run_dir: read_workforce(result.run_dir) for result in active}
        for result in active:
            _cancel_jobs(
                result, workforces[result.run_dir], notified, run_dirs, refused[result.run_dir]
            )
        for result in active:
            workforce = workforces[result.run_dir]
            result.left = _left(workforce, result)
            # A worker that could not be signalled has seen the mark, if it is gone.
            there = {job.record.key for job in workforce.jobs if job.is_there}
            result.problems = [
                said for key, said in refused[result.run_dir].items() if key in there
            ]
        if not any(result.left for result in active) or time.monotonic() >= deadline:
            break
        time.sleep(_POLL_SECONDS)
    for result in active:
        _unmark_finished(result)
    return results


def _unmark_finished(result: Cancelled) -> None:
    """Remove the mark from a run that was completed in this very moment."""
    if read_status(result.run_dir).state == "complete":
        result.was_complete = True
        clear_stop(RecordPaths(result.run_dir))


def _refuse_idle(run_dir: Path) -> None:
    """Refuse to cancel a run that only a driver could continue, where there is none."""
    manifest = require_manifest(run_dir)
    if RecordPaths(run_dir).run.exists() or read_success(manifest.layout(run_dir), manifest.run_id):
        return
    if not living_owners(leases_folder(run_dir)):
        raise RunFolderError(
            f"There is nothing to cancel in {run_dir}: no driver or worker is at work there, and "
            "it has no jobs. Finished shards are kept; to continue, run the same command again."
        )


def _mark(run_dir: Path, reason: str) -> Cancelled:
    if read_status(run_dir).state == "complete":
        return Cancelled(run_dir, was_complete=True)
    by = f"{getpass.getuser()}@{socket.gethostname()}"
    with folder_errors(run_dir):
        paths = make_folders(run_dir)
        if read_stop(paths) is None:  # else the reason of an earlier stop would be lost
            write_stop(paths, StopMark("cancelled", reason or f"cancelled by {by}", by))
    return Cancelled(run_dir, n_workers=len(read_workforce(run_dir).living))


def _cancel_jobs(
    result: Cancelled,
    workforce: Workforce,
    notified: dict[str, JobRecord],
    run_dirs: Sequence[Path],
    refused: dict[str, str],
) -> None:
    from espnet3.parallel.detached.submit import cancel_jobs

    # Those in an unknown state, too: cancelling a job that has ended does no harm.
    jobs = [job for job in workforce.jobs if job.is_there]
    shared = [job for job in jobs if _serves_others(result.run_dir, job, run_dirs)]
    # Not only those of this look: a worker that has left this run is at the next one.
    result.shared = list(dict.fromkeys([*result.shared, *(job.record.job_id for job in shared)]))
    # Each job once: this look is repeated every second, and schedulers take longer to end a job.
    new = [job.record for job in jobs if job not in shared and job.record.key not in notified]
    if new:
        notified.update({record.key: record for record in new})
        n_processes = sum(bool(record.machine) for record in new)
        result.n_processes += n_processes
        n_submitting = sum(record.is_submitting for record in new)
        result.n_jobs += len(new) - n_processes - n_submitting
        # One by one, so that a refusal can be matched with its job.
        for record in new:
            problems = cancel_jobs([record])
            refused |= {record.key: problems[0]} if problems else {}


def _serves_others(run_dir: Path, job: Job, run_dirs: Sequence[Path]) -> bool:
    """Tell whether a job has work in a run that is not being cancelled."""
    ending = {path.resolve() for path in run_dirs}
    # Records have relative paths, since run folders may be moved together.
    others = [Path(os.path.normpath(run_dir.resolve() / other)) for other in job.record.others]
    return any(other not in ending and _has_work(other) for other in others)


def _has_work(run_dir: Path) -> bool:
    manifest = load_manifest(run_dir)
    # A run that is stopped itself has no claim on the job.
    if manifest is None or read_stop(RecordPaths(run_dir)) is not None:
        return False
    return read_success(manifest.layout(run_dir), manifest.run_id) is None


def _left(workforce: Workforce, result: Cancelled) -> list[str]:
    """Name the workers and jobs that are left; a job in an unknown state cannot be awaited."""
    workers = [f"worker {worker.name} on {worker.record.host}" for worker in workforce.living]
    jobs = [
        f"job {job.record.job_id} ({job.state.word or job.state.phase})"
        for job in workforce.jobs
        if job.state.phase in ("pending", "running")
        and not job.has_living_worker
        and job.record.job_id not in result.shared
    ]
    return workers + jobs
