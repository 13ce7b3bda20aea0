"""All backends by the name that `parallel.env` gives them."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from espnet3.errors import ConfigError, MissingExtraError, suggest
from espnet3.schedulers import OWN_SCHEDULERS, known_scheduler, scheduler_names, scheduler_of

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig


@dataclass(frozen=True)
class Registered:
    """What a user gave for a backend of their own; each function takes the config."""

    start: Callable[["ParallelConfig"], Any]
    check: Callable[["ParallelConfig"], None] | None = None
    job_script: Callable[["ParallelConfig"], str] | None = None


@dataclass(frozen=True)
class Backend:
    """Where a backend's cluster class is, and what must be installed for it."""

    module: str = ""
    """Our module with a `start(config, backend)` that returns a Dask cluster or address."""
    package: str = "distributed"
    cluster: str = ""
    install: str = "'dask[distributed]'"
    own: Registered | None = None
    """In place of a module, for one that a user registered."""


def _jobs_of(env: str) -> Backend:
    scheduler = known_scheduler(env)
    cluster = scheduler.dask_cluster or f"{scheduler.title}Cluster"
    return Backend("jobqueue", "dask_jobqueue", cluster, "dask-jobqueue")


ON_THIS_MACHINE = ("local", "local_gpu")
"""Backends whose workers are processes of this machine."""

BACKENDS: dict[str, Backend] = {
    "local": Backend("local", cluster="LocalCluster"),
    "local_gpu": Backend("local_gpu", "dask_cuda", "LocalCUDACluster", "-e '.[gpu]'"),
    **{env: _jobs_of(env) for env in OWN_SCHEDULERS},
    "ssh": Backend("ssh", cluster="SSHCluster", install="-e '.[ssh]'"),
    "kube": Backend("kube", "dask_kubernetes.operator", "KubeCluster", "-e '.[kube]'"),
    "dask": Backend("dask"),
}


def register_backend(
    name: str,
    start: Callable[["ParallelConfig"], Any],
    check: Callable[["ParallelConfig"], None] | None = None,
    job_script: Callable[["ParallelConfig"], str] | None = None,
    *,
    replace: bool = False,
) -> None:
    """Make `parallel.env: name` start workers your way; call it in run.py, before the recipe.

    Args:
        name: what `parallel.env` says; it becomes one of the names that errors list.
        start: is given the `ParallelConfig`, and returns a Dask cluster with `config.n_workers`
            workers, which is closed at the end, or the address of a scheduler.
        check: raises what is wrong with the config before anything is started.
        job_script: returns what a worker's job would run, for `--dry-run`.
        replace: take the place of a backend that has this name.

    Raises:
        ConfigError: if the name is taken.

    Example:
        >>> from distributed import LocalCluster
        >>> register_backend("threads", lambda config: LocalCluster(processes=False))
        >>> del BACKENDS["threads"]
    """
    if name in BACKENDS and not replace:
        raise ConfigError(
            f"register_backend() got {name!r}, which is the name of a backend already. Choose "
            f"another, or write: register_backend({name!r}, ..., replace=True)"
        )
    BACKENDS[name] = Backend(own=Registered(start, check, job_script))


def check_env_name(env: str) -> str:
    """Return the name of a backend if it is known; a scheduler of another package joins the table.

    Raises:
        ValueError: with the closest name and the list of all.
        ResourceError: such a scheduler cannot be loaded.
    """
    if env in BACKENDS:
        return env
    known = list(dict.fromkeys([*BACKENDS, *scheduler_names()]))
    if env in known:
        BACKENDS[env] = _jobs_of(env)
        return env
    from espnet3.config.ways import env_for

    meant = env_for(env)
    hint = f" Did you mean {meant!r}?" if meant else suggest(env, known)
    raise ValueError(f"is not known.{hint} Known: {', '.join(known)}")


def can_detach(env: str) -> bool:
    """Tell whether workers of a backend can continue without the program that started them."""
    backend = BACKENDS[env]
    return backend.own is None and (env in ON_THIS_MACHINE or backend.module == "jobqueue")


def start_cluster(config: "ParallelConfig") -> Any:
    """Start the backend that a config names.

    Returns:
        A Dask cluster, or the address of a running scheduler.

    Raises:
        MissingExtraError: with the line that installs what is missing.
    """
    backend = BACKENDS[config.env]
    if backend.own is not None:
        return backend.own.start(config)
    return _module(backend).start(config, backend)


def check_resources(config: "ParallelConfig") -> None:
    """Compare what a config asks for with what can be seen from here, before anything starts.

    Raises:
        ResourceError: if this machine cannot have it, such as more GPUs than are visible.
    """
    backend = BACKENDS[config.env]
    check = backend.own.check if backend.own else getattr(_module(backend), "check", None)
    if check is not None:
        check(config)


def render_job_script(config: "ParallelConfig") -> str | None:
    """Return the script of a worker's job as a scheduler would get it; None if there is none.

    Raises:
        ConfigError: if `parallel.options` is not what the backend takes.
    """
    backend = BACKENDS[config.env]
    if backend.own is not None:
        return backend.own.job_script(config) if backend.own.job_script else None
    module = _module(backend)
    if not hasattr(module, "job_script"):
        return None
    script: str = module.job_script(config, backend)
    return script


def _module(backend: Backend) -> Any:
    return importlib.import_module(f"espnet3.parallel.clusters.{backend.module}")


def cluster_class(env: str, backend: Backend) -> Any:
    """Import the cluster class of a backend, or say what to install."""
    scheduler = scheduler_of(env)
    try:
        if scheduler is not None and not scheduler.dask_cluster:
            from espnet3.parallel.clusters.generic_cluster import generic_cluster

            return generic_cluster(scheduler)
        return getattr(importlib.import_module(backend.package), backend.cluster)
    except ImportError as error:
        raise MissingExtraError(
            f"parallel.env is {env!r}, which needs the package {backend.package.split('.')[0]!r}, "
            f"and that cannot be imported ({error}). "
            f"In your clone of ESPnet3: pip install -c constraints.txt {backend.install}"
        ) from error
