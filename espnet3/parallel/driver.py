"""Synchronous drivers: run the missing shards of a run folder, then merge; or keep all in memory.

Both show their progress: a bar on a terminal, a line a minute in a log.
"""

import itertools
import logging
import sys
import tempfile
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3 import logs
from espnet3.errors import EspnetError, ItemError, RunInterrupted
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.dispatch import Dispatcher
from espnet3.parallel.faults import (
    Death,
    FaultPolicy,
    StopWatch,
    forget_deaths,
    refuse_cancelled,
    stop_error,
    too_many_message,
)
from espnet3.parallel.folder_run import (
    Merge,
    Merger,
    RunRequest,
    count_failed,
    folder_errors,
    open_run,
    shards_to_run,
    sweep,
    sweep_complete,
    write_failures,
)
from espnet3.parallel.open_pool import (
    count_workers,
    fault_policy,
    is_inline,
    open_pool,
    release_pool,
    shards_to_aim_at,
    uses_processes,
)
from espnet3.parallel.shard_queue import ShardQueue
from espnet3.parallel.signals import Interruption, interruptible
from espnet3.parallel.tasks import (
    Failure,
    PoolWorker,
    RunnerHooks,
    RunSpec,
    ShardAttempt,
    ShardResult,
    WorkerPool,
    failure_record,
)
from espnet3.shards.commit import discard_attempt
from espnet3.shards.layout import RunLayout
from espnet3.shards.lease import Lease, Owner
from espnet3.shards.manifest import Manifest, reorder
from espnet3.shards.plan import Plan, batch_edges, make_plan
from espnet3.shards.records import (
    Identity,
    OwnRecord,
    RecordPaths,
    WorkerRecord,
    log_name,
    write_worker,
)
from espnet3.text import count, duration, part_of

if TYPE_CHECKING:
    from espnet3.shards.manifest import Items

logger = logging.getLogger(__name__)
_UPDATE_SECONDS = 5.0
_DRIVER = "driver"  # no backend: such workers are never submitted, nor replaced
_BAR_SECONDS = 0.25
_LINE_SECONDS = 60.0  # a log is read later, and should show more than progress
_LOOK_SECONDS = 1.0


class DriverRecords:
    """The records of a driver and of the workers of its pool."""

    def __init__(self, root: Path, owner: Owner) -> None:
        self.own = OwnRecord(root, owner, Identity(env=_DRIVER, is_driver=True))
        self._root, self._paths = root, RecordPaths(root)
        self._written: dict[str, WorkerRecord] = {}
        self._n_written = 0
        self._next = 0.0

    def update(self, pool: WorkerPool) -> None:
        """Record workers that came or left, and why some are missing; at most every few seconds."""
        if self._written and time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _UPDATE_SECONDS
        there = {worker.name: worker for worker in pool.workers()}
        for name in there.keys() - self._written.keys():
            self._written[name] = self._record_of(there[name])
            self._write(self._written[name])
        for name in self._written.keys() - there.keys():
            self._write(replace(self._written.pop(name), ended=self.own.now(), reason="it is gone"))
        if self.own.record.waiting != pool.waiting():
            self.own.record = replace(self.own.record, waiting=pool.waiting())
            self.own.write()

    def _record_of(self, worker: PoolWorker) -> WorkerRecord:
        self._n_written += 1
        driver = self.own.record.owner_id
        return WorkerRecord(
            owner_id=f"{driver}-{self._n_written}",
            host=worker.host,
            pid=worker.pid,
            started=self.own.now(),
            env=_DRIVER,
            job_id=worker.job_id,
            log=log_name(worker.log, self._root),
            driver=driver,
        )

    def _write(self, record: WorkerRecord) -> None:
        # Records are for observers; the work does not depend on them.
        with suppress(OSError):
            write_worker(self._paths, record)


class FolderDriver:
    """One driver of a run folder; there may be others at the same time.

    Args:
        request: the run that is asked for.
        spec: what workers must know, except for what only the folder's plan says.
        provider: builds the environment of the workers.
        config: where workers run.
        client: a Dask client to run on instead.
    """

    def __init__(
        self, request: RunRequest, spec: RunSpec, provider: Any, config: ParallelConfig, client: Any
    ) -> None:
        self._request = request
        self._spec = spec
        self._provider = provider
        self._config = config
        self._client = client

    def run(self, policy: FaultPolicy, merge: Merge) -> Any:
        """Finish the run and return what `merge` returns; at once if it was finished before."""
        root = self._request.root
        with interruptible() as interruption, folder_errors(root):
            manifest = open_run(self._request, self._shards_to_aim_at)
            # Before the stop mark is looked at: a complete run answers even if it was cancelled.
            answer = self._request.finished_result(manifest)
            if answer is not None:
                items = count(manifest.n_items, "item")
                logger.info("%s is complete already: %s", root, items)
                sweep_complete(manifest.layout(root.resolve()))
                return answer[0]
            refuse_cancelled(root)
            # Absolute: a forward() in this process may change the working directory.
            with Lease(root.resolve()) as lease, StopWatch(root.resolve(), interruption) as watch:
                lease.refuse_other_versions()
                try:
                    return self._finish(manifest, lease, policy, merge, interruption)
                except RunInterrupted:
                    if watch.mark is None:
                        raise
                    raise stop_error(root, watch.mark) from None

    def _finish(
        self,
        manifest: Manifest,
        lease: Lease,
        policy: FaultPolicy,
        merge: Merge,
        interruption: Interruption,
    ) -> Any:
        records = DriverRecords(self._request.root.resolve(), lease.owner)
        running = self._shards_run(manifest, lease, policy, records, interruption)
        with records.own.kept(), running:  # merged first: a cluster may hang when it is closed
            merger = Merger(
                self._request.root,
                self._request.output_dir,
                manifest,
                lease,
                merge,
                needs_result=True,
                retry_failed=self._request.retry_failed,
            )
            answer = merger.await_turn(interruption.check)
            result = merger.merge() if answer is None else answer[0]
            records.own.end("the run is complete", 0)
            return result

    def _shards_to_aim_at(self) -> int:
        return shards_to_aim_at(self._config, count_workers(self._config, self._client))

    @contextmanager
    def _shards_run(
        self,
        manifest: Manifest,
        lease: Lease,
        policy: FaultPolicy,
        records: DriverRecords,
        interruption: Interruption,
    ) -> Iterator[None]:
        """Run the missing shards, then the block, and then close what was opened for workers."""
        layout = manifest.layout(self._request.root.resolve())
        sweep(layout, lease)
        order = shards_to_run(layout, manifest, retry_failed=self._request.retry_failed)
        n_failed = _failed_before(layout, manifest, policy)
        if not order:
            yield
            return
        n_before = _announce(layout, manifest, order)
        layout.logs.mkdir(exist_ok=True)
        queue = ShardQueue(
            layout.root, manifest, self._request.items, lease, record=records.own, policy=policy
        )
        queue.prepare()
        with self._open_pool(manifest, len(order)) as pool:

            def on_turn() -> None:
                interruption.check()
                records.update(pool)

            dispatcher = Dispatcher(
                queue, pool, policy, queue.count, n_failed_before=n_failed, on_turn=on_turn
            )
            try:
                self._dispatch(dispatcher, queue, manifest, n_before)
                release_pool(pool, self._client)
            except EspnetError:
                with suppress(OSError):  # on a full disk, the error that is raised matters more
                    failed = [failure_record(f, layout.root) for f in dispatcher.failures]
                    write_failures(layout, failed)
                    # The user knows now, and wants a new try with the next call.
                    forget_deaths(layout.root, owner_id=lease.owner.owner_id)
                raise
            finally:
                if dispatcher.running:
                    pool.stop()  # first: workers would write on in what is removed
                    dispatcher.discard_running()
            yield

    def _dispatch(
        self, dispatcher: Dispatcher, queue: ShardQueue, manifest: Manifest, n_before: int
    ) -> None:
        """Run all shards, and show how many items this driver and others have done."""

        def count() -> int:
            return n_before + queue.n_items_of_others(n_before) + dispatcher.n_items_done()

        with Progress(
            manifest.n_items,
            count,
            self._request.name,
            manifest.audio_seconds,
            starting=dispatcher.starting,
        ):
            dispatcher.run()

    def _open_pool(self, manifest: Manifest, n_tasks: int) -> AbstractContextManager[WorkerPool]:
        root = self._request.root.resolve()
        spec = replace(
            self._spec,
            run_id=manifest.run_id,
            run_dir=str(root),
            n_shards=manifest.n_shards,
            group_size=manifest.group_size,
        )
        return open_pool(
            spec,
            self._provider,
            self._config,
            client=self._client,
            n_tasks=n_tasks,
            log_dir=manifest.layout(root).logs,
        )


def _failed_before(layout: RunLayout, manifest: Manifest, policy: FaultPolicy) -> int:
    """Return how many items of committed shards failed, if that is limited.

    Raises:
        ItemError: if they are too many already.
    """
    if policy.max_errors is None:
        return 0
    n_failed = count_failed(layout, manifest)
    if n_failed > policy.max_errors:
        raise ItemError(too_many_message(n_failed, policy))
    return n_failed


def _announce(layout: RunLayout, manifest: Manifest, order: Sequence[int]) -> int:
    """Log what is left to do; return how many items are done."""
    n_left = sum(manifest.bounds[shard + 1] - manifest.bounds[shard] for shard in order)
    n_before = manifest.n_items - n_left
    if n_before:
        done = part_of(n_before, manifest.n_items, "item", "is")
        logger.info("Resuming %s: %s done", layout.root, done)
    else:
        items, shards = count(n_left, "item"), count(manifest.n_shards, "shard")
        logger.info("Starting %s: %s in %s", layout.root, items, shards)
    return n_before


class Progress:
    """A thread that asks `count` how many of `total` items are done, and shows it.

    Args:
        total: items in all.
        count: returns how many are done; called from the thread.
        label: what is running.
        audio_seconds: of all items; gives the speed relative to real time.
        starting: says what the first item waits for, and nothing once one has begun.
    """

    def __init__(
        self,
        total: int,
        count: Callable[[], int],
        label: str,
        audio_seconds: float | None = None,
        *,
        starting: Callable[[], str] = str,
    ) -> None:
        self._total = total
        self._count = count
        self._starting = starting
        self._label = label
        self._seconds_per_item = (audio_seconds or 0.0) / max(total, 1)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._show, name="progress", daemon=True)
        self._begin = time.monotonic()
        self._at_begin = 0
        self._since = self._begin  # the last look at which no item had begun
        self._waits_for = "start"

    def __enter__(self) -> "Progress":
        # What was done before the start says nothing about the speed.
        self._at_begin = self._count()
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()

    def _show(self) -> None:
        if sys.stderr.isatty():
            self._show_bar()
        else:
            self._show_lines()

    def _show_lines(self) -> None:
        due = self._begin + _LINE_SECONDS
        while not self._stop.wait(min(due - time.monotonic(), _LOOK_SECONDS)):
            done = self._look()
            if time.monotonic() >= due:
                due += _LINE_SECONDS
                logger.info("%s: %s", self._label, self._line(done))

    def _look(self) -> int:
        """Count; note when the first item began, since what is before it says nothing of speed."""
        done = self._count()
        if self._waits_for:
            # Another driver may be at work while this one has nothing to do.
            self._waits_for = self._starting() if done == self._at_begin else ""
        if self._waits_for:
            self._since = time.monotonic()
        return done

    def _line(self, done: int) -> str:
        rate = self._rate(done)
        left = f", {duration((self._total - done) / rate)} left" if rate > 0 else ""
        return f"{done} of {self._total} items, {self._speed(rate)}{left}"

    def _rate(self, done: int) -> float:
        return (done - self._at_begin) / max(time.monotonic() - self._since, 1e-3)

    def _speed(self, rate: float) -> str:
        if self._waits_for:
            return f"{self._waits_for}, {duration(time.monotonic() - self._begin)}"
        # Of mean items: the longest ones run first, so it is somewhat too high then.
        times = rate * self._seconds_per_item
        return f"{rate:.1f} items/s" + (f", {times:.1f} times real time" if times > 0 else "")

    def _show_bar(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        speed: Any = TextColumn("{task.fields[rate]}")
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), speed)
        with Bar(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
            task = bar.add_task(self._label, total=self._total, rate="")
            while True:
                stopping = self._stop.wait(_BAR_SECONDS)
                done = self._look()
                bar.update(task, completed=done, rate=self._speed(self._rate(done)))
                if stopping:
                    return


def run_in_memory(
    spec: RunSpec,
    provider: Any,
    items: "Items",
    config: ParallelConfig,
    policy: FaultPolicy,
    *,
    client: Any = None,
    costs: Iterable[float] | None = None,
    label: str = "run",
) -> list[Any]:
    """Run all items and return their results in order.

    An item that failed and was skipped has its `Failure` in place of a result.
    """
    if not len(items):
        return []
    n_workers = count_workers(config, client)
    plan = make_plan(
        len(items),
        shards_to_aim_at(config, n_workers),
        batch_size=spec.batch_size,
        batch_seconds=spec.batch_seconds,
        costs=costs,
    )
    order = plan.batches.order if plan.batches else range(len(items))
    tasks = _tasks(plan, reorder(items, plan.batches.order if plan.batches else None))
    results: list[Any] = [None] * len(items)

    def collect(result: ShardResult) -> None:
        for position, value in result.results or []:
            results[order[position]] = value
        for failure in result.failures:
            results[order[failure.position]] = failure

    # Of use only where the driver can read the file, and does not die with its worker.
    scratch = uses_processes(config, client) and not is_inline(config, client)
    source = MemorySource(tasks, scratch=scratch)
    try:
        with interruptible():
            with open_pool(spec, provider, config, client=client, n_tasks=len(tasks)) as pool:
                dispatcher = Dispatcher(source, pool, policy, collect)
                done = dispatcher.n_items_done
                with Progress(len(items), done, label, starting=dispatcher.starting):
                    dispatcher.run()
    finally:
        source.close()
    return results


def _tasks(plan: Plan, items: "Items") -> list[ShardAttempt]:
    tasks = []
    for shard in plan.order:
        start, stop = plan.bounds[shard : shard + 2]
        edges = batch_edges(plan.batches.edges, start, stop) if plan.batches else None
        tasks.append(ShardAttempt(shard, start, items[start:stop], edges=edges))
    return tasks


def map_in_memory(
    fn: Callable[..., Any],
    items: list[Any],
    setup_fn: Callable[[], Any],
    config: ParallelConfig,
    client: Any,
) -> list[Any]:
    """Apply a function to each item as a runner would; see `parallel_map`."""
    spec = RunSpec(
        run_id=uuid.uuid4().hex,
        hooks=RunnerHooks(fn, _unused, _unused, _unused),
        setup_fn=setup_fn,
        batch_size=None,
        skip_errors=False,
    )
    logs.make_visible()
    provider = _FunctionProvider(setup_fn)
    name = getattr(fn, "__name__", "map")
    return run_in_memory(
        spec, provider, items, config, fault_policy(config), client=client, label=name
    )


def _unused() -> None:
    """Stand where a run in memory has no writers."""


class _FunctionProvider:
    def __init__(self, setup_fn: Callable[[], Any]) -> None:
        self._setup_fn = setup_fn

    def build_env_local(self) -> Any:
        return self._setup_fn()

    def build_worker_setup_fn(self) -> Callable[[], Any]:
        return self._setup_fn


class MemorySource:
    """All shards of a run whose results stay in memory: no other process shares it."""

    is_on_disk = False

    def __init__(self, tasks: Iterable[ShardAttempt], *, scratch: bool) -> None:
        self._tasks = deque(tasks)
        self._names = itertools.count()
        self._scratch = tempfile.TemporaryDirectory(prefix="espnet3-") if scratch else None

    def take(self) -> ShardAttempt | None:
        """Return the next shard."""
        return self._tasks.popleft() if self._tasks else None

    def n_queued(self) -> int:
        """Return how many shards wait."""
        return len(self._tasks)

    def new_attempt(self, task: ShardAttempt) -> str | None:
        """Return a scratch folder in which workers of this machine note their position."""
        if self._scratch is None:
            return None
        folder = Path(self._scratch.name) / str(next(self._names))
        folder.mkdir()
        return str(folder)

    def clean_up(self, task: ShardAttempt) -> None:
        """Remove the scratch folder of an attempt."""
        if task.attempt:
            discard_attempt(Path(task.attempt))

    def is_committed(self, task: ShardAttempt) -> bool:
        """Return False: what was in a dead worker's memory is lost."""
        return False

    def finished(self, task: ShardAttempt) -> None:
        """Do nothing: the results are with the caller."""

    def is_finished(self) -> bool:
        """Tell whether all shards were taken."""
        return not self._tasks

    def is_waiting(self) -> bool:
        """Return False: memory is not shared."""
        return False

    def deaths(self, task: ShardAttempt) -> Sequence[Death]:
        """Return none: the dispatcher knows all."""
        return ()

    def died(self, task: ShardAttempt, death: Death) -> bool:
        """Return False: it is tried again."""
        return False

    def leave_to_others(self, task: ShardAttempt, failure: Failure) -> bool:
        """Return False: another worker of the same driver may have more luck."""
        return False

    def could_not_load(self, task: ShardAttempt, failure: Failure) -> bool:
        """Return False: the user is present and can fix it."""
        return False

    def is_superseded(self, task: ShardAttempt) -> bool:
        """Return False: no other process could run it."""
        return False

    def close(self) -> None:
        """Remove the scratch folders."""
        if self._scratch:
            self._scratch.cleanup()
