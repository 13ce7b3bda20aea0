"""Where the dispatcher gets its shards from: a plan in memory, or a folder shared with others."""

import itertools
import os
import tempfile
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from espnet3.parallel.deaths import Death, deaths_at
from espnet3.parallel.tasks import Failure, ShardTask
from espnet3.shards.commit import discard_attempt, read_done
from espnet3.shards.items import reorder
from espnet3.shards.lease import Lease
from espnet3.shards.manifest import Manifest
from espnet3.shards.plan import batch_edges
from espnet3.shards.records import DeathNote, RecordPaths, read_deaths, write_death

if TYPE_CHECKING:
    from espnet3.shards.items import Items


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

    def finished(self, task: ShardTask) -> None:
        """Note that a shard is done."""

    def deaths(self, task: ShardTask) -> Sequence[Death]:
        """Return the deaths at a shard of workers that were not ours, the oldest first."""

    def died(self, task: ShardTask, death: Death) -> bool:
        """Note that a worker of ours died at a shard; tell whether it is left to other drivers."""

    def leave_to_others(self, task: ShardTask, trouble: Failure) -> bool:
        """Leave a shard that this machine cannot bear to other drivers, if there are any."""

    def could_not_load(self, task: ShardTask, trouble: Failure) -> bool:
        """Leave a shard to other drivers if they could load what it needs, and this one not."""

    def is_finished(self) -> bool:
        """Tell whether nothing is left, here or with another driver."""

    def is_waiting(self) -> bool:
        """Tell whether what is left is in another driver's hands."""


class _OnlyDriver:
    """What a source answers whose deaths are all known to the dispatcher."""

    def deaths(self, task: ShardTask) -> Sequence[Death]:
        """Return none: those of other drivers are not known."""
        return ()

    def died(self, task: ShardTask, death: Death) -> bool:
        """Return False: the dispatcher remembers, and tries again."""
        return False

    def leave_to_others(self, task: ShardTask, trouble: Failure) -> bool:
        """Return False: another worker of the same driver may have more luck."""
        return False

    def could_not_load(self, task: ShardTask, trouble: Failure) -> bool:
        """Return False: the user is there, and can mend it."""
        return False


class MemorySource(_OnlyDriver):
    """All shards of a run whose results stay in memory."""

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

    def close(self) -> None:
        """Remove the scratch folders."""
        if self._scratch:
            self._scratch.cleanup()


class FolderSource(_OnlyDriver):
    """The uncommitted shards of a run folder, shared with other drivers by leases."""

    is_on_disk = True

    def __init__(
        self, root: Path, manifest: Manifest, items: "Items", order: Iterable[int], lease: Lease
    ) -> None:
        self._layout = manifest.layout(root)
        self._manifest = manifest
        batches = manifest.load_batches(root)
        self._items = items if batches is None else reorder(items, batches[0])
        self._edges = None if batches is None else batches[1]
        self._lease = lease
        self._paths = RecordPaths(root)
        self._todo = deque(order)
        self._theirs: deque[int] = deque()
        self.n_done_by_others = 0

    def take(self) -> ShardTask | None:
        """Claim the next shard; one that another living driver has is looked at again later."""
        while self._todo:
            shard = self._todo.popleft()
            if self._claim(shard):
                return self._task(shard)
        for _ in range(len(self._theirs)):
            shard = self._theirs.popleft()
            if self._claim(shard):
                return self._task(shard)
        return None

    def n_queued(self) -> int:
        """Return how many shards wait; another driver's too, as it may be gone tomorrow."""
        return len(self._todo) + len(self._theirs)

    def _claim(self, shard: int) -> bool:
        if self._is_done(shard):
            self.n_done_by_others += self._n_items(shard)
            return False
        if not self._lease.claim(self._layout.shard_name(shard)):
            self._theirs.append(shard)
            return False
        if self._is_done(shard):  # committed and released between the two looks
            self._lease.release(self._layout.shard_name(shard))
            self.n_done_by_others += self._n_items(shard)
            return False
        return True

    def _is_done(self, shard: int) -> bool:
        done = read_done(self._layout.shard(shard))
        return done is not None and done.run_id == self._manifest.run_id

    def _n_items(self, shard: int) -> int:
        return self._manifest.bounds[shard + 1] - self._manifest.bounds[shard]

    def _task(self, shard: int) -> ShardTask:
        start, stop = self._manifest.bounds[shard : shard + 2]
        edges = None if self._edges is None else batch_edges(self._edges, start, stop)
        owner_id = self._lease.owner.owner_id
        return ShardTask(shard, start, self._items[start:stop], edges=edges, owner_id=owner_id)

    def deaths(self, task: ShardTask) -> Sequence[Death]:
        """Return the deaths that were noted at a shard, by whomever."""
        return deaths_at(read_deaths(self._paths, task.shard), self._layout.root)

    def died(self, task: ShardTask, death: Death) -> bool:
        """Note the death of a worker of ours for those who come after us; it is tried again."""
        start, stop = death.position or (None, None)
        owner = self._lease.owner
        note = DeathNote(
            task.shard,
            death.host,
            death.reason,
            start,
            stop,
            kind="died" if death.position else "machine",
            owner_id=owner.owner_id,
            job_id=owner.job_id,
            log=os.path.relpath(death.log, self._layout.root) if death.log else "",
        )
        with suppress(OSError):  # the dispatcher remembers it in any case
            write_death(self._paths, note)
        return False

    def new_attempt(self, task: ShardTask) -> str | None:
        """Return the name of a folder that the worker will make."""
        return str(self._layout.new_attempt(task.shard))

    def clean_up(self, task: ShardTask) -> None:
        """Remove the attempt's folder, if it is still there."""
        if task.attempt:
            discard_attempt(Path(task.attempt))

    def is_committed(self, task: ShardTask) -> bool:
        """Tell whether the shard was published, by this attempt or another."""
        return self._is_done(task.shard)

    def finished(self, task: ShardTask) -> None:
        """Give the claim back: the commit says all."""
        self._lease.release(self._layout.shard_name(task.shard))

    def is_finished(self) -> bool:
        """Tell whether nothing is left to run, by us or by another driver."""
        return not self._todo and not self._theirs

    def is_waiting(self) -> bool:
        """Tell whether what is left is in another driver's hands."""
        return not self._todo and bool(self._theirs)
