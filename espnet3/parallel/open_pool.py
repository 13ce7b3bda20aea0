"""Open the worker pool that a config asks for."""

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from espnet3.errors import EspnetError, ProviderError
from espnet3.parallel.client import SharedCluster, open_client
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.execute import ShardLoop, check_env
from espnet3.parallel.faults import FaultPolicy
from espnet3.parallel.pools import Event, Finished, PoolWorker, WorkerPool
from espnet3.parallel.process_pool import ProcessPool
from espnet3.parallel.tasks import (
    RunSpec,
    ShardTask,
    check_size,
    describe_error,
    describe_plainly,
    pack_spec,
    secrets_held,
)

logger = logging.getLogger(__name__)
_NAME = "this process"


def fault_policy(
    config: ParallelConfig,
    *,
    skip_errors: bool = False,
    max_errors: int | None = None,
    config_block: str = "",
) -> FaultPolicy:
    """Return the fault policy of a run, from its config and its runner."""
    return FaultPolicy(
        skip_errors=skip_errors,
        max_errors=max_errors,
        config_block=config_block,
        retries=config.retries,
        item_timeout=config.item_timeout,
        start_timeout=config.start_timeout,
    )


def count_workers(config: ParallelConfig, client: Any) -> int:
    """Return for how many workers to plan."""
    if isinstance(client, SharedCluster):
        client = client.connect() if client.config.env == "dask" else None  # it is there already
    elif client is None and config.env == "dask":
        with open_client(config) as running:
            return max(config.n_workers, len(running.nthreads()))
    return max(config.n_workers, len(client.nthreads()) if client is not None else 0)


def is_inline(config: ParallelConfig, client: Any) -> bool:
    """Tell whether a run needs no other process."""
    return client is None and config.env == "local" and config.n_workers == 1


def uses_processes(config: ParallelConfig, client: Any) -> bool:
    """Tell whether a run's workers are processes of ours on this machine, without Dask."""
    if client is not None or config.env not in ("local", "local_gpu"):
        return False
    if config.env == "local":
        return True
    from espnet3.parallel.clusters.local_gpu import has_dask_cuda

    return not has_dask_cuda()


@contextmanager
def open_pool(
    spec: RunSpec,
    provider: Any,
    config: ParallelConfig,
    *,
    client: Any = None,
    n_tasks: int,
    log_dir: Path | None = None,
) -> Iterator[WorkerPool]:
    """Start the workers for `n_tasks` attempts, never more; stop them at the end of the block.

    `provider` has the two build functions of an `EnvironmentProvider`.

    Raises:
        ProviderError: if what the workers need cannot be built or sent.
    """
    pool = _open(spec, provider, config, client, n_tasks, log_dir)
    with pool as workers:
        try:
            yield workers
        finally:
            workers.stop()


@contextmanager
def _open(
    spec: RunSpec,
    provider: Any,
    config: ParallelConfig,
    client: Any,
    n_tasks: int,
    log_dir: Path | None,
) -> Iterator[WorkerPool]:
    setup_fn = worker_setup_fn(provider)
    if is_inline(config, client):
        check_size(setup_fn, provider)
        if config.item_timeout is not None:
            logger.warning(
                "parallel.item_timeout is ignored: with n_workers: 1 items run in this process, "
                "which cannot be replaced. To enable it, set parallel.n_workers: 2."
            )
        if _threads(config) > 1:
            logger.warning(
                "parallel.options.threads_per_worker is ignored: with n_workers: 1 items run in "
                "this process, which has the threads of OMP_NUM_THREADS or else of its cores."
            )
        yield InlinePool(replace(spec, setup_fn=provider.build_env_local))
        return
    packed = pack_spec(replace(spec, setup_fn=setup_fn), provider)  # before anything is started
    # A worker without a shard would only wait in the queue of the cluster.
    n_workers = min(config.n_workers, n_tasks)
    if client is not None:
        from espnet3.parallel.dask_pool import DaskPool

        if isinstance(client, SharedCluster):
            client = client.connect(log_dir)
        yield DaskPool(client, packed)
    elif uses_processes(config, client):
        yield ProcessPool(
            packed,
            n_workers,
            threads=_threads(config),
            log_dir=log_dir,
            worker_timeout=config.worker_timeout,
            variables=_variables(config),
        )
    else:
        from espnet3.parallel.clusters.job_options import with_log_folder
        from espnet3.parallel.dask_pool import DaskPool

        sized = config.model_copy(update={"n_workers": n_workers})
        with open_client(with_log_folder(sized, log_dir)) as own_client:
            yield DaskPool(own_client, packed)


def worker_setup_fn(provider: Any) -> Callable[[], Any]:
    """Return what builds the environment in a worker.

    Raises:
        ProviderError: if the provider returns something else.
    """
    setup_fn: Callable[[], Any] = provider.build_worker_setup_fn()
    if not callable(setup_fn):
        raise ProviderError(
            f"{type(provider).__name__}.build_worker_setup_fn() returned "
            f"{type(setup_fn).__name__}, but must return a function without arguments that builds "
            "the environment."
        )
    return setup_fn


def _variables(config: ParallelConfig) -> list[dict[str, str]]:
    """Return what to set for each worker process."""
    if config.env != "local_gpu":
        return []
    from espnet3.parallel.clusters.local_gpu import worker_variables

    return worker_variables(config)


def _threads(config: ParallelConfig) -> int:
    from espnet3.parallel.clusters.local import THREADS, check_options, tell_of_unused

    if config.env == "local":  # that of GPUs has others, which are looked at with these
        check_options(config)
    tell_of_unused(config)
    return int(config.options.get(THREADS, 1))


class InlinePool:
    """Pool of one worker in this process: runs attempts one after the other, inside `poll`."""

    def __init__(self, spec: RunSpec) -> None:
        self._folder = os.getcwd()  # a forward() may change it: `stop` goes back
        begin = time.monotonic()
        env = check_env(_build(spec), "build_env_local()")
        self._load_seconds = time.monotonic() - begin
        self._loop = ShardLoop(spec, env)
        self._task: ShardTask | None = None

    def idle(self) -> list[str]:
        """Return this process, unless it has an attempt to run."""
        return [] if self._task else [_NAME]

    def submit(self, worker: str, task: ShardTask) -> None:
        """Keep the attempt for the next `poll`."""
        self._task = task

    def poll(self, timeout: float) -> list[Event]:
        """Run the attempt to its end, however long it takes."""
        if self._task is None:
            time.sleep(timeout)
            return []
        result = self._loop.run(self._task, load_seconds=self._load_seconds)
        self._load_seconds = 0.0
        self._task = None
        return [Finished(_NAME, result)]

    def expect(self, n_left: int) -> None:
        """Do nothing: the number of workers is fixed."""

    def waiting(self) -> str:
        """Return nothing: these workers do not queue."""
        return ""

    def workers(self) -> list[PoolWorker]:
        """Return none: this process does the work."""
        return []

    def positions(self) -> dict[str, int]:
        """Return how far this process is in its attempt."""
        return {_NAME: self._loop.position()} if self._task else {}

    def kill(self, worker: str, reason: str) -> None:
        """Do nothing: this process is busy while it runs an attempt."""

    def stop(self) -> None:
        """Go back to the working directory, which a forward() may have changed."""
        os.chdir(self._folder)


def _build(spec: RunSpec) -> Any:
    try:
        return spec.setup_fn()
    except EspnetError:
        raise
    except Exception as error:
        message = describe_error(error, secrets_held(spec.setup_fn))
        # With a secret in it, the error is not shown as the cause either.
        cause = error if message == describe_plainly(error) else None
        raise ProviderError(f"The provider failed to build its environment: {message}") from cause
