"""Processes of this machine, as a Dask cluster: for `get_client`. Runners use a lighter way."""

from typing import TYPE_CHECKING, Any

from espnet3.parallel.clusters.table import Backend, cluster_class

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig


def start(config: "ParallelConfig", backend: Backend) -> Any:
    """Start a `LocalCluster` of processes with one thread each, its dashboard on loopback."""
    defaults = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", "processes": True}
    options = {**defaults, **config.options}
    return cluster_class(config.env, backend)(n_workers=config.n_workers, **options)
