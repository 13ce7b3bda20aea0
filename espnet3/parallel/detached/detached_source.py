"""The shards that a worker without a driver takes from a run folder."""

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from espnet3.errors import FileSystemError
from espnet3.parallel.deaths import Death, bury, deaths_at
from espnet3.parallel.detached.choice import Choice
from espnet3.parallel.detached.stragglers import Stragglers
from espnet3.parallel.tasks import Failure, ShardResult, ShardTask
from espnet3.parallel.worker_records import OwnRecord
from espnet3.shards.board import Board
from espnet3.shards.commit import Done, discard_attempt, read_done
from espnet3.shards.items import reorder
from espnet3.shards.lease import Lease
from espnet3.shards.manifest import Manifest
from espnet3.shards.plan import batch_edges
from espnet3.shards.records import DeathKind, DeathNote, RecordPaths, read_deaths, write_death

if TYPE_CHECKING:
    from espnet3.shards.items import Items

logger = logging.getLogger(__name__)
_ELSEWHERE_SECONDS = 10.0
_HERE_SECONDS, _MAX_HERE_SECONDS = 5.0, 60.0


class DetachedSource:
    """Gives out the shards that `choice` takes, and writes down what others must know of them.

    Args:
        root: the run folder.
        manifest: its plan.
        items: in dataset order.
        board: what is left, and in whose hands.
        lease: this worker's presence in the folder.
        choice: takes shards.
        record: the worker's record.
        retries: how often the machine may be to blame for a shard.
        before_death: told how a worker process ended, before it is noted; it may raise.
    """

    is_on_disk = True

    def __init__(  # noqa: PLR0913 - what one worker consists of
        self,
        root: Path,
        manifest: Manifest,
        items: "Items",
        *,
        board: Board,
        lease: Lease,
        choice: Choice,
        record: OwnRecord,
        stragglers: Stragglers,
        retries: int,
        before_death: Callable[[str], object] = str,
    ) -> None:
        batches = manifest.load_batches(root)
        self._items = items if batches is None else reorder(items, batches[0])
        self._edges = None if batches is None else batches[1]
        self._root, self._manifest, self._layout = root, manifest, manifest.layout(root)
        self._paths = RecordPaths(root)
        self._board, self._lease, self._choice, self._record = board, lease, choice, record
        self._stragglers = stragglers
        self._retries, self._before_death = retries, before_death
        self._deaths: list[Death] = []
        self._begun: tuple[int, float] | None = None
        self.had_trouble = False
        """Whether something died here since somebody looked at the node."""

    def take(self) -> ShardTask | None:
        """Return the next shard, with what other workers noted about it."""
        shard = self._choice.next()
        if shard is None:
            return None
        name = self._layout.shard_name(shard)
        if name in self._lease.taken_over:
            self._lease.taken_over.discard(name)
            self._board.refresh()  # its owner may have begun since the last listing
        bury(self._root, self._board.attempts(shard), self._lease)
        notes = read_deaths(self._paths, shard)
        if self._is_for_others(notes):
            self._leave(shard, _ELSEWHERE_SECONDS)
            return None
        self._deaths = deaths_at(notes, self._root)
        start, stop = self._manifest.bounds[shard : shard + 2]
        edges = None if self._edges is None else batch_edges(self._edges, start, stop)
        return ShardTask(
            shard,
            start,
            self._items[start:stop],
            edges=edges,
            owner_id=self._lease.owner.owner_id,
            blames_item=self._blames_item(notes),
        )

    def _blames_item(self, notes: Sequence[DeathNote]) -> bool:
        """Tell whether a shard failed on so many machines that they cannot be the reason."""
        hosts = [note.host for note in notes if note.kind == "machine" and note.start is not None]
        is_often = len(hosts) >= max(self._retries, 1)
        return is_often and (len(set(hosts)) > 1 or not self._others_elsewhere())

    def _is_for_others(self, notes: Sequence[DeathNote]) -> bool:
        """Tell whether a shard died on this node, and less often on one where others work.

        It may be the node: so it must not be blamed on an item by deaths of one node alone, and
        a node on which all dies does so once at each of a few shards. Not for ever: one that hangs
        elsewhere will never take it.
        """
        notes = [note for note in notes if note.kind != "walltime"]
        n_deaths = Counter(note.host for note in notes)
        host = self._lease.owner.host
        last = max((note.time for note in notes if note.host == host), default=0.0)
        if time.time() - last > self._choice.patience():
            return False
        elsewhere = {owner.host for owner in self._lease.others()} - {host}
        return any(n_deaths[other] < n_deaths[host] for other in elsewhere)

    def _others_elsewhere(self) -> bool:
        host = self._lease.owner.host
        return any(owner.host != host for owner in self._lease.others())

    def deaths(self, task: ShardTask) -> Sequence[Death]:
        """Return the deaths that were noted at the shard that was just taken."""
        return self._deaths

    def died(self, task: ShardTask, death: Death) -> bool:
        """Note the death of our worker; leave the shard to another node, if there are any."""
        self._before_death(death.reason)
        self._choice.is_loaded = False
        kind: DeathKind = "died" if death.position else "machine"
        log = os.path.relpath(death.log, self._root) if death.log else ""
        self._write_note(task, death.reason, kind, death.position, log)
        self._end(task.shard, f"its worker died: {death.reason}", is_lost=True)
        self._record.write()
        is_left = self._is_for_others(read_deaths(self._paths, task.shard))
        if is_left:
            self._leave(task.shard, _ELSEWHERE_SECONDS)
        return is_left

    def leave_to_others(self, task: ShardTask, trouble: Failure) -> bool:
        """Give a shard back that this machine cannot bear; without others, it is tried later."""
        log = os.path.relpath(trouble.log, self._root) if trouble.log else ""
        position = (trouble.position, trouble.position + 1)
        self._write_note(task, trouble.error, "machine", position, log)
        self._end(task.shard, f"this machine cannot go on with it: {trouble.error}", is_lost=True)
        self._record.write()
        notes = read_deaths(self._paths, task.shard)
        n_troubles = sum(note.kind == "machine" for note in notes)
        later = min(_HERE_SECONDS * 2 ** (n_troubles - 1), _MAX_HERE_SECONDS)
        self._leave(task.shard, _ELSEWHERE_SECONDS if self._is_for_others(notes) else later)
        return True

    def could_not_load(self, task: ShardTask, trouble: Failure) -> bool:
        """Leave a shard to another node if a worker there got one done: here a GPU may be gone."""
        if not self._others_elsewhere() or not self._is_done_elsewhere():
            return False
        log = os.path.relpath(trouble.log, self._root) if trouble.log else ""
        self._write_note(task, trouble.error, "machine", None, log)
        self._end(task.shard, f"nothing can be loaded here: {trouble.error}", is_lost=True)
        self._record.write()
        self._leave(task.shard, _ELSEWHERE_SECONDS)
        return True

    def _is_done_elsewhere(self) -> bool:
        host = self._lease.owner.host
        found = (self._peek(shard) for shard in self._board.committed)
        return any(done is not None and done.host != host for done in found)

    def _peek(self, shard: int) -> Done | None:
        """Return what a shard says of itself where nothing depends on what cannot be read."""
        with suppress(FileSystemError):
            return read_done(self._layout.shard(shard))
        return None

    def _leave(self, shard: int, seconds: float) -> None:
        self._choice.avoid(shard, seconds)
        self._release(shard)

    def cut_off(self, task: ShardTask) -> None:
        """Note that the walltime ended an attempt."""
        self._write_note(task, "the walltime was over", "walltime", None, self._record.record.log)

    def _write_note(
        self,
        task: ShardTask,
        reason: str,
        kind: DeathKind,
        position: tuple[int, int] | None,
        log: str,
    ) -> None:
        self.had_trouble = self.had_trouble or kind != "walltime"
        record = self._record.record
        start, stop = position or (None, None)
        note = DeathNote(
            task.shard,
            record.host,
            reason,
            start,
            stop,
            kind=kind,
            seconds=round(self._seconds(), 3),
            owner_id=record.owner_id,
            job_id=record.job_id,
            log=log,
        )
        write_death(self._paths, note)

    def new_attempt(self, task: ShardTask) -> str | None:
        """Return the name of a folder that tells whose attempt it is."""
        self.settle("failed")
        attempt = self._layout.new_attempt(task.shard, self._lease.owner.owner_id)
        logger.info(
            "shard %d begins (attempt %s, items %d to %d)",
            task.shard, attempt.name, task.start, task.stop - 1,
        )  # fmt: skip
        self._begun = (task.shard, time.monotonic())
        return str(attempt)

    def clean_up(self, task: ShardTask) -> None:
        """Remove the attempt's folder, if it is still there."""
        if task.attempt:
            discard_attempt(Path(task.attempt))

    def is_committed(self, task: ShardTask) -> bool:
        """Tell whether the shard was published, by this attempt or another."""
        done = read_done(self._layout.shard(task.shard))
        return done is not None and done.run_id == self._manifest.run_id

    def finished(self, task: ShardTask) -> None:
        """Give the claim back: the commit says all."""
        self._board.finished(task.shard)
        self._stragglers.release(task.shard)

    def count(self, result: ShardResult) -> None:
        """Count a finished attempt, and look whether it came first."""
        done, shard = result.done, result.task.shard
        assert done is not None
        published = read_done(self._layout.shard(shard))
        if published is not None and published.owner_id != done.owner_id:
            self._end(shard, "another worker was done sooner", is_lost=True)
            return
        self._record.published(done)
        failed = f", failed: {done.n_failed}" if done.n_failed else ""
        self._end(shard, f"done, items: {done.n_items}, {done.seconds:.1f} s{failed}")

    def settle(self, how: str) -> None:
        """Note how the last attempt ended, if nothing did: by its commit, another's, or `how`."""
        if self._begun is None:
            return
        shard = self._begun[0]
        done = self._peek(shard)
        if done is None or done.run_id != self._manifest.run_id:
            self._end(shard, how, is_lost=True)
        elif done.owner_id == self._lease.owner.owner_id:  # it could not say so any more
            self._record.published(done)
            self._end(shard, "done")
        else:
            self._end(shard, "another worker was done sooner", is_lost=True)

    def is_superseded(self, task: ShardTask) -> bool:
        """Tell whether another worker published the shard that ours is running."""
        done = self._peek(task.shard)
        if done is None or done.run_id != self._manifest.run_id:
            return False
        return done.owner_id != self._lease.owner.owner_id

    def _end(self, shard: int, how: str, *, is_lost: bool = False) -> None:
        if is_lost:
            self._record.lost(self._seconds())
        self._begun = None
        logger.info("shard %d ends: %s", shard, how)

    def _seconds(self) -> float:
        return time.monotonic() - self._begun[1] if self._begun else 0.0

    def _release(self, shard: int) -> None:
        self._board.release(shard)
        self._stragglers.release(shard)

    def n_queued(self) -> int:
        """Return 0: how many workers there are does not depend on it."""
        return 0

    def is_finished(self) -> bool:
        """Tell whether all shards are committed."""
        return self._choice.is_finished

    def is_waiting(self) -> bool:
        """Return True: whether to wait is decided when a shard is taken."""
        return True
