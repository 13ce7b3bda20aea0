"""Chains of successor jobs, and whether they made progress."""

import re
import shlex
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

from espnet3.errors import EspnetError, RunFolderError
from espnet3.io.records import parse_record
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.detached.crew import Crew, Job, living_ids
from espnet3.parallel.detached.description import load_trusted, read_own
from espnet3.parallel.parallel import as_parallel_config
from espnet3.shards.records import (
    JobRecord,
    RecordPaths,
    WorkerRecord,
    read_deaths,
    read_job,
    read_workers,
)

_CANCELLED = re.compile("cancel|deleted", re.IGNORECASE)
_SIGNALLED = "it got SIG"
N_FRUITLESS = 3
"""Jobs in a row that may end without finishing a shard."""


def load_config(root: Path, env: str, *, trust: str | None = None) -> ParallelConfig:
    """Return with which config workers were last submitted to a backend.

    Its options are commands that a job runs, so one that somebody else wrote, or could have
    written, is not taken; then that of the run's submission is.

    Raises:
        RunFolderError: if that is somebody else's too, or of another backend.
    """
    path = RecordPaths(root).parallel(env)
    try:
        config = as_parallel_config(parse_record(read_own(path, trust), dict[str, Any], path))
    except (OSError, EspnetError):
        config = load_trusted(root, trust=trust).config()
    if config.env != env:
        raise RunFolderError(
            f"{path}, with the block for more workers, cannot be used here, and the run was "
            f"submitted to {config.env}. To continue: espnet3 resume {shlex.quote(str(root))} "
            f"--env {env}"
        )
    return config


def predecessors(root: Path, env: str, job: str) -> list[JobRecord]:
    """Return the last jobs of a chain before a job, the latest first."""
    paths = RecordPaths(root)
    found: list[JobRecord] = []
    current = read_job(paths, env, job)
    while current is not None and current.after and len(found) < N_FRUITLESS:
        current = read_job(paths, env, current.after)
        found += [current] if current else []
    return found


def last_ended(crew: Crew, env: str) -> list[JobRecord]:
    """Return the last jobs of a run that have ended, the latest first.

    Not those that were cancelled while they waited: they say nothing of the work.
    """
    mine = [job for job in crew.jobs if job.record.env == env]
    there = {job.record.job_id for job in mine if job.is_there}
    ended = [
        job.record
        for job in mine
        if not job.is_there and (job.workers or not _was_cancelled(job, there))
    ]
    return sorted(ended, key=lambda record: record.submitted, reverse=True)[:N_FRUITLESS]


def _was_cancelled(job: Job, there: Container[str]) -> bool:
    """Tell whether a job that brought no worker never began, as far as one can tell."""
    return job.record.after in there or bool(
        _CANCELLED.search(f"{job.state.word} {job.state.reason}")
    )


def without_successor(crew: Crew, env: str) -> list[JobRecord]:
    """Return the active jobs whose successor was cancelled."""
    mine = [job for job in crew.jobs if job.record.env == env]
    after = {job.record.after for job in mine if job.record.after}
    there = {job.record.after for job in mine if job.is_there}
    return [
        job.record for job in mine if job.has_living_worker and job.record.job_id in after - there
    ]


def waiting_successors(root: Path, records: Sequence[JobRecord]) -> list[JobRecord]:
    """Return the jobs that wait for one at work, as far as the folder tells."""
    workers = read_workers(RecordPaths(root))
    living = living_ids(root)
    at_work = {worker.job_id for worker in workers if worker.owner_id in living}
    began = {worker.job_id for worker in workers}
    return [job for job in records if job.after in at_work and job.job_id not in began]


def is_fruitless(root: Path, jobs: Sequence[JobRecord]) -> bool:
    """Tell whether these jobs finished nothing, nor did anybody else since the first of them.

    A worker that died at a certain batch got something done: after some such deaths the item is
    found and given up, or the run stops.
    """
    if len(jobs) < N_FRUITLESS:
        return False
    numbers = {(job.env, job.job_id) for job in jobs}
    paths = RecordPaths(root)
    workers = read_workers(paths)
    theirs = [worker for worker in workers if (worker.env, worker.job_id) in numbers]
    if any(worker.reason.startswith(_SIGNALLED) for worker in theirs):
        return False  # it was ended by a signal, and released its shard
    since = min((worker.started for worker in theirs), default=min(job.submitted for job in jobs))
    if any(_was_useful(worker, since) for worker in workers):
        return False
    return not any(note.start is not None and note.time >= since for note in read_deaths(paths))


def _was_useful(worker: WorkerRecord, since: float) -> bool:
    return worker.n_shards > 0 and (worker.ended or worker.seen or worker.started) >= since
