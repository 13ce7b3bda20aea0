"""One job of a cluster: what is known of it, whether it is lost, and why jobs wait."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from espnet3.schedulers import JobState, Scheduler
from espnet3.text import duration

GONE_SECONDS = 45.0
"""How long a job may be without its worker; a nanny starts a new one within seconds."""
_EARLY_SECONDS = 60.0

Verdict = Literal["fine", "lost", "requeued", "given up"]


@dataclass
class KeptJob:
    """A job that was submitted for one worker, or for the few that share it.

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
        """Whether its worker is there."""
        return self.joined is not None and self.gone is None

    def see(self, is_connected: bool, now: float) -> None:
        """Note whether its worker is there."""
        if is_connected:
            self.joined = now if self.joined is None else self.joined
            self.gone = None
        elif self.joined is not None and self.gone is None:
            self.gone = now
            self.n_odd = 0

    def hear(self, state: JobState, asked: float) -> None:
        """Note what the scheduler said when it was asked."""
        if asked < max(self.submitted, self.joined or 0.0, self.gone or 0.0):
            return  # of a time before
        self.state = state
        is_odd = state.phase != "running" if self.is_connected else state.phase == "unknown"
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
        if phase == "ended" or (phase == "unknown" and self.n_odd >= 2):
            return "lost"
        if self.gone is None:
            return "fine"
        if phase == "pending":
            return "requeued"
        return "lost" if now - self.gone > GONE_SECONDS else "fine"

    def requeue(self, now: float) -> None:
        """Begin again as a job that waits: the same one, under the same number."""
        self.joined = self.gone = None
        self.submitted = now
        self.n_odd = 0

    def died_early(self, now: float, blameless: tuple[str, ...] = ()) -> bool:
        """Tell whether it got nothing done in the seconds that it had.

        Args:
            now: by `time.monotonic`.
            blameless: the scheduler's words for its own doing, which says nothing about whether
                the next job would live.
        """
        if self.n_finished or self.is_unreachable or self.state.word.startswith(blameless):
            return False
        return self.joined is None or (self.gone or now) - self.joined < _EARLY_SECONDS

    def how_it_was_lost(self) -> str:
        """Return the reason, in the scheduler's words if it has any."""
        state = self.state
        if self.is_unreachable:
            return f"its node cannot be reached any more, while its state is {state.word or '?'}"
        if state.phase == "ended":
            return f"{state.word}, {state.reason}" if state.reason else state.word
        if state.phase == "unknown" and self.n_odd >= 2:
            return "the scheduler does not know it any more"
        return f"its worker is gone for {GONE_SECONDS:g} s, while its state is {state.word or '?'}"


def describe_waiting(jobs: Iterable[KeptJob], now: float, scheduler: Scheduler | None) -> str:
    """Return how many jobs are not there, why, and what to try; empty if none is missing."""
    jobs = list(jobs)
    status_command = scheduler.status_command if scheduler else "your scheduler's queue"
    pending = [job for job in jobs if not job.is_connected and job.state.phase == "pending"]
    starting = [job for job in jobs if not job.is_connected and job.state.phase == "running"]
    unknown = [job for job in jobs if not job.is_connected and job.state.phase == "unknown"]
    parts = []
    if pending:
        parts.append(_describe_pending(pending, len(jobs), now, scheduler))
    if starting:
        parts.append(_describe_starting(starting, len(jobs), now))
    if unknown:
        parts.append(
            f"{len(unknown)} of {len(jobs)} jobs were submitted {_longest(unknown, now)} ago, and "
            f"nothing is known of them yet. See: {status_command}."
        )
    return " ".join(parts)


def _describe_pending(
    jobs: list[KeptJob], n_jobs: int, now: float, scheduler: Scheduler | None
) -> str:
    reasons = Counter(job.state.reason or job.state.word for job in jobs)
    told = ", ".join(f"{reason} ({n})" for reason, n in reasons.most_common(3))
    line = f"{len(jobs)} of {n_jobs} jobs are pending for {_longest(jobs, now)}: {told}."
    if scheduler is None:
        return line
    advice = scheduler.advice(reasons.most_common(1)[0][0])
    return f"{line} {advice or f'See: {scheduler.status_command}'}."


def _describe_starting(jobs: list[KeptJob], n_jobs: int, now: float) -> str:
    numbers = ", ".join(job.job_id for job in jobs[:3])
    line = f"{len(jobs)} of {n_jobs} jobs run, but their workers have not connected"
    return f"{line} for {_longest(jobs, now)} (job {numbers}). If this lasts, see their logs."


def _longest(jobs: list[KeptJob], now: float) -> str:
    return duration(max(now - (job.gone or job.submitted) for job in jobs))
