"""Open the worker pool that a config asks for, and connections to Dask clusters."""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from espnet3.errors import EspnetError, ProviderError, RunInterrupted
from espnet3.parallel.execute import BuiltParts, ShardLoop, check_env, environment_keys
from espnet3.parallel.faults import FaultPolicy
from espnet3.parallel.process_pool import ProcessPool, Spare
from espnet3.parallel.tasks import (
    Event,
    Finished,
    PoolWorker,
    RunSpec,
    ShardAttempt,
    WorkerPool,
    check_size,
    describe_error,
    describe_plainly,
    pack_spec,
    secrets_held,
)
from espnet3.shards.plan import max_shards
from espnet3.text import folded

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig

logger = logging.getLogger(__name__)
CLOSE_SECONDS = 45.0
"""How long the end of a run waits for its cluster to go."""
# After Ctrl-C the process is ended 30 s later, in which it must also say what is left.
INTERRUPTED_CLOSE_SECONDS = 20.0
_DISCONNECT_SECONDS = 5.0
_NAME = "this process"


def fault_policy(
    config: "ParallelConfig",
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


def count_workers(config: "ParallelConfig", client: Any) -> int:
    """Return for how many workers to plan."""
    if isinstance(client, SharedCluster):
        client = client.connect() if client.config.env == "dask" else None  # it is there already
    elif client is None and config.env == "dask":
        with open_client(config) as running:
            return max(config.n_workers, len(running.nthreads()))
    return max(config.n_workers, len(client.nthreads()) if client is not None else 0)


def shards_to_aim_at(config: "ParallelConfig", n_workers: int | None = None) -> int:
    """Return how many shards to aim at, for `n_workers` workers or those of the block.

    For thousands of workers fewer than so many each, unless that was asked for: a plan must not
    ask more of a file server than `shards.plan.SERVER_SHARE`.
    """
    n_workers = n_workers or config.n_workers
    wanted = n_workers * config.shards_per_worker
    is_asked_for = "shards_per_worker" in config.model_fields_set
    return wanted if is_asked_for else min(wanted, max_shards(n_workers))


def is_inline(config: "ParallelConfig", client: Any) -> bool:
    """Tell whether a run needs no other process."""
    is_ours = client is None or isinstance(client, SharedCluster)
    return is_ours and config.env == "local" and config.n_workers == 1


def uses_processes(config: "ParallelConfig", client: Any) -> bool:
    """Tell whether a run's workers are processes of ours on this machine, without Dask."""
    is_ours = client is None or isinstance(client, SharedCluster)
    if not is_ours or config.env not in ("local", "local_gpu"):
        return False
    if config.env == "local":
        return True
    from espnet3.parallel.clusters.local_gpu import uses_dask_cuda

    return not uses_dask_cuda(config)


@contextmanager
def open_pool(
    spec: RunSpec,
    provider: Any,
    config: "ParallelConfig",
    *,
    client: Any = None,
    n_tasks: int,
    log_dir: Path | None = None,
) -> Iterator[WorkerPool]:
    """Start the workers for `n_tasks` attempts, never more; stop them at the end of the block.

    With a `SharedCluster` those of the run before do the work, and stay for the next one, unless
    the block fails. `provider` has the two build functions of an `EnvironmentProvider`.

    Raises:
        ProviderError: if what the workers need cannot be built or sent.
    """
    with _open(spec, provider, config, client, n_tasks, log_dir) as pool:
        try:
            yield pool
            release_pool(pool, client)
        finally:
            if not _is_kept(pool, client):
                pool.stop()


def release_pool(pool: WorkerPool, client: Any) -> None:
    """Stop workers whose run has no more shards, unless a later run may use them."""
    if not (isinstance(client, SharedCluster) and client.kept.put(pool)):
        pool.stop()


def _is_kept(pool: WorkerPool, client: Any) -> bool:
    return isinstance(client, SharedCluster) and client.kept.holds(pool)


@contextmanager
def _open(
    spec: RunSpec,
    provider: Any,
    config: "ParallelConfig",
    client: Any,
    n_tasks: int,
    log_dir: Path | None,
) -> Iterator[WorkerPool]:
    setup_fn = worker_setup_fn(provider)
    if is_inline(config, client):
        check_size(setup_fn, provider)
        _warn_of_ignored(config)
        spec = replace(spec, setup_fn=provider.build_env_local)
        if client is not None:
            spec = replace(spec, keys=environment_keys(provider, setup_fn, spec.setup_fn))
        yield InlinePool(spec, client.parts if client is not None else None)
        return
    spec = replace(spec, setup_fn=setup_fn)
    if client is not None:  # else no other run can use what is built
        spec = replace(spec, keys=environment_keys(provider, setup_fn, setup_fn))
    packed = pack_spec(spec, provider)  # before anything is started
    # A worker without a shard would only wait in the queue of the cluster.
    n_workers = min(config.n_workers, n_tasks)
    if uses_processes(config, client):
        yield _processes(packed, config, n_workers, log_dir, client)
    elif isinstance(client, SharedCluster):
        yield _pool_on(client.connect(log_dir), packed, config, n_tasks, log_dir, client.kept)
    elif client is not None:
        yield _pool_on(client, packed, config, n_tasks, log_dir)
    else:
        from espnet3.parallel.clusters.job_options import with_log_folder

        sized = config.model_copy(update={"n_workers": n_workers})
        with open_cluster(with_log_folder(sized, log_dir), shows_output=not log_dir) as cluster:
            yield _pool_on(cluster, packed, config, n_tasks, log_dir)


def _warn_of_ignored(config: "ParallelConfig") -> None:
    """Say which settings mean nothing to a run in this process."""
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


def _processes(
    packed: bytes,
    config: "ParallelConfig",
    n_workers: int,
    log_dir: Path | None,
    shared: "SharedCluster | None",
) -> ProcessPool:
    threads, variables = _threads(config), _variables(config)
    timeout = config.worker_timeout
    # A worker that prints into a log cannot print to this terminal again.
    kind = ("processes", threads, variables, log_dir is None)
    kept: ProcessPool | None = shared.kept.take(kind) if shared is not None else None
    if kept is not None:
        kept.serve(packed, n_workers, log_dir=log_dir, worker_timeout=timeout)
        return kept
    return ProcessPool(
        packed,
        n_workers,
        threads=threads,
        log_dir=log_dir,
        worker_timeout=timeout,
        variables=variables,
    )


def _pool_on(
    cluster: Any,
    packed: bytes,
    config: "ParallelConfig",
    n_tasks: int,
    log_dir: Path | None,
    kept: "KeptPool | None" = None,
) -> WorkerPool:
    from espnet3.parallel.clusters.ray import RayCluster

    if isinstance(cluster, RayCluster):
        from espnet3.parallel.ray_pool import RayPool

        n_workers = min(cluster.config.n_workers, n_tasks)
        timeout = config.worker_timeout
        pool: RayPool | None = kept.take(("actors", log_dir is None)) if kept else None
        if pool is None:
            return RayPool(cluster, packed, n_workers, log_dir=log_dir, worker_timeout=timeout)
        pool.serve(packed, n_workers, log_dir=log_dir, worker_timeout=timeout)
        return pool
    from espnet3.parallel.dask_pool import DaskPool

    return DaskPool(cluster, packed)


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


def _variables(config: "ParallelConfig") -> list[dict[str, str]]:
    """Return what to set for each worker process."""
    if config.env != "local_gpu":
        return []
    from espnet3.parallel.clusters.local_gpu import worker_variables

    return worker_variables(config)


def _threads(config: "ParallelConfig") -> int:
    if not config.options:  # nothing to look at, and no import of what knows Dask's options
        return 1
    from espnet3.parallel.clusters.local import THREADS, check_options, tell_of_unused

    if config.env == "local":  # that of GPUs has others, which are looked at with these
        check_options(config)
    tell_of_unused(config)
    return int(config.options.get(THREADS, 1))


class InlinePool:
    """Pool of one worker in this process: runs attempts one after the other, inside `poll`."""

    def __init__(self, spec: RunSpec, parts: BuiltParts | None = None) -> None:
        self._folder = os.getcwd()  # a forward() may change it: `stop` goes back
        self._parts = parts or BuiltParts()
        begin = time.monotonic()
        env = check_env(_build(spec, self._parts), "build_env_local()")
        self._load_seconds = time.monotonic() - begin
        self._loop = ShardLoop(spec, env)
        self._task: ShardAttempt | None = None

    def idle(self) -> list[str]:
        """Return this process, unless it has an attempt to run."""
        return [] if self._task else [_NAME]

    def submit(self, worker: str, task: ShardAttempt) -> None:
        """Keep the attempt for the next `poll`."""
        self._task = task

    def poll(self, timeout: float) -> list[Event]:
        """Run the attempt to its end, however long it takes."""
        if self._task is None:
            time.sleep(timeout)
            return []
        result = self._loop.run(self._task, load_seconds=self._load_seconds)
        if result.stopped is not None:
            self._parts.clear()  # what failed here may be broken
        # Only the first attempt had to wait for it.
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


def _build(spec: RunSpec, parts: BuiltParts) -> Any:
    parts.expect(spec.keys)
    try:
        return parts.environment(spec.setup_fn)
    except EspnetError:
        raise
    except Exception as error:
        message = describe_error(error, secrets_held(spec.setup_fn))
        # With a secret in it, the error is not shown as the cause either.
        cause = error if message == describe_plainly(error) else None
        raise ProviderError(f"The provider failed to build its environment: {message}") from cause


@dataclass(frozen=True)
class EnclosingClient:
    """The client of an enclosing block, and what its workers were asked to set up."""

    client: Any
    setup_fn: Callable[[], dict[str, Any]] | None = None


# Not a global: two threads, or two tasks of a notebook, may each have a block of their own.
_enclosing: ContextVar[EnclosingClient | None] = ContextVar("espnet3_client", default=None)


def enclosing_client() -> EnclosingClient | None:
    """Return the client of the innermost block around the caller; see `get_client`."""
    return _enclosing.get()


@contextmanager
def open_client(target: Any, *, plugin: Any = None, setup_fn: Any = None) -> Iterator[Any]:
    """Connect to a cluster; close at the end of the block what was opened for it.

    Args:
        target: a checked config, whose cluster is started; the address of a scheduler; or a
            `Client`, which stays open.
        plugin: a `WorkerPlugin` for the workers.
        setup_fn: for `parallel_map`; see `get_client`.
    """
    with _connect(target) as client:
        if plugin is not None:
            client.register_plugin(plugin)
        token = _enclosing.set(EnclosingClient(client, setup_fn))
        try:
            yield client
        finally:
            _enclosing.reset(token)


@contextmanager
def _connect(target: Any) -> Iterator[Any]:
    from espnet3.parallel.clusters.registry import start_cluster
    from espnet3.parallel.config import ParallelConfig

    # Before Dask is imported: jobs start meanwhile.
    cluster: Any = start_cluster(target) if isinstance(target, ParallelConfig) else target
    from distributed import Client

    if isinstance(cluster, Client):
        yield cluster
        return
    # Undone in reverse: client, cluster, and last the logs, which jobs write until they end.
    with ExitStack() as stack:
        if (logs := getattr(cluster, "own_logs", None)) is not None:
            monitor = cluster.monitor  # of the jobs that write them
            stack.push(lambda kind, *_: logs.end(is_well=kind is None, job_ids=monitor.began))
        if not isinstance(cluster, str):
            stack.push(lambda kind, *_: _close_cluster(cluster, kind))
        security = getattr(cluster, "security", None)  # also of an address
        client: Any = Client(cluster, security=security)  # type: ignore[no-untyped-call]
        stack.callback(_close_within, _DISCONNECT_SECONDS, client.close)
        yield client


def _close_cluster(cluster: Any, kind: type[BaseException] | None) -> None:
    """Close a cluster, or say what is left of it: the results are more important than its end."""
    is_interrupted = kind is not None and issubclass(kind, RunInterrupted)
    seconds = min(CLOSE_SECONDS, INTERRUPTED_CLOSE_SECONDS) if is_interrupted else CLOSE_SECONDS
    problem = _close_within(seconds, cluster.close)
    if problem:
        describe = getattr(cluster, "left_behind", None)  # of those that know
        left = describe() if describe else "Its workers may still run."
        logger.warning("The cluster of the run was not closed: %s. %s", problem, left)


def _close_within(seconds: float, close: Callable[[], object]) -> str:
    """Close a client or a cluster; return why that failed, or empty.

    In a thread, which is left alone after the deadline: it cannot be ended from outside.
    """
    from espnet3.logs import quiet

    problems: list[str] = []

    def run() -> None:
        try:
            close()
        except Exception as error:
            problems.append(f"{type(error).__name__}: {folded(error)}")

    thread = threading.Thread(target=run, name="close", daemon=True)  # must not hold up the exit
    # That workers leave is what was asked for, also those that are just connecting: to Tornado, a
    # handshake that breaks off while the listener stops is an error with a traceback.
    with quiet("distributed"), quiet("tornado.application"):
        thread.start()
        thread.join(seconds)
    if thread.is_alive():
        return f"it did not end within {seconds:g} s"
    return problems[0] if problems else ""


@contextmanager
def open_cluster(config: "ParallelConfig", *, shows_output: bool = False) -> Iterator[Any]:
    """Start or join the cluster of a config, and yield what a pool works with.

    Args:
        config: a checked one.
        shows_output: whether what workers print comes to this terminal, where one can choose.

    Yields:
        A Dask client; for `env: ray` a `RayCluster`.
    """
    if config.env == "ray":
        from espnet3.parallel.clusters.ray import open_ray

        with ExitStack() as stack:
            cluster = open_ray(config, shows_output=shows_output)
            stack.push(lambda kind, *_: _close_cluster(cluster, kind))
            yield cluster
    else:
        with open_client(config) as client:
            yield client


class KeptPool:
    """Place for a pool between two runs: its workers stay, with what they have built.

    Args:
        is_open: whether another run may follow; else nothing is kept.
        spare: a process that waits to become a worker of the first pool.
    """

    def __init__(self, *, is_open: bool = True, spare: Spare | None = None) -> None:
        self.is_open = is_open
        self.spare = spare
        self._pool: Any = None
        self._needs: tuple[Any, ...] = ()

    def take(self, kind: object) -> Any:
        """Return the pool, if new workers would not differ; one that does not fit is stopped.

        Args:
            kind: what they are started with, beside what this process has by now.
        """
        pool, before = self._pool, self._needs
        # What a process gets at its start, and is stuck with.
        self._needs = (kind, _working_directory(), dict(os.environ), list(sys.path))
        if pool is not None and before != self._needs:
            self.close()
        self._pool = None
        return pool if before == self._needs else None

    def put(self, pool: WorkerPool) -> bool:
        """Keep a pool whose workers are idle; tell whether it is kept."""
        can_serve = self.is_open and callable(getattr(pool, "serve", None))
        if can_serve and self._pool in (None, pool):
            self._pool = pool
        return self.holds(pool)

    def holds(self, pool: WorkerPool) -> bool:
        """Tell whether this is the one."""
        return self._pool is pool

    def close(self) -> None:
        """Stop its workers."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.stop()


def _working_directory() -> str:
    with suppress(OSError):  # it was removed
        return os.getcwd()
    return ""


class SharedCluster:
    """Workers for several runs, started by the first of them that has work to do.

    They are those of one cluster, or processes of this machine, which also keep what they built for
    one run if the next one needs the same. Give it to each runner as `client`; use it in a `with`
    block, at whose end the workers are stopped.

    Args:
        config: where workers run.
        n_tasks: how many tasks there can be at most; a cluster has no more workers than that.

    Example:
        ```python
        with SharedCluster(config, n_tasks=200) as cluster:
            runner_a(items, client=cluster)
            runner_b(others, client=cluster)
        ```
    """

    def __init__(self, config: "ParallelConfig", n_tasks: int | None = None) -> None:
        n_workers = config.n_workers if n_tasks is None else min(config.n_workers, n_tasks)
        self.config = config.model_copy(update={"n_workers": n_workers})
        self.kept = KeptPool()
        """The workers between two runs, where the pool of a run has started them."""
        self.parts = BuiltParts()
        """What is built in this process, where it is the only worker."""
        self._stack = ExitStack()
        self._client: Any = None

    def connect(self, log_dir: Path | None = None) -> Any:
        """Return the client; the first call starts the cluster, whose jobs log into `log_dir`."""
        from espnet3.parallel.clusters.job_options import with_log_folder

        if self._client is None:  # not before: a run that is complete needs no cluster
            config = with_log_folder(self.config, log_dir)
            cluster = open_cluster(config, shows_output=not log_dir)
            self._client = self._stack.enter_context(cluster)
        return self._client

    def __enter__(self) -> "SharedCluster":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._client = None
        self.parts.clear()
        try:
            self.kept.close()  # first: actors end before their cluster
        finally:
            self._stack.__exit__(kind, error, traceback)


@dataclass(frozen=True)
class _Block:
    """An enclosing `use_parallel`: its workers are for runs of its config and thread alone."""

    config: "ParallelConfig"
    workers: SharedCluster
    # A context can be copied into other threads, but a pool has one user at a time.
    thread: int = field(default_factory=threading.get_ident)

    def serves(self, config: "ParallelConfig") -> bool:
        # In between, `set_parallel` may have been called.
        return self.config is config and self.thread == threading.get_ident()


_block: ContextVar[_Block | None] = ContextVar("espnet3_workers", default=None)


@contextmanager
def keep_workers(config: "ParallelConfig") -> Iterator[None]:
    """Let runs inside the block share their workers, where these are cheap to hold.

    Jobs of a cluster are not: they would idle between two runs, so a script asks for them with
    `get_client`.
    """
    if config.mode != "sync" or not (config.env == "ray" or uses_processes(config, None)):
        yield
        return
    with SharedCluster(config) as shared:
        token = _block.set(_Block(config, shared))
        try:
            yield
        finally:
            _block.reset(token)


def client_for(config: "ParallelConfig") -> Any:
    """Return what a run with the active config should use: what a block around it has opened."""
    if (enclosing := enclosing_client()) is not None:
        return enclosing.client
    block = _block.get()
    return block.workers if block is not None and block.serves(config) else None
