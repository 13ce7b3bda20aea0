"""Connections to Dask clusters: one for a `with` block, or one that several runs share."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig


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
    from distributed import Client

    from espnet3.parallel.clusters.registry import start_cluster

    if isinstance(target, Client):
        yield target
        return
    cluster = target if isinstance(target, str) else start_cluster(target)
    with ExitStack() as stack:
        if (logs := getattr(cluster, "own_logs", None)) is not None:
            stack.push(lambda kind, *_: logs.end(is_well=kind is None))
        if not isinstance(cluster, str):
            stack.callback(_close, cluster)
        security = getattr(cluster, "security", None)  # also of an address
        client: Any = Client(cluster, security=security)  # type: ignore[no-untyped-call]
        stack.callback(_close, client)
        yield client


def _close(opened: Any) -> None:
    """Close a client or a cluster; that workers leave is what was asked for."""
    from espnet3.logs import quiet

    with quiet("distributed"):
        opened.close()


class SharedCluster:
    """One cluster for several runs, started by the first of them that has work to do.

    Give it to each runner as `client`; use it in a `with` block, at whose end it is closed.

    Args:
        config: where workers run.
        n_tasks: how many tasks there can be at most; no more workers are started.

    Example:
        ```python
        with SharedCluster(config, n_tasks=200) as cluster:
            runner_a(items, client=cluster)
            runner_b(others, client=cluster)
        ```
    """

    def __init__(self, config: "ParallelConfig", n_tasks: int) -> None:
        self.config = config.model_copy(update={"n_workers": min(config.n_workers, n_tasks)})
        self._stack = ExitStack()
        self._client: Any = None

    def connect(self, log_dir: Path | None = None) -> Any:
        """Return the client; the first call starts the cluster, whose jobs log into `log_dir`."""
        from espnet3.parallel.clusters.job_options import with_log_folder

        if self._client is None:  # not before: a run that is complete needs no cluster
            config = with_log_folder(self.config, log_dir)
            self._client = self._stack.enter_context(open_client(config))
        return self._client

    def __enter__(self) -> "SharedCluster":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._client = None
        self._stack.close()
