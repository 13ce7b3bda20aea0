"""Synchronous driver: run the missing shards of a run folder, then merge."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from espnet3.errors import EspnetError, ItemError, RunInterrupted
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.deaths import forget_deaths
from espnet3.parallel.dispatch import Dispatcher
from espnet3.parallel.faults import FaultPolicy, too_many_message
from espnet3.parallel.folder_run import (
    Merge,
    Merger,
    RunRequest,
    count_failed,
    folder_errors,
    open_run,
    shards_to_run,
    sweep,
    write_failures,
)
from espnet3.parallel.open_pool import count_workers, open_pool
from espnet3.parallel.pools import WorkerPool
from espnet3.parallel.progress import Progress
from espnet3.parallel.shard_queue import ShardQueue
from espnet3.parallel.signals import Interruption, interruptible
from espnet3.parallel.stop_marks import StopWatch, refuse_cancelled, stop_error
from espnet3.parallel.tasks import RunSpec, failure_record
from espnet3.parallel.worker_records import DriverRecords
from espnet3.shards.lease import Lease
from espnet3.shards.manifest import Manifest

logger = logging.getLogger(__name__)


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
            manifest = open_run(self._request, self._count_shards)
            answer = self._request.finished_result(manifest)
            if answer is not None:
                logger.info("%s is complete already: %d items", root, manifest.n_items)
                return answer[0]
            refuse_cancelled(root)
            # Absolute: a forward() in this process may change the working directory.
            with Lease(root.resolve()) as lease, StopWatch(root.resolve(), interruption) as watch:
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
        with records.own.kept():
            self._run_shards(manifest, lease, policy, records, interruption)
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

    def _count_shards(self) -> int:
        return count_workers(self._config, self._client) * self._config.shards_per_worker

    def _run_shards(
        self,
        manifest: Manifest,
        lease: Lease,
        policy: FaultPolicy,
        records: DriverRecords,
        interruption: Interruption,
    ) -> None:
        request = self._request
        layout = manifest.layout(request.root.resolve())
        sweep(layout, lease)
        order = shards_to_run(layout, manifest, retry_failed=request.retry_failed)
        n_failed = 0
        if policy.max_errors is not None:
            n_failed = count_failed(layout, manifest)
            if n_failed > policy.max_errors:
                raise ItemError(too_many_message(n_failed, policy))
        if not order:
            return
        n_left = sum(manifest.bounds[shard + 1] - manifest.bounds[shard] for shard in order)
        n_before = manifest.n_items - n_left
        if n_before:
            logger.info(
                "Resuming %s: %d of %d items are done", layout.root, n_before, manifest.n_items
            )
        else:
            logger.info(
                "Starting %s: %d items in %d shards", layout.root, n_left, manifest.n_shards
            )
        layout.logs.mkdir(exist_ok=True)
        queue = ShardQueue(
            layout.root, manifest, request.items, lease, record=records.own, policy=policy
        )
        queue.prepare()

        def on_turn(pool: WorkerPool) -> None:
            interruption.check()
            records.update(pool)

        with self._dispatcher(manifest, queue, len(order), policy, n_failed, on_turn) as dispatcher:

            def count() -> int:
                return n_before + queue.n_items_of_others(n_before) + dispatcher.n_items_done()

            try:
                with Progress(manifest.n_items, count, request.name, manifest.audio_seconds):
                    dispatcher.run()
            except EspnetError:
                with suppress(OSError):  # on a full disk, the error that is raised matters more
                    failed = [failure_record(f, layout.root) for f in dispatcher.failures]
                    write_failures(layout, failed)
                    # The user knows now, and wants a new try with the next call.
                    forget_deaths(layout.root, owner_id=lease.owner.owner_id)
                raise

    @contextmanager
    def _dispatcher(
        self,
        manifest: Manifest,
        queue: ShardQueue,
        n_tasks: int,
        policy: FaultPolicy,
        n_failed: int,
        on_turn: Callable[[WorkerPool], None],
    ) -> Iterator[Dispatcher]:
        root = self._request.root.resolve()
        spec = replace(
            self._spec, run_id=manifest.run_id, run_dir=str(root), n_shards=manifest.n_shards
        )
        with open_pool(
            spec,
            self._provider,
            self._config,
            client=self._client,
            n_tasks=n_tasks,
            log_dir=manifest.layout(root).logs,
        ) as pool:
            dispatcher = Dispatcher(
                queue,
                pool,
                policy,
                queue.count,
                n_failed_before=n_failed,
                on_turn=lambda: on_turn(pool),
            )
            try:
                yield dispatcher
            finally:
                pool.stop()
                dispatcher.discard_running()
