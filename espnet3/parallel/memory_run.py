"""Run without an output folder: results stay in memory."""

import itertools
import tempfile
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3 import logs
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.deaths import Death
from espnet3.parallel.dispatch import Dispatcher
from espnet3.parallel.faults import FaultPolicy
from espnet3.parallel.hooks import RunnerHooks
from espnet3.parallel.open_pool import (
    count_workers,
    fault_policy,
    is_inline,
    open_pool,
    uses_processes,
)
from espnet3.parallel.progress import Progress
from espnet3.parallel.signals import interruptible
from espnet3.parallel.tasks import Failure, RunSpec, ShardResult, ShardTask
from espnet3.shards.commit import discard_attempt
from espnet3.shards.items import reorder
from espnet3.shards.plan import Plan, batch_edges, make_plan

if TYPE_CHECKING:
    from espnet3.shards.items import Items


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
        n_workers * config.shards_per_worker,
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

    scratch = uses_processes(config, client) and not is_inline(config, client)
    source = MemorySource(tasks, scratch=scratch)
    try:
        with interruptible():
            with open_pool(spec, provider, config, client=client, n_tasks=len(tasks)) as pool:
                dispatcher = Dispatcher(source, pool, policy, collect)
                with Progress(len(items), dispatcher.n_items_done, label):
                    dispatcher.run()
    finally:
        source.close()
    return results


def _tasks(plan: Plan, items: "Items") -> list[ShardTask]:
    tasks = []
    for shard in plan.order:
        start, stop = plan.bounds[shard : shard + 2]
        edges = batch_edges(plan.batches.edges, start, stop) if plan.batches else None
        tasks.append(ShardTask(shard, start, items[start:stop], edges=edges))
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
        """Return False: no other process could run it."""
        return False

    def close(self) -> None:
        """Remove the scratch folders."""
        if self._scratch:
            self._scratch.cleanup()
