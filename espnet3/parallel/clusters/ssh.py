"""Machines that one can log in to."""

from typing import TYPE_CHECKING, Any

from espnet3.errors import ConfigError
from espnet3.parallel.clusters.table import Backend, cluster_class

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig


def start(config: "ParallelConfig", backend: Backend) -> Any:
    """Start a scheduler on the first host and workers on the others.

    Raises:
        ConfigError: if no hosts are given.
    """
    if "hosts" not in config.options:
        raise ConfigError(
            "parallel.env is 'ssh', but parallel.options.hosts is not set. Write: "
            "options: {hosts: [head, node1, node2]} (the first one runs the scheduler)."
        )
    return cluster_class(config.env, backend)(**config.options)
