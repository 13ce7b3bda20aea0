"""Schedulers of computing centres, each worker a job, through dask-jobqueue."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from espnet3.errors import ConfigError
from espnet3.parallel.clusters.table import Backend, cluster_class

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig


def start(config: "ParallelConfig", backend: Backend) -> Any:
    """Submit a job per worker.

    Raises:
        ConfigError: if the cluster class refuses the options.
    """
    with _sigint_kept():
        start_cluster = cluster_class(config.env, backend)
    try:
        cluster = start_cluster(**config.options)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"parallel.options is not what {backend.cluster} of dask-jobqueue takes: {error}. It "
            "needs at least cores and memory; see docs/how-it-works.md for a complete block."
        ) from error
    cluster.scale(jobs=config.n_workers)
    return cluster


@contextmanager
def _sigint_kept() -> Iterator[None]:
    """Undo what importing dask_jobqueue does: a SIGINT handler that exits with code 0."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
