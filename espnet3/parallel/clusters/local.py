"""Processes of this machine, as a Dask cluster: for `get_client`. Runners use a lighter way."""

from multiprocessing import spawn
from typing import TYPE_CHECKING, Any

from espnet3.parallel.clusters.table import Backend, cluster_class

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig

_get_preparation_data = spawn.get_preparation_data


def start(config: "ParallelConfig", backend: Backend) -> Any:
    """Start a `LocalCluster` of processes with one thread each, its dashboard on loopback."""
    defaults = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", "processes": True}
    options = {**defaults, **config.options}
    spawn.get_preparation_data = _spare_main
    return cluster_class(config.env, backend)(n_workers=config.n_workers, **options)


def _spare_main(name: str) -> dict[str, Any]:
    """Keep Dask's worker processes from running the user's script again.

    Dask starts them with multiprocessing, which imports the main script; one without a `__main__`
    guard would start a cluster in each worker. They do not need it: Dask sends functions of the
    script by value. Other processes, known by their names, are started as ever.
    """
    data = _get_preparation_data(name)
    if name.startswith("Dask Worker process"):
        data.pop("init_main_from_path", None)
        data.pop("init_main_from_name", None)
    return data
