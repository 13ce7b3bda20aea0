"""Protocol of a worker pool."""

from dataclasses import dataclass
from typing import Protocol

from espnet3.parallel.tasks import ShardResult, ShardTask


@dataclass(frozen=True)
class PoolWorker:
    """A worker that is there, as others should know it."""

    name: str
    host: str
    pid: int = 0
    job_id: str = ""
    log: str = ""


@dataclass(frozen=True)
class Finished:
    """A worker ended an attempt, well or not, and is free again."""

    worker: str
    result: ShardResult


@dataclass(frozen=True)
class Died:
    """A worker is gone. `task` is what it was doing, if anything."""

    worker: str
    task: ShardTask | None
    reason: str
    log: str = ""
    was_running: bool = True
    """Whether the worker died at `task`; not if that waited behind another, or was over."""
    went_with_others: bool = False
    """Whether others left at the same moment: then it was their node, and not what they did."""
    host: str = ""
    """Its node, by the name that other records give it; empty if that is not known."""


Event = Finished | Died


class WorkerPool(Protocol):
    """Workers that run one attempt at a time.

    A pool that is slow to hand over may let attempts wait at a worker, behind the running one; to
    the dispatcher such a place in the queue is a worker with a name of its own.
    """

    def idle(self) -> list[str]:
        """Return the workers that can take an attempt now."""

    def submit(self, worker: str, task: ShardTask) -> None:
        """Give an attempt to an idle worker."""

    def poll(self, timeout: float) -> list[Event]:
        """Wait up to `timeout` seconds for something to happen, and return what did."""

    def expect(self, n_left: int) -> None:
        """Hear how many shards are queued or running: there is no use for more workers."""

    def waiting(self) -> str:
        """Return why workers are missing and what to try; empty if that is not known."""

    def workers(self) -> list[PoolWorker]:
        """Return the workers that are there; none where this process does the work itself."""

    def positions(self) -> dict[str, int]:
        """Return the item position that each busy worker has reached; -1 before the first."""

    def kill(self, worker: str, reason: str) -> None:
        """Get rid of a worker that hangs; it is reported as died."""

    def stop(self) -> None:
        """End all workers at once; what they had not committed is lost."""
