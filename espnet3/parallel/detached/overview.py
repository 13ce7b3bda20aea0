"""Snapshot of a run: progress, workers, jobs and avoided nodes; and waiting for its end."""

import logging
import os
import shlex
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from espnet3.errors import EspnetError, FileSystemError, IncompleteRunError, WorkerError
from espnet3.io.shared_files import warn_once
from espnet3.parallel.detached.folder_access import Patience
from espnet3.parallel.detached.workforce import (
    AskJobs,
    Job,
    Worker,
    Workforce,
    ask_schedulers,
    read_workforce,
)
from espnet3.parallel.faults import judge_nodes
from espnet3.schedulers import JobState, scheduler_of
from espnet3.shards.commit import Done
from espnet3.shards.layout import leases_folder
from espnet3.shards.lease import living_owners
from espnet3.shards.records import JobRecord, RecordPaths, read_deaths
from espnet3.shards.status import RunningShard, RunStatus, StatusReader
from espnet3.text import part_of

logger = logging.getLogger(__name__)
_PAUSE_SECONDS = (0.05, 10.0)
_PAUSE_SHARE = 0.1
_ASK_SECONDS = 30.0
# What others wrote may be seen late, and between two jobs of a chain is no worker for a moment.
_SURE_SECONDS = 20.0
_SURE_HERE_SECONDS = 2.0
OVER = ("complete", "failed", "cancelled", "stopped", "not merged")
"""States in which no worker is left, and none will come by itself."""


@dataclass(frozen=True)
class Overview:
    """A run at one moment."""

    status: RunStatus
    workforce: Workforce = field(default_factory=lambda: Workforce([], []))
    avoided: dict[str, str] = field(default_factory=dict)
    """Nodes that get no more work, and why."""
    committed: dict[int, Done] = field(default_factory=dict)
    """What the shards that are done say of themselves."""
    behind: list[str] = field(default_factory=list)
    """Other run folders that its workers serve first."""

    @property
    def crew(self) -> Workforce:
        """The workforce, by its name of before 0.2, which scripts of users read."""
        return self.workforce

    @property
    def state(self) -> str:
        """State in a word."""
        return self.status.state

    @property
    def is_over(self) -> bool:
        """Tell whether no worker is left, and none will come by itself."""
        return self.state in OVER

    def n_shards_of(self, worker: Worker) -> int:
        """Return how many shards a worker has finished; it says so itself only now and then."""
        return max(worker.record.n_shards, self._n_committed[worker.record.owner_id])

    @cached_property
    def _n_committed(self) -> Counter[str]:
        return Counter(done.owner_id for done in self.committed.values())

    def shard_of(self, worker: Worker) -> RunningShard | None:
        """Return what a worker is working on; of a driver, the first."""
        return next(iter(self.shards_of(worker)), None)

    def shards_of(self, worker: Worker) -> list[RunningShard]:
        """Return the same, where a driver has one for each worker of its pool."""
        return [s for s in self.status.running if s.owner_id == worker.record.owner_id]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for `--json`."""
        return {
            **self.status.as_dict(),
            "workers": [self._worker(w) for w in (*self.workforce.workers, *self.workforce.pool)],
            "jobs": [_job(job) for job in self.workforce.jobs],
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
        # By job and not by answer: jobs that appear between two questions are asked for at once.
        self._asked: dict[str, tuple[float, JobState]] = {}
        self._known: dict[str, Any] = {}

    def look(self) -> Overview:
        """Return how the run stands now."""
        status = self._reader.read()
        workforce = self._workforce()
        state = _state_of_jobs(workforce) if status.state == "stopped" else status.state
        behind = _busy_elsewhere(self._run_dir, workforce) if state == "starting" else []
        # Its jobs have begun, but for this run they still wait.
        state = "queued" if behind else state
        avoided = {} if state == "complete" else self._avoided()
        committed = self._reader.committed
        return Overview(replace(status, state=state), workforce, avoided, committed, behind)

    def _workforce(self) -> Workforce:
        """Return workers and jobs; none, with a warning, if they cannot be read from here."""
        try:
            now, leases = self._reader.now, self._reader.leases
            return read_workforce(
                self._run_dir, self._ask_at_times, self._known, now=now, leases=leases
            )
        except (OSError, FileSystemError) as error:
            reason = str(error).rstrip(".")
            warn_once(f"Jobs and workers of {self._run_dir} cannot be read from here: {reason}.")
            return Workforce([], [])

    def _avoided(self) -> dict[str, str]:
        notes = read_deaths(RecordPaths(self._run_dir), known=self._known)
        return judge_nodes(notes, self._reader.committed.values(), self._reader.now)

    def _ask_at_times(self, records: Sequence[JobRecord]) -> dict[str, JobState]:
        now = time.monotonic()
        due = [r for r in records if now - self._asked.get(r.key, (-1e9,))[0] >= self._ask_seconds]
        if due:
            answer = self._ask(due)
            self._asked |= {key: (now, state) for key, state in answer.items()}
        return {r.key: self._asked[r.key][1] for r in records if r.key in self._asked}


def _state_of_jobs(workforce: Workforce) -> str:
    """Return the state of a run without a worker."""
    if workforce.waiting:
        return "queued"
    if workforce.starting:
        return "starting"
    # "stopped" would invite to resume, and double the workers of a run that waits.
    return "unknown" if any(is_out_of_sight(job) for job in workforce.jobs) else "stopped"


def _busy_elsewhere(run_dir: Path, workforce: Workforce) -> list[str]:
    """Return the folders that workers shared by several runs serve before this one."""
    others = {other for job in workforce.starting for other in job.record.others}
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


def wait_for(
    run_dir: Path,
    timeout: float | None = None,
    *,
    tell: Callable[[Overview], None] | None = None,
    warn: Callable[[str], object] = logger.warning,
    sure_seconds: float = _SURE_SECONDS,
) -> Overview:
    """Return when a run is complete, or when no worker is left and none will come.

    Args:
        run_dir: the run folder.
        timeout: seconds after which to give up; None: never.
        tell: is given each look at the run.
        warn: is given a line when the folder cannot be read for a while.
        sure_seconds: for how long no worker must be seen before a run without a stop mark is over.

    Raises:
        TimeoutError: if it is still running then.
        RunFolderError: if the folder cannot be read for minutes, or is removed.
    """
    begin = time.monotonic()
    patience = Patience(run_dir, warn, None if timeout is None else begin + timeout)
    observer = patience.call(lambda: Observer(run_dir, _ASK_SECONDS))
    alone_since: float | None = None
    while True:
        seen = patience.call(observer.look)
        if tell:
            tell(seen)
        now = time.monotonic()
        # A file says so; any other end is inferred from what is not seen, which takes time.
        if seen.state in ("complete", "failed", "cancelled"):
            return seen
        alone_since = (alone_since or now) if seen.is_over else None
        sure = min(sure_seconds, _SURE_HERE_SECONDS) if _all_ended_here(seen) else sure_seconds
        if alone_since is not None and now - alone_since >= sure:
            return seen
        if timeout is not None and now - begin >= timeout:
            raise TimeoutError(f"{run_dir} is {seen.state} after {timeout:.3g} s of waiting.")
        left = float("inf") if timeout is None else max(begin + timeout - now, 0.05)
        time.sleep(min(pause_after(now - begin), left))


def pause_after(waited: float) -> float:
    """Return the seconds between two looks: a share of those that were waited, within limits."""
    # So the end of a short run is noticed soon, and a long one costs the file server little.
    shortest, longest = _PAUSE_SECONDS
    return min(max(_PAUSE_SHARE * waited, shortest), longest)


def _all_ended_here(seen: Overview) -> bool:
    """Tell whether all workers were processes of this machine, and are gone."""
    jobs = seen.workforce.jobs
    return bool(jobs) and all(job.record.machine and job.state.phase == "ended" for job in jobs)


def failure_of(seen: Overview) -> EspnetError:
    """Return the error that says why a run that is over is not complete, and how to continue."""
    status = seen.status
    where, quoted = status.run_dir, shlex.quote(status.run_dir)
    if status.stop is not None and status.stop.kind == "failed":
        return WorkerError(f"The run in {where} failed: {status.stop.reason}")
    if status.stop is not None and seen.state == "cancelled":
        return IncompleteRunError(
            f"The run in {where} was cancelled by {status.stop.by or 'an unknown user'}, with "
            f"{part_of(status.n_done, status.n_items, 'item')} done. Resume: espnet3 resume "
            f"{quoted}"
        )
    if seen.state == "not merged":
        return IncompleteRunError(
            f"All shards in {where} are done, but no worker is left to merge them. Type: "
            f"espnet3 merge {quoted}"
        )
    done = f"{part_of(status.n_done, status.n_items, 'item', 'is')} done"
    if not status.is_detached:
        return IncompleteRunError(
            f"{where} has no workers left: {done}.",
            fix="Run the command that began it again: finished shards are kept.",
        )
    return IncompleteRunError(
        f"{where} has no workers left, and no job waits: {done}. To see why: espnet3 explain "
        f"{quoted}; to continue: espnet3 resume {quoted}"
    )
