"""What the dispatcher needs of a queue of shards, and the queue of a run in memory."""

import itertools
import tempfile
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from espnet3.parallel.deaths import Death
from espnet3.parallel.tasks import Failure, ShardTask
from espnet3.shards.commit import discard_attempt

if TYPE_CHECKING:
    pass


class ShardSource(Protocol):
    """Gives out the shards of a run, and knows when all are done."""

    is_on_disk: bool

    def take(self) -> ShardTask | None:
        """Return the next shard to run; None if there is none for us now."""

    def n_queued(self) -> int:
        """Return how many shards wait, here or with another driver."""

    def new_attempt(self, task: ShardTask) -> str | None:
        """Return a folder for one attempt at a shard; None if there is nowhere to put one."""

    def clean_up(self, task: ShardTask) -> None:
        """Remove what an attempt may have left behind."""

    def is_committed(self, task: ShardTask) -> bool:
        """Tell whether a shard's results are already published."""

    def is_superseded(self, task: ShardTask) -> bool:
        """Tell whether another owner published a shard that is running here."""

    def finished(self, task: ShardTask) -> None:
        """Note that a shard is done."""

    def deaths(self, task: ShardTask) -> Sequence[Death]:
        """Return the deaths at a shard of workers that were not ours, the oldest first."""

    def died(self, task: ShardTask, death: Death) -> bool:
        """Note that a worker of ours died at a shard; tell whether it is left to other drivers."""

    def leave_to_others(self, task: ShardTask, trouble: Failure) -> bool:
        """Leave a shard that fails on this machine to other drivers, if there are any."""

    def could_not_load(self, task: ShardTask, trouble: Failure) -> bool:
        """Leave a shard to other drivers if they could load what it needs, and this one not."""

    def is_finished(self) -> bool:
        """Tell whether nothing is left, here or with another driver."""

    def is_waiting(self) -> bool:
        """Tell whether what is left is in another driver's hands."""


class MemorySource:
    """All shards of a run whose results stay in memory: nobody else knows of it."""

    is_on_disk = False

    def __init__(self, tasks: Iterable[ShardTask], *, scratch: bool) -> None:
        self._tasks = deque(tasks)
        self._names = itertools.count()
        self._scratch = tempfile.TemporaryDirectory(prefix="espnet3-") if scratch else None

    def take(self) -> ShardTask | None:
        """Return the next shard."""
        return self._tasks.popleft() if self._tasks else None

    def n_queued(self) -> int:
        """Return how many shards wait."""
        return len(self._tasks)

    def new_attempt(self, task: ShardTask) -> str | None:
        """Return a scratch folder in which workers of this machine note their position."""
        if self._scratch is None:
            return None
        folder = Path(self._scratch.name) / str(next(self._names))
        folder.mkdir()
        return str(folder)

    def clean_up(self, task: ShardTask) -> None:
        """Remove the scratch folder of an attempt."""
        if task.attempt:
            discard_attempt(Path(task.attempt))

    def is_committed(self, task: ShardTask) -> bool:
        """Return False: what was in a dead worker's memory is lost."""
        return False

    def finished(self, task: ShardTask) -> None:
        """Do nothing: the results are with the caller."""

    def is_finished(self) -> bool:
        """Tell whether all shards were taken."""
        return not self._tasks

    def is_waiting(self) -> bool:
        """Return False: memory is not shared."""
        return False

    def deaths(self, task: ShardTask) -> Sequence[Death]:
        """Return none: the dispatcher knows all."""
        return ()

    def died(self, task: ShardTask, death: Death) -> bool:
        """Return False: it is tried again."""
        return False

    def leave_to_others(self, task: ShardTask, trouble: Failure) -> bool:
        """Return False: another worker of the same driver may have more luck."""
        return False

    def could_not_load(self, task: ShardTask, trouble: Failure) -> bool:
        """Return False: the user is present and can fix it."""
        return False

    def is_superseded(self, task: ShardTask) -> bool:
        """Return False: nobody else could run it."""
        return False

    def close(self) -> None:
        """Remove the scratch folders."""
        if self._scratch:
            self._scratch.cleanup()
