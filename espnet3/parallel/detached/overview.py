"""Snapshot of a run: progress, workers, jobs and avoided nodes."""

import os
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from espnet3.errors import FileSystemError
from espnet3.io.records import warn_once
from espnet3.parallel.detached.bad_nodes import judge_nodes
from espnet3.parallel.detached.crew import AskJobs, Crew, Job, Worker, ask_schedulers, read_crew
from espnet3.schedulers import JobState, scheduler_of
from espnet3.shards.commit import Done
from espnet3.shards.layout import leases_folder
from espnet3.shards.lease import living_owners
from espnet3.shards.records import JobRecord, RecordPaths, read_deaths
from espnet3.shards.status import RunningShard, RunStatus, StatusReader

OVER = ("complete", "failed", "cancelled", "stopped", "not merged")
"""States in which nobody works on a run, or will without somebody's help."""


@dataclass(frozen=True)
class Overview:
    """A run at one moment."""

    status: RunStatus
    crew: Crew = field(default_factory=lambda: Crew([], []))
    avoided: dict[str, str] = field(default_factory=dict)
    """Nodes that get no more work, and why."""
    committed: dict[int, Done] = field(default_factory=dict)
    """What the shards that are done say of themselves."""
    behind: list[str] = field(default_factory=list)
    """Other run folders that its workers serve first."""

    @property
    def state(self) -> str:
        """How it stands, in a word."""
        return self.status.state

    @property
    def is_over(self) -> bool:
        """Whether nothing will happen any more without somebody's help."""
        return self.state in OVER

    def n_shards_of(self, worker: Worker) -> int:
        """Return how many shards a worker has finished; it says so itself only now and then."""
        return max(worker.record.n_shards, self._n_committed[worker.record.owner_id])

    @cached_property
    def _n_committed(self) -> Counter[str]:
        return Counter(done.owner_id for done in self.committed.values())

    def shard_of(self, worker: Worker) -> RunningShard | None:
        """Return what a worker is working on."""
        owner_id = worker.record.owner_id
        return next((s for s in self.status.running if s.owner_id == owner_id), None)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for `--json`."""
        return {
            **self.status.as_dict(),
            "workers": [self._worker(w) for w in (*self.crew.workers, *self.crew.pool)],
            "jobs": [_job(job) for job in self.crew.jobs],
            "avoided_nodes": self.avoided,
        }

    def _worker(self, worker: Worker) -> dict[str, Any]:
        shard = self.shard_of(worker)
        facts = {"name": worker.name, "is_alive": worker.is_alive}
        return {
            **facts,
            **asdict(worker.record),
            "n_shards": self.n_shards_of(worker),
            "shard": shard.shard if shard else None,
        }


def _job(job: Job) -> dict[str, Any]:
    return {**asdict(job.record), **asdict(job.state), "is_successor": job.is_successor}


class Observer:
    """Looks at a run again and again.

    Args:
        run_dir: the run folder.
        ask_seconds: how long an answer of the scheduler holds: it serves many, so it is not asked
            each time.
    """

    def __init__(self, run_dir: Path, ask_seconds: float = 0.0, ask: AskJobs | None = None) -> None:
        self._reader = StatusReader(run_dir)
        self._run_dir = run_dir
        self._ask = ask or ask_schedulers
        self._ask_seconds = ask_seconds
        self._asked: dict[str, tuple[float, JobState]] = {}
        self._known: dict[str, Any] = {}

    def look(self) -> Overview:
        """Return how the run stands now."""
        status = self._reader.read()
        crew = self._crew()
        state = _state_of_jobs(crew) if status.state == "stopped" else status.state
        behind = _busy_elsewhere(self._run_dir, crew) if state == "starting" else []
        state = "queued" if behind else state
        avoided = {} if state == "complete" else self._avoided()
        committed = self._reader.committed
        return Overview(replace(status, state=state), crew, avoided, committed, behind)

    def _crew(self) -> Crew:
        """Return who is there; nobody if that cannot be read from here, which a warning says."""
        try:
            return read_crew(self._run_dir, self._ask_at_times, self._known)
        except (OSError, FileSystemError) as error:
            reason = str(error).rstrip(".")
            warn_once(f"Jobs and workers of {self._run_dir} cannot be read from here: {reason}.")
            return Crew([], [])

    def _avoided(self) -> dict[str, str]:
        notes = read_deaths(RecordPaths(self._run_dir))
        return judge_nodes(notes, self._reader.committed.values(), time.time()) if notes else {}

    def _ask_at_times(self, records: Sequence[JobRecord]) -> dict[str, JobState]:
        now = time.monotonic()
        due = [r for r in records if now - self._asked.get(r.key, (-1e9,))[0] >= self._ask_seconds]
        if due:
            told = self._ask(due)
            self._asked |= {key: (now, state) for key, state in told.items()}
        return {r.key: self._asked[r.key][1] for r in records if r.key in self._asked}


def _state_of_jobs(crew: Crew) -> str:
    """Return the state of a run on which nobody works."""
    if crew.waiting:
        return "queued"
    if crew.starting:
        return "starting"
    return "unknown" if any(is_out_of_sight(job) for job in crew.jobs) else "stopped"


def _busy_elsewhere(run_dir: Path, crew: Crew) -> list[str]:
    """Return the folders that workers who serve several are at, before they come here."""
    others = {other for job in crew.starting for other in job.record.others}
    folders = sorted(os.path.normpath(run_dir / other) for other in others)
    return [folder for folder in folders if living_owners(leases_folder(Path(folder)))]


def is_out_of_sight(job: Job) -> bool:
    """Tell whether a job may wait in the queue of a scheduler whose commands are not here."""
    if job.state.phase != "unknown" or job.workers:
        return False
    scheduler = scheduler_of(job.record.env)
    return scheduler is not None and shutil.which(scheduler.status_command.split()[0]) is None


def look(run_dir: Path) -> Overview:
    """Return how a run stands now."""
    return Observer(run_dir).look()
