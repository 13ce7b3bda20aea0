"""One job of a cluster: what is known of it, and whether it is lost."""

from dataclasses import dataclass, field
from typing import Literal

from espnet3.parallel.clusters.schedulers import JobState

GONE_SECONDS = 45.0
"""How long a job may be without its worker; a nanny starts a new one within seconds."""
_EARLY_SECONDS = 60.0
# The scheduler's own doing: says nothing about whether the next job would live.
_NOT_ITS_FAULT = ("NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "REVOKED")

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

    def died_early(self, now: float) -> bool:
        """Tell whether it got nothing done in the seconds that it had."""
        if self.n_finished or self.is_unreachable or self.state.word.startswith(_NOT_ITS_FAULT):
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
