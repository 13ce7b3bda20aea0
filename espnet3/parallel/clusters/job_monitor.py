"""Monitor the jobs of a cluster: notice lost ones, and replace them while there is work."""

import logging
import math
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from espnet3.errors import ResourceError, WorkerError
from espnet3.parallel.clusters.job_cluster import Change, ConnectedWorker, JobCluster
from espnet3.parallel.clusters.job_logs import words_of_daemon
from espnet3.schedulers import CLOSED_ADVICE, FORGOTTEN, JobState, Scheduler
from espnet3.text import count, duration, end_of_log, part_of

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig

logger = logging.getLogger(__name__)

MAX_EARLY_LOSSES = 3
"""Jobs in a row that may end without finishing anything before the run is given up."""
# Heartbeats of Dask come every few seconds, but none while C code holds the interpreter lock.
_SILENT_SECONDS = 25.0
# How often the scheduler is asked: it serves a whole centre.
_ASK_SECONDS = (3.0, 30.0)
_CALM_SECONDS = 15.0  # between two polls while all workers are connected
_QUEUE_SECONDS = 30.0  # between two looks at whether the queue is open
_RETRY_SECONDS = 10.0
# Words of refusals that are about the moment, not about the options.
_TRANSIENT = ("timed out", "emporar", "Unable to contact", "Connection refused", "try again")
GONE_SECONDS = 45.0
"""Seconds that a job may be without its worker; a nanny restarts one within seconds."""
# A job whose worker lived longer than this did something; what ended it is not its start.
_EARLY_SECONDS = 60.0
_LOST_PER_WORKER = 3
_REACH_SECONDS = 3.0
_N_TRIES = 2
_N_AT_ONCE = 16

Verdict = Literal["fine", "lost", "requeued", "given up"]


@dataclass
class MonitoredJob:
    """State of one job, which runs one worker, or the few that share it.

    All times are of `time.monotonic`.
    """

    name: str
    submitted: float
    replaces: str = ""
    job_id: str = ""
    state: JobState = field(default_factory=lambda: JobState("unknown", ""))
    joined: float | None = None
    """Since when its worker is, or was, connected."""
    gone: float | None = None
    """Since when it has no worker, after it had one."""
    n_odd: int = 0
    """Answers in a row that contradict what we see."""
    n_finished: int = 0
    is_unreachable: bool = False

    @property
    def is_connected(self) -> bool:
        """Tell whether its worker is there."""
        return self.joined is not None and self.gone is None

    def update_connection(self, is_connected: bool, now: float) -> None:
        """Record whether its worker is connected."""
        if is_connected:
            self.joined = now if self.joined is None else self.joined
            self.gone = None
        elif self.joined is not None and self.gone is None:
            self.gone = now
            # Answers from before count no more: a job that started at once was last seen pending,
            # and would be taken for one that the scheduler has requeued.
            self.n_odd = 0
            if self.state.phase == "pending":
                self.state = JobState("unknown", "")

    def update_state(self, state: JobState, asked: float) -> None:
        """Record the state that the scheduler reported when it was asked."""
        if asked < max(self.submitted, self.joined or 0.0, self.gone or 0.0):
            return  # of a time before
        self.state = state
        is_absent = state.phase == "unknown" or state == FORGOTTEN
        is_odd = state.phase != "running" if self.is_connected else is_absent
        self.n_odd = self.n_odd + 1 if is_odd else 0

    def judge(self, now: float) -> Verdict:
        """Decide what has become of the job.

        A worker that is there counts for more than a scheduler that says otherwise: it is
        given up only after two such answers, lest an answer that crossed its arrival kill it.
        """
        phase = self.state.phase
        if self.is_unreachable:
            return "lost"
        if self.is_connected:
            return "given up" if self.n_odd >= 2 and phase in ("pending", "ended") else "fine"
        # A scheduler that was restarted a moment ago may deny a job that runs: asked twice.
        if self.state != FORGOTTEN and phase == "ended":
            return "lost"
        if phase in ("ended", "unknown") and self.n_odd >= 2:
            return "lost"
        if self.gone is None:
            return "fine"
        if phase == "pending":
            return "requeued"
        # The scheduler says that it runs: its nanny may be restarting the worker.
        return "lost" if now - self.gone > GONE_SECONDS else "fine"

    def requeue(self, now: float) -> None:
        """Treat the job as pending again, under the same number."""
        self.joined = self.gone = None
        self.submitted = now
        self.n_odd = 0

    def died_early(self, now: float, scheduler: Scheduler | None) -> bool:
        """Tell whether it got nothing done in the seconds that it had, by its own doing.

        Args:
            now: by `time.monotonic`.
            scheduler: knows which ends say nothing about whether the next job would live.
        """
        # A broken network says nothing about whether the next job would live.
        if self.n_finished or self.is_unreachable:
            return False
        if scheduler is not None and scheduler.is_blameless(self.state):
            return False
        return self.joined is None or (self.gone or now) - self.joined < _EARLY_SECONDS

    def describe_loss(self) -> str:
        """Return the reason, in the scheduler's words if it has any."""
        state = self.state
        if self.is_unreachable:
            return f"its node cannot be reached any more, while its state is {state.word or '?'}"
        if state.phase == "ended":
            return f"{state.word}, {state.reason}" if state.reason else state.word
        if state.phase == "unknown" and self.n_odd >= 2:
            return "the scheduler does not know it any more"
        return f"its worker is gone for {GONE_SECONDS:g} s, while its state is {state.word or '?'}"


def describe_waiting(
    jobs: Iterable[MonitoredJob], now: float, scheduler: Scheduler | None, closed: str = ""
) -> str:
    """Return how many jobs are not there, why, and what to try; empty if none is missing.

    Args:
        jobs: all of them.
        now: by `time.monotonic`.
        scheduler: knows the reasons.
        closed: why the queue starts no jobs.
    """
    jobs = list(jobs)
    status_command = scheduler.status_command if scheduler else "your scheduler's queue"
    pending = [job for job in jobs if not job.is_connected and job.state.phase == "pending"]
    starting = [job for job in jobs if not job.is_connected and job.state.phase == "running"]
    unknown = [job for job in jobs if not job.is_connected and job.state.phase == "unknown"]
    parts = []
    if pending:
        parts.append(_describe_pending(pending, len(jobs), now, scheduler, closed))
    if starting:
        parts.append(_describe_starting(starting, len(jobs), now))
    if unknown:
        parts.append(
            f"{part_of(len(unknown), len(jobs), 'job', 'was')} submitted {_longest(unknown, now)} "
            f"ago, and nothing more is known yet. See: {status_command}."
        )
    return " ".join(parts)


def _describe_pending(
    jobs: list[MonitoredJob], n_jobs: int, now: float, scheduler: Scheduler | None, closed: str
) -> str:
    reasons = Counter(job.state.reason or job.state.word for job in jobs)
    text = closed or ", ".join(f"{reason} ({n})" for reason, n in reasons.most_common(3))
    pending = part_of(len(jobs), n_jobs, "job", "is")
    line = f"{pending} pending for {_longest(jobs, now)}: {text}."
    if closed:
        return f"{line} {CLOSED_ADVICE}."
    if scheduler is None:
        return line
    advice = scheduler.advice(reasons.most_common(1)[0][0])
    return f"{line} {advice or f'See: {scheduler.status_command}'}."


def _describe_starting(jobs: list[MonitoredJob], n_jobs: int, now: float) -> str:
    numbers = ", ".join(job.job_id for job in jobs[:3])
    running = part_of(len(jobs), n_jobs, "job", "runs")
    theirs = "its worker has" if n_jobs == 1 else "their workers have"
    logs = "its log" if n_jobs == 1 else "their logs"
    line = f"{running}, but {theirs} not connected for {_longest(jobs, now)}"
    return f"{line} (job {numbers}). If this lasts, see {logs}."


def _longest(jobs: list[MonitoredJob], now: float) -> str:
    return duration(max(now - (job.gone or job.submitted) for job in jobs))


@dataclass(frozen=True)
class JobLimits:
    """The limits on the number of jobs.

    Args:
        maximum: as many are submitted, if there is work for them.
        minimum: as many are kept until the run ends.
        max_lost: how many lost jobs are replaced.
        idle_seconds: after which a surplus job is cancelled.
        spares_useful: do not count jobs that had finished a shard: a long run on a short walltime
            loses many of them.
    """

    maximum: int
    minimum: int
    max_lost: int
    idle_seconds: float = math.inf
    spares_useful: bool = False

    def n_wanted(self, n_left: int, n_per_job: int) -> int:
        """Return for how many jobs there is work."""
        return min(math.ceil(n_left / n_per_job), self.maximum)

    def surplus(
        self, jobs: Iterable[MonitoredJob], n_wanted: int, idle_since: dict[str, float]
    ) -> list[MonitoredJob]:
        """Return the jobs to end: first those that never started, then the longest idle."""
        if self.idle_seconds == math.inf:
            return []
        jobs = list(jobs)
        n_excess = len(jobs) - max(n_wanted, self.minimum)
        longest = time.monotonic() - self.idle_seconds
        waiting = [job for job in jobs if job.job_id and job.joined is None]
        idle = [
            job for job in jobs if job.is_connected and idle_since.get(job.name, math.inf) < longest
        ]
        idle.sort(key=lambda job: idle_since[job.name])
        return [*waiting, *idle][: max(n_excess, 0)]


def job_limits(config: "ParallelConfig") -> JobLimits:
    """Return what a config says about the number of jobs."""
    spares_useful = config.max_lost_jobs is None
    max_lost = config.max_lost_jobs
    if max_lost is None:
        max_lost = _LOST_PER_WORKER * config.n_workers
    # With adaptive, this is its maximum, unless there is less work than workers.
    n_jobs = config.n_workers
    if config.adaptive is None:
        return JobLimits(n_jobs, n_jobs, max_lost, spares_useful=spares_useful)
    minimum = min(config.adaptive.minimum, n_jobs)
    return JobLimits(n_jobs, minimum, max_lost, config.adaptive.idle_seconds, spares_useful)


@dataclass(frozen=True)
class Answer:
    """Result of one poll."""

    asked: float
    states: dict[str, JobState] = field(default_factory=dict)
    unreachable: frozenset[str] = frozenset()
    closed: str = ""
    """Why the queue starts no jobs, while some wait."""


class StatusPoller:
    """Polls scheduler and network in a thread, one poll at a time: answers may take long."""

    def __init__(self, scheduler: Scheduler | None, queue: str | None = None) -> None:
        self._scheduler, self._queue = scheduler, queue
        self._closed, self._closed_asked = "", -math.inf
        self._answer: Answer | None = None
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        """Tell whether a poll is running."""
        return self._thread is not None and self._thread.is_alive()

    def ask(self, job_ids: Sequence[str], silent: Sequence[str]) -> None:
        """Start a poll of jobs, and of whether the machines of silent workers are reachable."""
        # Daemon: a scheduler's command that hangs must not keep the program from ending.
        self._thread = threading.Thread(
            target=self._poll, args=(job_ids, silent), name="job status", daemon=True
        )
        self._thread.start()

    def take(self) -> Answer | None:
        """Return the result of the last poll, once; None if there is none."""
        answer, self._answer = self._answer, None
        return answer

    def _poll(self, job_ids: Sequence[str], silent: Sequence[str]) -> None:
        asked = time.monotonic()
        states = self._scheduler.jobs(job_ids) if self._scheduler and job_ids else {}
        closed = self._look_at_queue(asked) if _have_pending(states) else ""
        self._answer = Answer(asked, states, frozenset(_unreachable(silent)), closed)

    def _look_at_queue(self, now: float) -> str:
        if self._scheduler is not None and now - self._closed_asked >= _QUEUE_SECONDS:
            self._closed_asked = now
            self._closed = self._scheduler.closed_queue(self._queue)
        return self._closed


def _have_pending(states: dict[str, JobState]) -> bool:
    return any(state.phase == "pending" for state in states.values())


def _unreachable(addresses: Sequence[str]) -> list[str]:
    if not addresses:
        return []
    with ThreadPoolExecutor(min(len(addresses), _N_AT_ONCE)) as threads:
        reached = list(threads.map(is_reachable, addresses))
    return [address for address, is_there in zip(addresses, reached, strict=True) if not is_there]


def is_reachable(address: str) -> bool:
    """Tell whether a worker's machine and process are there, however busy they are.

    The kernel takes the connection, not the process: one that holds the interpreter lock for
    minutes is reachable, one behind a broken cable is not.
    """
    where = urlsplit(address)
    if where.hostname is None or where.port is None:
        return True  # an address of a kind that we cannot try
    for _ in range(_N_TRIES):
        try:
            socket.create_connection((where.hostname, where.port), _REACH_SECONDS).close()
        except ConnectionRefusedError:
            return True  # the machine answers; if the process is gone, Dask will notice
        except OSError:
            continue
        return True
    return False


class JobMonitor:
    """Watches the jobs of one cluster; acts only in `look`.

    Args:
        cluster: submits and cancels jobs.
        scheduler: reports the states of jobs; None if there is none.
        limits: how many jobs there may be.
        queue: that of the jobs; the scheduler's default if None.
    """

    def __init__(
        self,
        cluster: JobCluster,
        scheduler: Scheduler | None,
        limits: JobLimits,
        *,
        queue: str | None = None,
    ) -> None:
        self._cluster = cluster
        self._scheduler = scheduler
        self._poller = StatusPoller(scheduler, queue)
        self._closed = ""
        self._limits = limits
        self._jobs: dict[str, MonitoredJob] = {}
        self._workers: dict[str, ConnectedWorker] = {}
        self._names: dict[str, str] = {}  # of jobs, by the addresses that their workers ever had
        # Jobs that are no longer ours, by the names of their workers, which may still be there.
        self._lost: dict[str, str] = {}
        self._retired: dict[str, str] = {}
        self._to_drop: list[str] = []
        self._to_replace: deque[str] = deque()
        self._not_seen_to_end: set[str] = set()
        self._idle_since: dict[str, float] = {}
        self._is_changing = False
        self._n_lost = self._n_early = self._n_refused = 0
        self._last_asked = self._not_before = -math.inf
        self._unclear_since: float | None = None
        self._has_stopped_replacing = False

    def begin(self, n_jobs: int) -> None:
        """Begin to submit the first jobs."""
        self._change(n_jobs)

    def settle(self, change: Change) -> None:
        """Record the numbers of submitted jobs, or their refusal."""
        now = time.monotonic()
        self._is_changing = False
        for name, job_id in change.job_ids.items():
            job = self._jobs[name]
            job.job_id, job.submitted = job_id, now
            if job.replaces:
                logger.info("Job %s was submitted in place of job %s", job_id, job.replaces)
        # Refused: the job that it was to replace is still missing.
        for name in [name for name, job in self._jobs.items() if not job.job_id]:
            self._to_replace.append(self._jobs.pop(name).replaces)
        if change.error:
            self._note_refusal(change.error, now)

    def look(self, n_left: int, busy: Collection[str] = ()) -> None:
        """Update the state of all jobs, and replace lost ones; takes milliseconds.

        Args:
            n_left: shards that are queued or running; there are never more jobs than that.
            busy: addresses of workers that have a shard.

        Raises:
            WorkerError: jobs keep ending at once, or too many were lost.
            ResourceError: the scheduler refuses a job that was to replace another.
        """
        now = time.monotonic()
        self._workers = self._cluster.workers()
        self._names.update({each: self._name_of(who) for each, who in self._workers.items()})
        # Before the answer: one from before a worker came or went is then dropped.
        self._update_connections(now, busy)
        change = self._cluster.outcome()
        if change is not None:
            self.settle(change)
        self._apply_answer()
        self._handle_lost_jobs(now)
        self._scale(now, n_left)
        self._poll(now)

    def waiting(self) -> str:
        """Return one line: which jobs are not there, why, for how long, and what to try."""
        now = time.monotonic()
        return describe_waiting(self._jobs.values(), now, self._scheduler, self._closed)

    @property
    def began(self) -> list[str]:
        """The jobs whose worker has ever been there, which leave a log."""
        jobs = {name: job.job_id for name, job in self._jobs.items()}
        known = {**jobs, **self._lost, **self._retired}
        return sorted({known[name] for name in self._names.values() if known.get(name)})

    def hopeless(self) -> str:
        """Return why no job will ever start; empty as long as one may.

        Where a job of this run has started, another can: what PBS says can never run may have its
        nodes down for the moment.
        """
        if self._names:
            return ""
        states = [job.state for job in self._jobs.values() if not job.is_connected]
        is_vain = bool(states) and all(
            state.phase == "pending"
            and self._scheduler is not None
            and self._scheduler.never_starts(state.reason)
            for state in states
        )
        return states[0].reason if is_vain else ""

    def is_leaving(self, worker: str) -> bool:
        """Tell whether a worker, by its address, is about to go and should get no work."""
        return worker in self._names and self._names[worker] not in self._jobs

    def note_finished(self, worker: str) -> None:
        """Record that the worker at an address finished a shard."""
        # Early losses count in a row, and finished work ends the row.
        self._n_early = 0
        job = self._jobs.get(self._names.get(worker, ""))
        if job is not None:
            job.n_finished += 1

    def describe(self, worker: str) -> tuple[str, str]:
        """Return the number of a worker's job and the path of its log; empty if unknown."""
        name = self._names.get(worker, "")
        job_id = self._jobs[name].job_id if name in self._jobs else self._lost.get(name, "")
        return (job_id, str(self._cluster.find_log(job_id) or "")) if job_id else ("", "")

    def reason_of_loss(self, worker: str) -> str:
        """Return nothing: a scheduler tells it later, and then the job is logged as lost."""
        return ""

    def not_seen_to_end(self) -> list[str]:
        """Return the jobs that were cancelled, but may still be there."""
        return sorted(self._not_seen_to_end)

    def _name_of(self, worker: ConnectedWorker) -> str:
        name = worker.name
        if any(name in known for known in (self._jobs, self._lost, self._retired)):
            return name
        return name.rpartition("-")[0]  # where a job has several workers, each has a suffix

    def _update_connections(self, now: float, busy: Collection[str]) -> None:
        names = {address: self._names[address] for address in self._workers}
        there, at_work = set(names.values()), {names[each] for each in busy if each in names}
        for name, job in self._jobs.items():
            was_missing = job.gone is not None
            job.update_connection(name in there, now)
            if was_missing and job.is_connected:
                logger.info("The worker of job %s is back", job.job_id)
            if name in at_work or not job.is_connected:
                self._idle_since.pop(name, None)
            else:
                self._idle_since.setdefault(name, now)
        for address, name in names.items():
            if name in self._lost:  # it was replaced: two workers for one job exceed the limits
                logger.warning("Ending a worker of the lost job %s", self._lost[name])
                self._cluster.remove_worker(address)

    def _apply_answer(self) -> None:
        answer = self._poller.take()
        if answer is None:
            return
        for job in self._jobs.values():
            if job.job_id in answer.states:
                job.update_state(answer.states[job.job_id], answer.asked)
        self._closed = answer.closed
        for job_id, state in answer.states.items():
            if state.phase in ("ended", "unknown"):
                self._not_seen_to_end.discard(job_id)
        for address in answer.unreachable:
            self._give_up(address)

    def _give_up(self, address: str) -> None:
        worker, job = self._workers.get(address), self._jobs.get(self._names[address])
        if worker is not None and worker.silent > _SILENT_SECONDS:
            logger.warning(
                "Worker %s has been silent for %.0f s and its machine cannot be reached",
                address, worker.silent,
            )  # fmt: skip
            self._cluster.remove_worker(address)
        elif worker is not None or job is None or job.is_connected:
            return  # it came back while we tried
        if job is not None:
            job.is_unreachable = True

    def _handle_lost_jobs(self, now: float) -> None:
        for job in list(self._jobs.values()):
            verdict = job.judge(now)
            if verdict == "given up":
                self._end_workers(job)
                verdict = "requeued" if job.state.phase == "pending" else "lost"
            if verdict == "requeued":
                logger.warning(
                    "Job %s is back in the queue (%s): the scheduler will restart it",
                    job.job_id, job.state.reason or job.state.word,
                )  # fmt: skip
                job.requeue(now)
            elif verdict == "lost":
                self._record_loss(job, now)

    def _end_workers(self, job: MonitoredJob) -> None:
        logger.warning(
            "The scheduler has given job %s up (%s), but its worker still runs; ending it",
            job.job_id, job.state.word,
        )  # fmt: skip
        for address in self._workers:
            if self._names[address] == job.name:
                self._cluster.remove_worker(address)

    def _record_loss(self, job: MonitoredJob, now: float) -> None:
        del self._jobs[job.name]
        self._lost[job.name] = job.job_id
        self._to_drop.append(job.name)
        self._to_replace.append(job.job_id)
        # Lost by our judgement alone: it may come back, so it is cancelled again at the end.
        if job.state.phase != "ended":
            self._not_seen_to_end.add(job.job_id)
        if not (job.n_finished and self._limits.spares_useful):
            self._n_lost += 1
        log = self._cluster.find_log(job.job_id)
        words = words_of_daemon(log, self._scheduler)
        how = ". ".join(part for part in (job.describe_loss(), words) if part)
        logger.warning(
            "Job %s was lost %.0f s after its submission: %s. Log: %s",
            job.job_id, now - job.submitted, how, log or "none found",
        )  # fmt: skip
        self._n_early = self._n_early + 1 if job.died_early(now, self._scheduler) else 0
        if self._n_early >= MAX_EARLY_LOSSES:
            raise WorkerError(
                f"{self._n_early} jobs in a row ended before they got anything done, the last one "
                f"was job {job.job_id}: {how}.",
                fix="Fix what its log shows; to try a single job before the next run: espnet3 "
                f"doctor --submit. Log: {log or 'none found'}{end_of_log(log)}",
            )

    def _scale(self, now: float, n_left: int) -> None:
        """Submit missing jobs, and cancel lost and surplus ones."""
        n_wanted = self._limits.n_wanted(n_left, self._cluster.n_processes)
        n_more = max(n_wanted - len(self._jobs), 0)
        if n_more and self._n_lost > self._limits.max_lost:
            self._stop_replacing()
            n_more = 0
        for job in self._limits.surplus(self._jobs.values(), n_wanted, self._idle_since):
            logger.info("Job %s is ended: there is no work left for it", job.job_id)
            del self._jobs[job.name]
            self._retired[job.name] = job.job_id
            self._to_drop.append(job.name)
            self._not_seen_to_end.add(job.job_id)
        if now < self._not_before:
            n_more = 0
        if (n_more or self._to_drop) and not self._is_changing:
            self._change(n_more)

    def _change(self, n_more: int) -> None:
        names = self._cluster.change(drop=self._to_drop, n_more=n_more)
        self._to_drop = []
        # One change at a time: a submission takes seconds, and this must return in milliseconds.
        self._is_changing = True
        for name in names:
            replaces = self._to_replace.popleft() if self._to_replace else ""
            self._jobs[name] = MonitoredJob(name, time.monotonic(), replaces)

    def _note_refusal(self, error: str, now: float) -> None:
        self._n_refused += 1
        if self._n_refused < MAX_EARLY_LOSSES and any(words in error for words in _TRANSIENT):
            logger.warning("A job could not be submitted, and is tried again: %s", error)
            self._not_before = now + _RETRY_SECONDS
            return
        raise ResourceError(
            f"A lost job could not be replaced: {error}. Finished shards are kept: fix "
            "parallel.options, or wait until the scheduler takes jobs again, and run the same "
            "command. To continue with the remaining jobs, set parallel.max_lost_jobs: 0."
        )

    def _stop_replacing(self) -> None:
        were = "was" if self._n_lost == 1 else "were"
        text = (
            f"{count(self._n_lost, 'job')} {were} lost, more than parallel.max_lost_jobs allows to "
            "replace"
        )
        if not self._jobs:
            raise WorkerError(
                f"{text} ({self._limits.max_lost}), and none is left. Finished shards are kept; "
                "the messages above tell how they were lost.",
                fix="Run the same command again, or raise parallel.max_lost_jobs.",
            )
        if not self._has_stopped_replacing:
            self._has_stopped_replacing = True
            logger.warning("%s; the run continues with the other %d", text, len(self._jobs))

    def _poll(self, now: float) -> None:
        job_ids = [job.job_id for job in self._jobs.values() if job.job_id]
        silent = [each for each, who in self._workers.items() if who.silent > _SILENT_SECONDS]
        missed = {name for name, job in self._jobs.items() if job.gone is not None}
        silent += [address for address, name in self._names.items() if name in missed]
        is_calm = not silent and all(job.is_connected for job in self._jobs.values())
        self._unclear_since = None if is_calm else self._unclear_since or now
        pause = _CALM_SECONDS
        if self._unclear_since is not None:
            shortest, longest = _ASK_SECONDS
            # The longer it lasts the rarer the question: jobs may wait in a queue for days.
            pause = min(max((now - self._unclear_since) / 10, shortest), longest)
        if now - self._last_asked >= pause and not self._poller.is_running:
            self._last_asked = now
            self._poller.ask([*job_ids, *sorted(self._not_seen_to_end)], silent)
