"""Assign shards to workers, longest first, and handle failures.

The queue stays here, with the driver, so that a worker that joins late gets work at once and one
that dies takes a single shard with it.
"""

import logging
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from espnet3.errors import ItemError, WorkerError
from espnet3.parallel.faults import (
    MAX_EARLY_DEATHS,
    Death,
    EarlyDeaths,
    FaultPolicy,
    ShardDeaths,
    Verdict,
    describe_failure,
    dies_at_once,
    error_of,
    keeps_dying,
    no_worker_message,
    skip_advice,
    too_many_message,
)
from espnet3.parallel.tasks import (
    Died,
    Failure,
    Finished,
    ShardAttempt,
    ShardResult,
    Stopped,
    WorkerPool,
)
from espnet3.shards.commit import read_position
from espnet3.shards.lease import HEARTBEAT
from espnet3.text import count

logger = logging.getLogger(__name__)
_POLL_SECONDS = 0.2  # results wake it at once; this is for signals, deaths and new workers
_SLOW_SECONDS = 60.0


class TaskSource(Protocol):
    """Gives out the shards of a run, and knows when all are done."""

    is_on_disk: bool

    def take(self) -> ShardAttempt | None:
        """Return the next shard to run; None if there is none for us now."""

    def n_queued(self) -> int:
        """Return how many shards wait, here or with another driver."""

    def new_attempt(self, task: ShardAttempt) -> str | None:
        """Return a folder for one attempt at a shard; None if there is nowhere to put one."""

    def clean_up(self, task: ShardAttempt) -> None:
        """Remove what an attempt may have left behind."""

    def is_committed(self, task: ShardAttempt) -> bool:
        """Tell whether a shard's results are already published."""

    def is_superseded(self, task: ShardAttempt) -> bool:
        """Tell whether another owner published a shard that is running here."""

    def finished(self, task: ShardAttempt) -> None:
        """Note that a shard is done."""

    def deaths(self, task: ShardAttempt) -> Sequence[Death]:
        """Return the deaths at a shard of workers that were not ours, the oldest first."""

    def died(self, task: ShardAttempt, death: Death) -> bool:
        """Note that a worker of ours died at a shard; tell whether it is left to other drivers."""

    def leave_to_others(self, task: ShardAttempt, failure: Failure) -> bool:
        """Leave a shard that fails on this machine to other drivers, if there are any."""

    def could_not_load(self, task: ShardAttempt, failure: Failure) -> bool:
        """Leave a shard to other drivers if they could load what it needs, and this one not."""

    def is_finished(self) -> bool:
        """Tell whether nothing is left, here or with another driver."""

    def is_waiting(self) -> bool:
        """Tell whether what is left is in another driver's hands."""


class Dispatcher:
    """Runs all shards of a source on a pool of workers.

    Args:
        source: gives out shards to run and takes what became of them.
        pool: the workers.
        policy: which faults are tolerated.
        on_result: called with each finished attempt.
        n_failed_before: items that failed in earlier calls, for `max_errors`.
        on_turn: called several times a second; it may raise to end the run.
    """

    def __init__(
        self,
        source: TaskSource,
        pool: WorkerPool,
        policy: FaultPolicy,
        on_result: Callable[[ShardResult], object] = bool,
        n_failed_before: int = 0,
        on_turn: Callable[[], object] = bool,
    ) -> None:
        self._source = source
        self._pool = pool
        self._policy = policy
        self._on_result = on_result
        self._n_failed_before = n_failed_before
        self._on_turn = on_turn
        self._again: deque[ShardAttempt] = deque()
        self._running: dict[str, ShardAttempt] = {}
        self._deaths: dict[int, ShardDeaths] = {}
        self._failures: dict[int, Failure] = {}
        self._watch = _StallWatch(policy.item_timeout)
        self._n_done = 0
        self._early_deaths = 0
        self._next_drop = time.monotonic() + 2 * HEARTBEAT

    def run(self) -> None:
        """Return when every shard is done, here or by another owner.

        Raises:
            ItemError: an item failed and errors are not skipped, or too many failed.
            WorkerError: a shard's workers kept dying, or no worker came.
        """
        waiting_since = time.monotonic()
        while True:
            self._on_turn()
            self._assign()
            if not self._running and not self._again and self._source.is_finished():
                return
            n_waiting = len(self._again) + self._source.n_queued()
            # A scheduler need not start jobs for which there will be no shard.
            self._pool.expect(n_waiting + len(self._running))
            for event in self._pool.poll(_POLL_SECONDS):
                if isinstance(event, Finished):
                    self._finish(event)
                else:
                    self._record_death(event)
            self._watch.look(self._pool, self._running)
            self._drop_superseded()
            if self._running or self._source.is_waiting():
                # Shards in the hands of others need no worker of ours, so none is missing.
                waiting_since = time.monotonic()
            elif time.monotonic() - waiting_since > self._policy.start_timeout:
                raise WorkerError(no_worker_message(self._policy, self._pool.waiting()))

    @property
    def running(self) -> dict[str, ShardAttempt]:
        """The task of each busy worker."""
        return dict(self._running)

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

    def starting(self) -> str:
        """Say what the first item waits for; nothing once one has begun."""
        positions = list(self._pool.positions().values())
        if self._n_done or any(position >= 0 for position in positions):
            return ""
        are = "is" if len(positions) == 1 else "are"
        building = f"{count(len(positions), 'worker')} {are} building the environment (model, data)"
        return building if positions else "waiting for workers"

    def _assign(self) -> None:
        for worker in self._pool.idle():
            task = self._again.popleft() if self._again else self._take()
            if task is None:
                return
            n_deaths = self._deaths_at(task).deaths
            # A new folder each time: an earlier attempt's worker may still write to its own.
            task = replace(task, attempt=self._source.new_attempt(task), n_deaths=n_deaths)
            self._running[worker] = task
            self._watch.begin(worker)
            self._pool.submit(worker, task)

    def _take(self) -> ShardAttempt | None:
        """Take a shard from the source, with what follows from earlier deaths at it."""
        task = self._source.take()
        if task is None:
            return None
        self._deaths.pop(task.shard, None)  # the source knows all of them
        for death in self._source.deaths(task):
            (task,) = self._retry_or_isolate(task, death)
        return task

    def _deaths_at(self, task: ShardAttempt) -> ShardDeaths:
        return self._deaths.setdefault(task.shard, ShardDeaths())

    def _drop_superseded(self) -> None:
        """Do not continue with what another owner has published meanwhile."""
        if time.monotonic() < self._next_drop:
            return
        # Each costs a look at the folder: with many workers, these come less often.
        n_beats = max(len(self._running) / 4, 1.0)
        # At random, so that many drivers do not ask the file server in step.
        self._next_drop = time.monotonic() + 2 * HEARTBEAT * n_beats * random.uniform(0.7, 1.0)
        for worker, task in list(self._running.items()):
            if self._source.is_superseded(task):
                with suppress(WorkerError):  # Dask cannot replace it: then it is waited for
                    self._pool.kill(worker, "another worker was done sooner")

    def _finish(self, event: Finished) -> None:
        self._running.pop(event.worker, None)
        self._early_deaths = 0  # workers can start here, so later deaths are about items
        result = event.result
        # Does nothing after a commit, which has renamed the folder.
        self._source.clean_up(result.task)
        if result.stopped is not None:
            self._stop_or_skip(result.stopped, result.task)
            return
        for failure in result.failures:
            self._note(failure)
        self._n_done += len(result.task.items)
        self._source.finished(result.task)
        self._on_result(result)

    def _stop_or_skip(self, stopped: Stopped, task: ShardAttempt) -> None:
        if stopped.kind == "lost":
            self._try_again(stopped, task)
            return
        if stopped.kind == "machine":
            self._leave_machine(stopped, task)
            return
        if stopped.kind == "load" and self._source.could_not_load(task, stopped.failure):
            return
        if stopped.kind != "write" or not self._policy.skip_errors:
            self._failures[stopped.failure.position] = _as_recorded(stopped)
            raise error_of(stopped, self._policy) from None
        # The writer may have written half a record, so the attempt is gone; without that item it
        # will do better.
        self._give_up_on(stopped.failure, task)

    def _leave_machine(self, stopped: Stopped, task: ShardAttempt) -> None:
        """Try again, elsewhere if one can; a machine that fails often may fail for the item."""
        known = self._deaths_at(task)
        # Counted apart from deaths: a bad GPU must not use up the retries of an item.
        known.machines += 1
        logger.warning(
            "Shard %d could not continue on %s: %s", task.shard, stopped.failure.host,
            stopped.failure.error,
        )  # fmt: skip
        if self._source.leave_to_others(task, stopped.failure):
            return
        is_item = known.machines >= self._policy.retries
        self._again.append(replace(task, blames_item=is_item))

    def _give_up_on(self, failure: Failure, task: ShardAttempt) -> None:
        self._again.append(self._without(failure, task))

    def _without(self, failure: Failure, task: ShardAttempt) -> ShardAttempt:
        self._note(failure)
        return replace(task, skip={**task.skip, failure.position: failure})

    def _note(self, failure: Failure) -> None:
        self._failures[failure.position] = failure
        limit = self._policy.max_errors
        logger.warning("%s failed and is skipped: %s", failure.name, failure.error)
        n_failed = self._n_failed_before + len(self._failures)
        if limit is not None and n_failed > limit:
            message = too_many_message(n_failed, self._policy)
            raise ItemError(f"{message} The last one: {describe_failure(failure)}")

    @property
    def failures(self) -> list[Failure]:
        """The items that failed in this run, in order."""
        return [self._failures[position] for position in sorted(self._failures)]

    def _record_death(self, event: Died) -> None:
        task = self._running.pop(event.worker, None)
        if task is None:
            return
        # Before the clean-up, which removes the file that holds the position.
        position = read_position(Path(task.attempt)) if task.attempt else None
        self._source.clean_up(task)
        if self._is_committed(task):  # it died after its commit, before it could say so
            return
        if event.was_disconnected or (not event.was_running and position is None):
            # Its worker was lost before the shard began, or only the way to it broke: that is no
            # fault of the shard, which keeps its place.
            self._again.appendleft(task)
            return
        death = Death(event.reason, position, event.log, event.host)
        is_left = self._source.died(task, death)
        # A node that dies takes several workers along, which says nothing about their environment.
        if not event.went_with_others:
            # Without a folder nothing tells whether it had begun; it gets the benefit of the doubt.
            self._note_early_death(event, has_begun=position is not None or task.attempt is None)
        if not is_left:
            self._again.extend(self._retry_or_isolate(task, death))

    def _is_committed(self, task: ShardAttempt) -> bool:
        """Tell whether the shard is committed by any owner; if so, it is done."""
        if not self._source.is_committed(task):
            return False
        self._n_done += len(task.items)
        self._source.finished(task)
        return True

    def _try_again(self, stopped: Stopped, task: ShardAttempt) -> None:
        """Another driver took the attempt away: take what it made of the shard, or run it again."""
        if self._is_committed(task):
            return
        known = self._deaths_at(task)
        known.deaths += 1
        if known.deaths > self._policy.retries:
            raise error_of(stopped, self._policy)
        self._again.append(task)

    def _note_early_death(self, event: Died, *, has_begun: bool) -> None:
        self._early_deaths = 0 if has_begun else self._early_deaths + 1
        if self._early_deaths >= MAX_EARLY_DEATHS:
            # Workers that die before their first item have a broken environment; more of them would
            # die forever.
            raise EarlyDeaths(dies_at_once(event))

    def _retry_or_isolate(self, task: ShardAttempt, death: Death) -> list[ShardAttempt]:
        """Return what to run after a death: the same, with a batch halved, or without an item."""
        verdict = self._deaths_at(task).judge(death.position, task, self._policy.retries)
        if verdict.kind == "retry":
            return [task]
        if verdict.kind == "halve":
            start, stop = verdict.start, verdict.stop
            logger.warning("Items %d to %d kill their worker; trying halves", start, stop - 1)
            # The batch is cut, not the shard: two half shards could not be joined by the user's
            # writers (ADR 3).
            return [replace(task, cuts=(*task.cuts, start, (start + stop) // 2, stop))]
        if verdict.kind == "item":
            return [self._without(self._failure(verdict, task, death), task)]
        return self._halve_in_memory(task, death)

    def _failure(self, verdict: Verdict, task: ShardAttempt, death: Death) -> Failure:
        """Return what to say of an item that kills its worker, unless the run ends with it."""
        index = task.items[verdict.start - task.start]
        error = f"the worker died on this item, {count(verdict.times, 'time')}: {death.reason}"
        failure = Failure(verdict.start, index, task.shard, error, "", log=death.log)
        failure = replace(failure, host=death.host) if death.host else failure
        if not self._policy.skip_errors:
            self._failures[failure.position] = failure
            raise ItemError(describe_failure(failure) + skip_advice(self._policy))
        return failure

    def _halve_in_memory(self, task: ShardAttempt, death: Death) -> list[ShardAttempt]:
        """Without a position, halve the task itself; possible where results are in memory."""
        is_in_items = death.position is not None and death.position[0] < task.stop
        if self._source.is_on_disk or is_in_items:
            raise WorkerError(keeps_dying(task, death))
        if len(task.items) == 1:
            verdict = Verdict("item", task.start, task.stop, self._policy.retries + 1)
            return [self._without(self._failure(verdict, task, death), task)]
        middle = len(task.items) // 2
        first, second = task.items[:middle], task.items[middle:]
        return [replace(task, items=first), replace(task, start=task.start + middle, items=second)]


class _StallWatch:
    """Looks how far each worker is, and replaces one that makes no progress.

    Args:
        item_timeout: seconds that one item, or batch, may take.
    """

    def __init__(self, item_timeout: float | None) -> None:
        self._item_timeout = item_timeout
        self._last: dict[str, tuple[int, float]] = {}
        self._warned: dict[str, float] = {}

    def begin(self, worker: str) -> None:
        """Note that a worker begins an attempt."""
        self._last[worker] = (-1, time.monotonic())

    def look(self, pool: WorkerPool, running: dict[str, ShardAttempt]) -> None:
        """Compare positions with those of the last look."""
        now = time.monotonic()
        for worker, position in pool.positions().items():
            known, since = self._last.get(worker, (-1, now))
            if position != known or worker not in running:
                self._last[worker] = (position, now)
            elif position >= 0:
                self._kill_if_stalled(pool, worker, running[worker], position, now - since)

    def _kill_if_stalled(
        self, pool: WorkerPool, worker: str, task: ShardAttempt, position: int, seconds: float
    ) -> None:
        if self._item_timeout is not None and seconds > self._item_timeout:
            pool.kill(worker, f"no item was finished in {self._item_timeout:g} s (item_timeout)")
            # Otherwise it would be killed at each look until `poll` reports the death.
            self.begin(worker)
        elif seconds - self._warned.get(worker, 0.0) > _SLOW_SECONDS or seconds < 1:
            # Below a second this is a new item, whose first warning is due in a minute.
            self._warned[worker] = seconds
            if seconds > _SLOW_SECONDS:
                logger.warning(
                    "Item at position %d of shard %d has been running for %.0f s on worker %s. "
                    "To have such workers replaced, set parallel.item_timeout: 600.",
                    position, task.shard, seconds, worker,
                )  # fmt: skip


def _as_recorded(stopped: Stopped) -> Failure:
    """Return what stopped a run for `failed.jsonl`: a provider fails for no item."""
    if stopped.kind in ("provider", "load"):
        return replace(stopped.failure, index=None, ids=[])
    return stopped.failure
