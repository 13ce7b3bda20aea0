"""Kubernetes, through the operator of dask-kubernetes."""

from typing import TYPE_CHECKING, Any

from espnet3.parallel.clusters.table import Backend, cluster_class

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig


def start(config: "ParallelConfig", backend: Backend) -> Any:
    """Start a `KubeCluster` with a pod per worker."""
    return cluster_class(config.env, backend)(n_workers=config.n_workers, **config.options)
