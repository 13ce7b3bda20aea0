"""A worker's time in one run folder: shard after shard, an eye on its surroundings, the merge."""

import logging
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from espnet3.errors import EspnetError, ItemError
from espnet3.parallel.deaths import bury
from espnet3.parallel.detached.bad_nodes import bad_nodes
from espnet3.parallel.detached.choice import Choice
from espnet3.parallel.detached.detached_source import DetachedSource
from espnet3.parallel.detached.ending import EndSignals, HandBack
from espnet3.parallel.detached.failing import note_failures
from espnet3.parallel.detached.stragglers import Stragglers
from espnet3.parallel.detached.walltime import Pace, Walltime
from espnet3.parallel.dispatch import Dispatcher
from espnet3.parallel.faults import FaultPolicy, too_many
from espnet3.parallel.folder_run import count_failed
from espnet3.parallel.pools import WorkerPool
from espnet3.parallel.tasks import ShardResult
from espnet3.parallel.worker_records import OwnRecord
from espnet3.shards.board import Board
from espnet3.shards.commit import attempts, read_done
from espnet3.shards.lease import HEARTBEAT, Lease
from espnet3.shards.manifest import Manifest
from espnet3.shards.records import RecordPaths, StopMark, read_deaths, read_stop

logger = logging.getLogger(__name__)
_SIGNAL_SECONDS = 2.0
_NODE_SECONDS = 60.0
_SAMPLED = 8
_ENDED_BY_SCHEDULER = ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGINT")


class Shift:
    """One worker at work in one run folder.

    Args:
        root: the run folder.
        manifest: its plan.
        lease: the worker's presence in it.
        record: the worker's record.
        policy: what the run puts up with.
        signals: what may ask the worker to end.
        walltime: until when it may work.
        is_patient: whether to wait for shards in other hands.
        on_turn: called several times a second.
    """

    def __init__(  # noqa: PLR0913 - what one worker consists of
        self,
        root: Path,
        manifest: Manifest,
        *,
        lease: Lease,
        record: OwnRecord,
        policy: FaultPolicy,
        signals: EndSignals,
        walltime: Walltime,
        is_patient: bool = True,
        on_turn: Callable[[], object] = bool,
    ) -> None:
        self._root, self._manifest, self._lease, self._record = root, manifest, lease, record
        self._paths = RecordPaths(root)
        self._policy, self._signals, self._walltime = policy, signals, walltime
        self._tell = on_turn
        self._pace = Pace(manifest)
        self._board = Board(root, manifest, lease)
        stragglers = Stragglers(root, manifest, self._board, lease, self._pace)
        self.choice = Choice(
            root,
            self._board,
            lease,
            walltime=walltime,
            pace=self._pace,
            stragglers=stragglers,
            is_patient=is_patient,
            before_look=self._before_look,
        )
        self._source = DetachedSource(
            root,
            manifest,
            manifest.load_items(root),
            board=self._board,
            lease=lease,
            choice=self.choice,
            record=record,
            stragglers=stragglers,
            retries=policy.retries,
            before_death=self._before_death,
        )
        self._next_beat = self._next_node_look = 0.0
        self._pool: WorkerPool | None = None
        self._dispatcher: Dispatcher | None = None

    def look_around(self) -> None:
        """Learn from what is there: what dead workers left, and how long shards take."""
        for shard, folders in attempts(self._root).items():
            # Of shards without an owner only: a living one's may be seen before its owner file.
            if not self._lease.is_held(self._manifest.layout(self._root).shard_name(shard)):
                bury(self._root, folders, self._lease)
        self._board.refresh()
        for shard in sorted(self._board.committed)[-_SAMPLED:]:
            done = read_done(self._manifest.layout(self._root).shard(shard))
            if done is not None:
                self._pace.learn(done)
        self._check_failed()

    def is_done(self) -> bool:
        """Tell whether all shards are committed, as far as their names tell."""
        self._board.refresh()
        return self._board.is_complete()

    def release(self, shards: Sequence[int]) -> None:
        """Give shards free that were taken for done; claims of finished ones are kept a while."""
        for shard in shards:
            self._board.release(shard)

    def run(self, pool: WorkerPool) -> None:
        """Run shards until all are committed, by whomever.

        Raises:
            HandBack: if this worker should end before that.
            EspnetError: if the run must stop.
        """
        self._pool, self.choice.is_finished = pool, False
        dispatcher = Dispatcher(
            self._source, pool, self._policy, on_result=self._count, on_turn=self.on_turn
        )
        self._dispatcher = dispatcher
        try:
            dispatcher.run()
            self._source.settle("failed")
        except HandBack as end:
            if self._walltime.left() < 0:
                for task in dispatcher.running.values():
                    self._source.cut_off(task)
            self._source.settle(f"handed back: {end.reason}")
            raise
        except EspnetError:
            note_failures(self._root, self._manifest, dispatcher.failures)
            self._source.settle("failed")
            raise
        finally:
            pool.stop()
            dispatcher.discard_running()

    def on_turn(self) -> None:
        """Look whether to go on; called several times a second."""
        self._signals.check()
        if self._walltime.is_over():
            raise HandBack("its walltime is nearly over")
        self._tell()
        if time.monotonic() >= self._next_beat:
            self._next_beat = time.monotonic() + HEARTBEAT * random.uniform(0.7, 1.0)
            self.check_stop()
            self._drop_superseded()
            self._record.write_if_due()

    def check_stop(self) -> None:
        """Raise `HandBack` if the run was stopped."""
        mark = read_stop(self._paths)
        if mark is not None:
            raise stopped_by(mark)

    def _before_look(self) -> None:
        self.check_stop()
        if self._source.had_trouble or time.monotonic() >= self._next_node_look:
            self._source.had_trouble = False
            self._next_node_look = time.monotonic() + _NODE_SECONDS
            self._pace.learn_cuts(read_deaths(self._paths), self._walltime.usable)
            host = self._lease.owner.host
            if why := bad_nodes(self._root, self._manifest, host).get(host):
                raise HandBack(f"{host} is avoided: {why}", code=1)

    def _before_death(self, reason: str) -> None:
        """Give the scheduler's signal to this process the time to come, if one ended the child."""
        deadline = time.monotonic() + _SIGNAL_SECONDS
        while any(name in reason for name in _ENDED_BY_SCHEDULER):
            self._signals.check()
            if time.monotonic() > deadline:
                return
            time.sleep(0.05)

    def _drop_superseded(self) -> None:
        """Do not go on with what another worker has published meanwhile."""
        if self._dispatcher is None or self._pool is None:
            return
        for worker, task in self._dispatcher.running.items():
            if self._source.is_superseded(task):
                self.choice.is_loaded = False
                self._pool.kill(worker, "another worker was done sooner")

    def _count(self, result: ShardResult) -> None:
        done = result.done
        assert done is not None
        self._source.count(result)
        self.choice.succeeded()
        self._pace.learn(done)
        if done.n_failed:
            self._check_failed()

    def _check_failed(self) -> None:
        """Stop if too many items failed, those of other workers included."""
        limit = self._policy.max_errors
        if limit is None:
            return
        n_failed = count_failed(self._manifest.layout(self._root), self._manifest)
        if n_failed > limit:
            raise ItemError(too_many(n_failed, self._policy))


def stopped_by(mark: StopMark) -> HandBack:
    """Return what ends a worker of a run that was stopped."""
    by = f" by {mark.by}" if mark.by else ""
    reason = f"the run was {'cancelled' if mark.kind == 'cancelled' else 'stopped'}{by}"
    code = 0 if mark.kind == "cancelled" else 1
    # Who gives no reason has it noted that they cancelled: that is said already.
    why = "" if reason.endswith(mark.reason) else f": {mark.reason}"
    return HandBack(f"{reason}{why}", code=code, ends_all=False)
