"""Local Dask cluster for `get_client`; runners use `ProcessPool` instead."""

import inspect
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import spawn
from typing import TYPE_CHECKING, Any

from espnet3.errors import ConfigError, suggest
from espnet3.parallel.clusters.registry import Backend, warn_once

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig

THREADS = "threads_per_worker"
_OF_JOBS = (
    "cores", "queue", "account", "project", "memory", "walltime", "job_extra_directives",
    "job_extra", "job_script_prologue", "env_extra", "log_directory", "resource_spec", "python",
    "job_name", "job_directives_skip", "shared_temp_directory", "worker_extra_args", "disk",
)  # fmt: skip
_get_preparation_data = spawn.get_preparation_data


def start(config: "ParallelConfig", backend: Backend) -> Any:
    """Start a `LocalCluster` of processes with one thread each, its dashboard on loopback."""
    check_options(config)
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
    # For good: a worker that its nanny restarts later must be spared, too.
    spawn.get_preparation_data = _spare_main
    options = {name: value for name, value in config.options.items() if name not in _OF_JOBS}
    if "processes" in options and "cores" in config.options:
        del options["processes"]  # of each job; here it would say whether workers are threads
    # None yet: LocalCluster itself gives all workers the same environment.
    cluster: Any = LocalCluster(n_workers=0, **{**defaults, **options})  # type: ignore[no-untyped-call]
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


def check(config: "ParallelConfig") -> None:
    """Look at the options, of which runners use one.

    Raises:
        ConfigError: if one is unknown.
    """
    check_options(config)
    tell_of_unused(config)


def check_options(config: "ParallelConfig", others: Iterable[str] = ()) -> None:
    """Refuse options that no worker of this machine has: Dask would tell of them too late.

    Args:
        config: of a backend whose workers are processes here.
        others: options beside those of Dask.

    Raises:
        ConfigError: with what to write.
    """
    n_threads = config.options.get(THREADS, 1)
    if not isinstance(n_threads, int) or isinstance(n_threads, bool) or n_threads < 1:
        raise ConfigError(
            f"parallel.options.{THREADS} is {n_threads!r}, but must be a number of threads.",
            fix=f"Write: {THREADS}: 1",
        )
    unknown = [name for name in config.options if name not in (THREADS, *others)]
    if not unknown:
        return
    # Those of jobs may come from a file for a cluster, with `parallel.env=local` to try it here.
    known = _names_of_dask() | set(others) | set(_OF_JOBS)
    for name in unknown:
        if name not in known:
            raise ConfigError(_no_option(name, config, known))


def _names_of_dask() -> set[str]:
    from distributed import LocalCluster, Nanny, Worker

    signatures = [inspect.signature(each) for each in (LocalCluster, Nanny, Worker)]
    names = {name for signature in signatures for name in signature.parameters}
    return names - {"kwargs", "worker_kwargs", "n_workers", "loop", "asynchronous"}


def _no_option(name: str, config: "ParallelConfig", known: set[str]) -> str:
    return (
        f"parallel.options.{name} is no option of env: {config.env}.{suggest(name, known)} Runners "
        f"use {THREADS}; get_client, what LocalCluster takes."
    )


def tell_of_unused(config: "ParallelConfig") -> None:
    """Warn of what a runner, whose processes need no Dask, does not use."""
    unused = sorted(set(config.options) - {THREADS, "CUDA_VISIBLE_DEVICES", "workers_per_gpu"})
    if of_jobs := [name for name in unused if name in _OF_JOBS]:
        warn_once(
            f"parallel.options has {', '.join(of_jobs)}, for jobs of a scheduler such as env: "
            f"slurm; env: {config.env} does not use them. For threads of each worker write: "
            f"{THREADS}: 4"
        )
    for name in unused:
        if name not in of_jobs:
            warn_once(
                f"parallel.options.{name} is used by get_client only; a runner on env: "
                f"{config.env} ignores it"
            )


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
