"""The workers and queued jobs of a detached run."""

import shlex
import time
from collections import defaultdict
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from espnet3.errors import ResourceError
from espnet3.io.shared_files import MAX_SKEW, look_time
from espnet3.schedulers import FindsTags, JobState, Scheduler, ask_jobs, scheduler_of
from espnet3.shards.layout import leases_folder
from espnet3.shards.lease import HEARTBEAT, LeaseLook, LeaseView, Owner, living_owners
from espnet3.shards.records import (
    JobRecord,
    RecordPaths,
    WorkerRecord,
    read_jobs,
    read_workers,
)
from espnet3.text import count

# Some schedulers leave a job out of their answers for seconds after its submission.
_NEW_SECONDS = 60.0
_MOST_ASKED = 2000  # one that is not asked for would look as if it were gone
_MOST_QUESTIONS, _ASK_AGAIN_SECONDS = 3, 2.0
_START_SECONDS = 600.0
# More than two heartbeats: a single late one means nothing on a busy file server.
_SILENT_SECONDS = 2.5 * HEARTBEAT
UNKNOWN = JobState("unknown", "")
# Words for processes of this machine, which have no scheduler, are the plain ones.
_NO_SCHEDULER = Scheduler()

AskJobs = Callable[[Sequence[JobRecord]], dict[str, JobState]]


@dataclass(frozen=True)
class Worker:
    """A worker that is, or was, at work."""

    record: WorkerRecord
    is_alive: bool
    silent_seconds: float = 0.0
    """How much older its last sign of life is than that of the others."""

    @property
    def name(self) -> str:
        """Name for messages: by its job where it has one, else by machine and process."""
        record = self.record
        return record.job_id or f"{record.host}:{record.pid}"

    @property
    def is_silent(self) -> bool:
        """Tell whether it counts as alive, but several heartbeats are missing."""
        return self.is_alive and self.silent_seconds > _SILENT_SECONDS

    @property
    def is_lost(self) -> bool:
        """Tell whether it is gone and could not say why."""
        return not self.is_alive and self.record.ended is None


@dataclass(frozen=True)
class Job:
    """A job that was submitted, or a process that was started, and what is known of it."""

    record: JobRecord
    state: JobState
    workers: tuple[WorkerRecord, ...] = ()
    """Those that it brought: several if it was requeued."""
    has_living_worker: bool = False
    is_successor: bool = False
    """It waits for a job that is still there."""
    is_new: bool = False
    """It was submitted just now, so that a scheduler may not know it yet."""

    @property
    def scheduler(self) -> Scheduler:
        """Scheduler that knows the words of its state."""
        return scheduler_of(self.record.env) or _NO_SCHEDULER

    @property
    def was_cancelled(self) -> bool:
        """Tell whether it was cancelled, as far as the scheduler knows."""
        return self.state.phase == "ended" and self.scheduler.was_cancelled(self.state)

    @property
    def is_blameless(self) -> bool:
        """Tell whether its end says nothing about whether the next one would live."""
        return self.state.phase == "ended" and self.scheduler.is_blameless(self.state)

    @property
    def is_waiting(self) -> bool:
        """Tell whether it is in the queue and nothing but the scheduler holds it back."""
        return self.state.phase == "pending" and not self.is_successor

    @property
    def is_starting(self) -> bool:
        """Tell whether it runs, or should, but its worker has not signed in."""
        if self.has_living_worker or self.workers:
            return False
        return self.state.phase == "running" or (self.state.phase == "unknown" and self.is_new)

    @property
    def is_there(self) -> bool:
        """Tell whether it has not ended, as far as one can tell."""
        return self.has_living_worker or self.is_starting or self.state.phase != "ended"

    @property
    def is_doubtful(self) -> bool:
        """Tell whether it is not known to exist, nor to have ended.

        One whose worker is silent while the scheduler says that it runs is no better: the file
        server may be away for a while, or the node may hang until the scheduler ends its jobs.
        """
        is_silent = not self.has_living_worker and not self.is_starting
        return is_silent and self.state.phase in ("unknown", "running")


@dataclass(frozen=True)
class Workforce:
    """All workers and jobs of a run."""

    workers: list[Worker]
    jobs: list[Job]
    pool: list[Worker] = field(default_factory=list)
    """Workers that drivers started, which are among `workers` themselves: they end with these."""

    @property
    def living(self) -> list[Worker]:
        """Those at work."""
        return [worker for worker in self.workers if worker.is_alive]

    @property
    def waiting(self) -> list[Job]:
        """Jobs in the queue, without successors of jobs that are still there."""
        return [job for job in self.jobs if job.is_waiting]

    @property
    def starting(self) -> list[Job]:
        """Jobs whose workers should sign in soon."""
        return [job for job in self.jobs if job.is_starting]

    @property
    def doubtful(self) -> list[Job]:
        """Jobs that are not known to exist, nor to have ended."""
        return [job for job in self.jobs if job.is_doubtful]

    @property
    def n_present(self) -> int:
        """Number of those that work, or will without help."""
        return len(self.living) + len(self.waiting) + len(self.starting)

    def of_env(self, env: str) -> "Workforce":
        """Return those of one backend."""
        workers = [worker for worker in self.workers if worker.record.env == env]
        return Workforce(workers, [job for job in self.jobs if job.record.env == env], self.pool)


def read_workforce(
    root: Path,
    ask: AskJobs | None = None,
    known: dict[str, Any] | None = None,
    *,
    now: float | None = None,
    jobs: list[JobRecord] | None = None,
    leases: LeaseLook | None = None,
) -> Workforce:
    """Read the records of workers and jobs; ask the scheduler about jobs without a living worker.

    Args:
        root: the run folder.
        ask: answers for jobs, in place of `job_states`.
        known: what earlier calls need not read again; they add to it.
        now: by the clock of the file system; looked up if None.
        jobs: their records, if the caller has read them.
        leases: the living owners, if the caller has looked.
    """
    paths = RecordPaths(root)
    now = look_time(root) if now is None else now
    if leases is None:
        leases = LeaseView(leases_folder(root)).look(now)
    owners = leases.owners
    records = {record.owner_id: record for record in read_workers(paths, known)}
    latest = max(leases.beats.values(), default=0.0)
    # Not by this machine's clock: that of the file system may be another.
    silence = {owner_id: latest - beat for owner_id, beat in leases.beats.items()}
    found = [
        Worker(r, has_living_owner(r, owners), silence.get(key, 0.0)) for key, r in records.items()
    ]
    workers = [worker for worker in found if not worker.record.is_pool_worker]
    pool = [worker for worker in found if worker.record.is_pool_worker]
    # One whose record is not to be seen yet, or a driver that waits for its own workers.
    workers += [Worker(_of_owner(o, now), True) for key, o in owners.items() if key not in records]
    jobs = read_jobs(paths, known, submitting=True) if jobs is None else jobs
    return Workforce(workers, _read_jobs(jobs, workers, ask or ask_schedulers, now), pool)


def has_living_owner(record: WorkerRecord, owner_ids: Container[str]) -> bool:
    """Tell whether a worker is alive, by the living owners; a pool worker lives with its driver."""
    if record.is_pool_worker:
        return record.driver in owner_ids and record.ended is None
    return record.owner_id in owner_ids


def living_ids(root: Path) -> set[str]:
    """Return the owner ids of all drivers and workers that are at work in a run folder."""
    return {owner.owner_id for owner in living_owners(leases_folder(root))}


def count_workforce(root: Path, env: str, *, only: bool = False) -> int:
    """Return how many workers a run has or will have without anybody's help.

    Called before missing jobs are submitted: jobs of which the scheduler says nothing are
    asked for again, and count as long as it does not answer at all.

    Args:
        root: the run folder.
        env: where more would be submitted.
        only: do not count those of other backends.

    Raises:
        ResourceError: if it cannot be determined whether jobs of this backend exist.
    """
    for number in range(_MOST_QUESTIONS):
        workforce = read_workforce(root)
        workforce = workforce.of_env(env) if only else workforce
        doubtful = [job.record for job in workforce.doubtful if job.state.phase == "unknown"]
        # Only of the backend that would get more: the commands of others may not be here.
        doubtful = [r for r in doubtful if r.env == env and not r.machine]
        submitting = [record for record in doubtful if record.is_submitting]
        if len(doubtful) == len(submitting):
            break
        # No answer at all, in contrast to one without these jobs: then no job may be submitted.
        if not ask_jobs(env, [r.job_id for r in doubtful if not r.is_submitting]):
            raise ResourceError(_no_answer(root, env, len(doubtful)))
        if number + 1 < _MOST_QUESTIONS:
            time.sleep(_ASK_AGAIN_SECONDS)
    # One whose number was never noted may well exist.
    return workforce.n_present + len(submitting)


def has_open_jobs(root: Path) -> bool:
    """Tell by the records alone whether there may be a job that waits; the scheduler is not asked.

    There is none if each job has brought a worker that is alive, or said how it ended.

    Raises:
        OSError: a record cannot be read from here.
    """
    jobs = read_jobs(RecordPaths(root), submitting=True)
    if any(job.is_submitting for job in jobs):
        return True
    to_ask: list[JobRecord] = []

    def note(records: Sequence[JobRecord]) -> dict[str, JobState]:
        to_ask.extend(records)
        return {}

    read_workforce(root, ask=note, jobs=jobs)
    return bool(to_ask)


def _no_answer(root: Path, env: str, n_jobs: int) -> str:
    scheduler = scheduler_of(env)
    command = scheduler.status_command if scheduler else env
    exist = "exists" if n_jobs == 1 else "exist"
    return (
        f"Whether {count(n_jobs, 'job')} of {root} still {exist} cannot be determined: "
        f"`{command}` does not answer, or not in its own words. Nothing was submitted. Try again "
        "when it does; to add workers all the same: espnet3 resume "
        f"{shlex.quote(str(root))} --workers N"
    )


def _of_owner(owner: Owner, now: float) -> WorkerRecord:
    return WorkerRecord(owner.owner_id, owner.host, owner.pid, now, env="", job_id=owner.job_id)


def ask_schedulers(records: Sequence[JobRecord]) -> dict[str, JobState]:
    """Return what schedulers, or this machine, say of jobs, by the key of the record."""
    from espnet3.parallel.detached.submit import job_states

    return job_states(records)


def _read_jobs(
    records: list[JobRecord], workers: list[Worker], ask: AskJobs, now: float
) -> list[Job]:
    records = _with_numbers(records)
    by_number: dict[tuple[str, str], list[Worker]] = defaultdict(list)
    for worker in workers:
        # A process has its pid as the number of its job, and no job id in its record.
        for number in {worker.record.job_id, str(worker.record.pid)}:
            by_number[worker.record.env, number].append(worker)
    brought = {
        r.key: [w for w in by_number.get((r.env, r.job_id), ()) if _is_of(w.record, r)]
        for r in records
    }
    asked = [r for r in records if _is_open(brought[r.key])][-_MOST_ASKED:]
    states = ask(asked) if asked else {}
    known = {r.key: states.get(r.key) or _state_by_records(brought[r.key]) for r in records}
    present = {
        (r.env, r.job_id)
        for r in records
        if any(w.is_alive for w in brought[r.key]) or known[r.key].phase in ("pending", "running")
        if not r.is_submitting
    }
    return [
        Job(
            record,
            known[record.key],
            tuple(worker.record for worker in brought[record.key]),
            has_living_worker=any(worker.is_alive for worker in brought[record.key]),
            is_successor=bool(record.after) and (record.env, record.after) in present,
            is_new=abs(now - record.submitted) < _NEW_SECONDS,
        )
        for record in records
    ]


def _with_numbers(records: list[JobRecord]) -> list[JobRecord]:
    """Return the records, with the numbers of jobs that were submitted but not noted any more.

    Only where a scheduler can be asked for the mark of a job.
    """
    by_env: dict[str, list[str]] = defaultdict(list)
    for record in records:
        if record.is_submitting:
            by_env[record.env].append(record.tag)
    found: dict[str, str] = {}
    for env, tags in by_env.items():
        scheduler = scheduler_of(env)
        if isinstance(scheduler, FindsTags):
            found |= scheduler.find_tags(tags) or {}
    numbered = {record.job_id for record in records}
    return [
        replace(record, job_id=found[record.tag])
        # A number that another record has already would count the job twice.
        if record.is_submitting and found.get(record.tag, "") not in ("", *numbered)
        else record
        for record in records
    ]


def _is_of(worker: WorkerRecord, job: JobRecord) -> bool:
    if job.is_submitting:
        return False
    # Numbers are used again: those of processes soon, of jobs once a scheduler is installed again.
    if worker.started < job.submitted - MAX_SKEW:
        return False
    if job.machine:  # a process; its number may be used again, but not within minutes
        return str(worker.pid) == job.job_id and worker.started < job.submitted + _START_SECONDS
    return worker.job_id == job.job_id


def _is_open(workers: list[Worker]) -> bool:
    """Tell whether only the scheduler knows what became of a job: it brought no worker yet, or one
    that could not say why it ended."""
    if any(worker.is_alive for worker in workers):
        return False
    # After any other code the scheduler may know more, such as that memory ran out.
    return not any(worker.record.ended and worker.record.exit_code == 0 for worker in workers)


def _state_by_records(workers: list[Worker]) -> JobState:
    """Return what the workers' own records say of their job."""
    if any(worker.is_alive for worker in workers):
        return JobState("running", "")
    ended = [worker.record for worker in workers if worker.record.ended is not None]
    return JobState("ended", "", ended[-1].reason) if ended else UNKNOWN
