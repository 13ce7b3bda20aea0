"""Processes of this machine, as a Dask cluster: for `get_client`. Runners use a lighter way."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import spawn
from typing import TYPE_CHECKING, Any

from espnet3.parallel.clusters.table import Backend

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig

_get_preparation_data = spawn.get_preparation_data


def start(config: "ParallelConfig", backend: Backend) -> Any:
    """Start a `LocalCluster` of processes with one thread each, its dashboard on loopback."""
    return start_with(config, [{}] * config.n_workers)


def start_with(config: "ParallelConfig", variables: Sequence[Mapping[str, str]]) -> Any:
    """Start a worker for each entry of `variables`, which are added to its environment."""
    from distributed import LocalCluster
    from distributed.system import MEMORY_LIMIT

    defaults = {
        "threads_per_worker": 1,
        "dashboard_address": "127.0.0.1:0",
        "processes": True,
        "memory_limit": MEMORY_LIMIT // len(variables),
    }
    spawn.get_preparation_data = _spare_main
    cluster: Any = LocalCluster(n_workers=0, **{**defaults, **config.options})  # type: ignore[no-untyped-call]
    try:
        for each in variables:
            ((name, spec),) = cluster.new_worker_spec().items()
            options = spec["options"]
            environment = {**options.get("env", {}), **each}
            cluster.worker_spec[name] = {**spec, "options": {**options, "env": environment}}
        with _environment_kept():
            cluster.sync(cluster._correct_state)
    except BaseException:
        cluster.close()
        raise
    return cluster


@contextmanager
def _environment_kept() -> Iterator[None]:
    """Undo what Dask does to start workers with one thread: it sets variables here, for good.

    What this program starts later, jobs on a cluster among them, would inherit them.
    """
    import dask

    names = list(dask.config.get("distributed.nanny.pre-spawn-environ", {}))
    before = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


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
