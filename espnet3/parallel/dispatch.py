"""Hand out shards, longest first, and decide what to do when something goes wrong.

The queue stays here, with the driver, so that a worker that joins late gets work at once and one
that dies takes a single shard with it.
"""

import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from espnet3.errors import ItemError, WorkerError
from espnet3.parallel.faults import (
    MAX_EARLY_DEATHS,
    FaultPolicy,
    describe_failure,
    dies_at_once,
    error_of,
    keeps_dying,
    no_worker,
    too_many,
    without_it,
)
from espnet3.parallel.pools import Died, Finished, WorkerPool
from espnet3.parallel.shard_source import ShardSource
from espnet3.parallel.tasks import Failure, ShardResult, ShardTask, Stopped
from espnet3.shards.position import read_position

logger = logging.getLogger(__name__)
_POLL_SECONDS = 0.2
_SLOW_SECONDS = 60.0


@dataclass
class _Suspicion:
    """What is known of the deaths of a shard's workers."""

    deaths: int = 0
    blamed: Counter[tuple[int, int]] = field(default_factory=Counter)
    is_isolating: bool = False


class Dispatcher:
    """Runs all shards of a source on a pool of workers.

    Args:
        source: gives out shards to run and takes what became of them.
        pool: the workers.
        policy: what to put up with.
        on_result: told of each finished attempt.
        n_failed_before: items that failed in earlier calls, for `max_errors`.
    """

    def __init__(
        self,
        source: ShardSource,
        pool: WorkerPool,
        policy: FaultPolicy,
        on_result: Callable[[ShardResult], object] = bool,
        n_failed_before: int = 0,
    ) -> None:
        self._source = source
        self._pool = pool
        self._policy = policy
        self._on_result = on_result
        self._n_failed_before = n_failed_before
        self._again: deque[ShardTask] = deque()
        self._running: dict[str, ShardTask] = {}
        self._suspicions: dict[int, _Suspicion] = {}
        self._failures: dict[int, Failure] = {}
        self._watch = _Watch(policy.item_timeout)
        self._n_done = 0
        self._early_deaths = 0

    def run(self) -> None:
        """Return when every shard is done, by whomever.

        Raises:
            ItemError: an item failed and errors are not skipped, or too many failed.
            WorkerError: a shard's workers kept dying, or no worker came.
        """
        waiting_since = time.monotonic()
        while True:
            self._assign()
            if not self._running and not self._again and self._source.is_finished():
                return
            n_waiting = len(self._again) + self._source.n_queued()
            self._pool.expect(n_waiting + len(self._running))
            for event in self._pool.poll(_POLL_SECONDS):
                if isinstance(event, Finished):
                    self._finish(event)
                else:
                    self._bury(event)
            self._watch.look(self._pool, self._running)
            if self._running or self._source.is_waiting():
                waiting_since = time.monotonic()
            elif time.monotonic() - waiting_since > self._policy.start_timeout:
                raise WorkerError(no_worker(self._policy, self._pool.waiting()))

    def discard_running(self) -> None:
        """Remove what stopped workers were in the middle of."""
        for task in self._running.values():
            self._source.clean_up(task)
        self._running.clear()

    def n_items_done(self) -> int:
        """Return how many items are done, those of running attempts included."""
        partial = 0
        for worker, position in list(self._pool.positions().items()):
            task = self._running.get(worker)
            if task is not None:
                partial += max(position - task.start, 0)
        return self._n_done + partial

    def _assign(self) -> None:
        for worker in self._pool.idle():
            task = self._again.popleft() if self._again else self._source.take()
            if task is None:
                return
            suspicion = self._suspicions.get(task.shard)
            n_deaths = suspicion.deaths if suspicion else 0
            task = replace(task, attempt=self._source.new_attempt(task), n_deaths=n_deaths)
            self._running[worker] = task
            self._watch.begin(worker)
            self._pool.submit(worker, task)

    def _finish(self, event: Finished) -> None:
        self._running.pop(event.worker, None)
        self._early_deaths = 0
        result = event.result
        self._source.clean_up(result.task)
        if result.stopped is not None:
            self._stop_or_skip(result.stopped, result.task)
            return
        for failure in result.failures:
            self._note(failure)
        self._n_done += len(result.task.items)
        self._source.finished(result.task)
        self._on_result(result)

    def _stop_or_skip(self, stopped: Stopped, task: ShardTask) -> None:
        if stopped.kind == "lost":
            self._try_again(stopped, task)
            return
        if stopped.kind != "write" or not self._policy.skip_errors:
            self._failures[stopped.failure.position] = stopped.failure
            raise error_of(stopped, self._policy) from None
        # The writer may have written half a record, so the attempt is gone; without that item it
        # will do better.
        self._give_up_on(stopped.failure, task)

    def _give_up_on(self, failure: Failure, task: ShardTask) -> None:
        self._note(failure)
        self._again.append(replace(task, skip={**task.skip, failure.position: failure}))

    def _note(self, failure: Failure) -> None:
        self._failures[failure.position] = failure
        limit = self._policy.max_errors
        logger.warning("Item %r failed and is skipped: %s", failure.index, failure.error)
        n_failed = self._n_failed_before + len(self._failures)
        if limit is not None and n_failed > limit:
            raise ItemError(
                f"{too_many(n_failed, self._policy)} The last one: {describe_failure(failure)}"
            )

    @property
    def failures(self) -> list[Failure]:
        """The items that failed in this run, in order."""
        return [self._failures[position] for position in sorted(self._failures)]

    def _bury(self, event: Died) -> None:
        task = self._running.pop(event.worker, None)
        if task is None:
            return
        position = read_position(Path(task.attempt)) if task.attempt else None
        self._source.clean_up(task)
        if self._is_committed(task):  # it died after its commit, before it could say so
            return
        if not event.was_running and position is None:
            self._again.appendleft(task)
            return
        if not event.went_with_others:
            self._note_early_death(event, has_begun=position is not None or task.attempt is None)
        suspicion = self._suspicions.setdefault(task.shard, _Suspicion())
        suspicion.deaths += 1
        # At the end of the task the writers are being closed: no item is to blame.
        if position is not None and position[0] < task.stop:
            self._blame(position, task, event, suspicion)
        elif suspicion.deaths <= self._policy.retries:
            self._again.append(task)
        else:
            self._divide(task, event)

    def _is_committed(self, task: ShardTask) -> bool:
        """Tell whether somebody published the shard; if so, it is done."""
        if not self._source.is_committed(task):
            return False
        self._n_done += len(task.items)
        self._source.finished(task)
        return True

    def _try_again(self, stopped: Stopped, task: ShardTask) -> None:
        """Another driver took the attempt away: take what it made of the shard, or run it again."""
        if self._is_committed(task):
            return
        self._suspicions.setdefault(task.shard, _Suspicion()).deaths += 1
        if self._suspicions[task.shard].deaths > self._policy.retries:
            raise error_of(stopped, self._policy)
        self._again.append(task)

    def _note_early_death(self, event: Died, *, has_begun: bool) -> None:
        self._early_deaths = 0 if has_begun else self._early_deaths + 1
        if self._early_deaths >= MAX_EARLY_DEATHS:
            raise WorkerError(dies_at_once(event))

    def _blame(
        self, position: tuple[int, int], task: ShardTask, event: Died, suspicion: _Suspicion
    ) -> None:
        """Decide after a death at a known batch: try again, halve it, or give the item up."""
        suspicion.blamed[position] += 1
        times = suspicion.blamed[position]
        start, stop = position[0], min(position[1], task.stop)
        if times <= self._policy.retries and not suspicion.is_isolating:
            if suspicion.deaths > 3 * (self._policy.retries + 1):
                raise WorkerError(keeps_dying(task, event))
            self._again.append(task)
        elif stop - start > 1:
            suspicion.is_isolating = True
            middle = (start + stop) // 2
            logger.warning("Items %d to %d kill their worker; trying halves", start, stop - 1)
            self._again.append(replace(task, cuts=(*task.cuts, start, middle, stop)))
        else:
            self._give_up_or_raise(start, task, event, times)

    def _give_up_or_raise(self, position: int, task: ShardTask, event: Died, times: int) -> None:
        index = task.items[position - task.start]
        error = f"the worker died on this item, {times} time(s): {event.reason}"
        failure = Failure(position, index, task.shard, error, "", log=event.log)
        if self._policy.skip_errors:
            self._give_up_on(failure, task)
            return
        self._failures[position] = failure
        raise ItemError(describe_failure(failure) + without_it(self._policy))

    def _divide(self, task: ShardTask, event: Died) -> None:
        """Without a position, halve the task itself; possible where results are in memory."""
        if self._source.is_on_disk:
            raise WorkerError(keeps_dying(task, event))
        if len(task.items) == 1:
            self._give_up_or_raise(task.start, task, event, self._policy.retries + 1)
            return
        middle = len(task.items) // 2
        self._again.append(replace(task, items=task.items[:middle]))
        self._again.append(replace(task, start=task.start + middle, items=task.items[middle:]))


class _Watch:
    """Notices attempts that make no progress."""

    def __init__(self, item_timeout: float | None) -> None:
        self._item_timeout = item_timeout
        self._last: dict[str, tuple[int, float]] = {}
        self._warned: dict[str, float] = {}

    def begin(self, worker: str) -> None:
        self._last[worker] = (-1, time.monotonic())

    def look(self, pool: WorkerPool, running: dict[str, ShardTask]) -> None:
        now = time.monotonic()
        for worker, position in pool.positions().items():
            known, since = self._last.get(worker, (-1, now))
            if position != known or worker not in running:
                self._last[worker] = (position, now)
            elif position >= 0:
                self._judge(pool, worker, running[worker], position, now - since)

    def _judge(
        self, pool: WorkerPool, worker: str, task: ShardTask, position: int, seconds: float
    ) -> None:
        if self._item_timeout is not None and seconds > self._item_timeout:
            pool.kill(worker, f"no item was finished in {self._item_timeout:g} s (item_timeout)")
            self.begin(worker)
        elif seconds - self._warned.get(worker, 0.0) > _SLOW_SECONDS or seconds < 1:
            self._warned[worker] = seconds
            if seconds > _SLOW_SECONDS:
                logger.warning(
                    "Item at position %d of shard %d has been running for %.0f s on worker %s. "
                    "To have such workers replaced, set parallel.item_timeout: 600.",
                    position, task.shard, seconds, worker,
                )  # fmt: skip
