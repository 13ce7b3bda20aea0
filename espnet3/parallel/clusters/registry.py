"""All backends by the name that `parallel.env` gives them, and what a block asks of them."""

import importlib
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from espnet3.errors import ConfigError, MissingExtraError, Note, ResourceError, suggest
from espnet3.schedulers import (
    OWN_SCHEDULERS,
    Scheduler,
    known_scheduler,
    scheduler_names,
    scheduler_of,
)

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig

logger = logging.getLogger(__name__)
_LOOK_SECONDS = 0.2
_GPUS = (r"\bn?gpus?=(\d+)",)
"""How nearly all schedulers take them, and pods; others stand in their classes."""
_KUBE_GPU = "/gpu"  # nvidia.com/gpu, amd.com/gpu
_DEFAULT_TIMES = ("00:30:00", "00:30")
"""Of dask-jobqueue."""


@dataclass(frozen=True)
class Registered:
    """Functions that a user registered for their own backend; each takes the config."""

    start: Callable[["ParallelConfig"], Any]
    check: Callable[["ParallelConfig"], None] | None = None
    job_script: Callable[["ParallelConfig"], str] | None = None


@dataclass(frozen=True)
class Backend:
    """Path of a backend's cluster class, and the packages it needs."""

    module: str = ""
    """Our module with a `start(config, backend)` that returns a Dask cluster or address."""
    package: str = "distributed"
    cluster: str = ""
    install: str = "'dask[distributed]'"
    is_dask: bool = True
    """Whether its workers are Dask's, which `get_client` can connect to."""
    detached: str = ""
    """The module with a `check(config)` of jobs for detached workers, which have no Dask."""
    own: Registered | None = None
    """In place of a module, for one that a user registered."""


def _jobs_of(env: str) -> Backend:
    scheduler = known_scheduler(env)
    cluster = scheduler.dask_cluster or f"{scheduler.title}Cluster"
    detached = "espnet3.parallel.detached.job_script"
    return Backend("jobqueue", "dask_jobqueue", cluster, "dask-jobqueue", detached=detached)


ON_THIS_MACHINE = ("local", "local_gpu")
"""Backends whose workers are processes of this machine."""

BACKENDS: dict[str, Backend] = {
    "local": Backend("local", cluster="LocalCluster"),
    "local_gpu": Backend("local_gpu", "dask_cuda", "LocalCUDACluster", "-e '.[gpu]'"),
    **{env: _jobs_of(env) for env in OWN_SCHEDULERS},
    "ssh": Backend("ssh", cluster="SSHCluster", install="-e '.[ssh]'"),
    "kube": Backend("kube", "dask_kubernetes.operator", "KubeCluster", "-e '.[kube]'"),
    "dask": Backend("dask"),
    "ray": Backend("ray", "ray", install="-e '.[ray]'", is_dask=False),
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
            f"register_backend() got {name!r}, which is the name of a backend already.",
            fix=f"Choose another, or write: register_backend({name!r}, ..., replace=True)",
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
    from espnet3.config.value_translations import env_for

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
        ConfigError: if the workers of the backend are not Dask's.
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
    if config.mode == "async" and backend.detached:
        importlib.import_module(backend.detached).check(config)
        return
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
            from espnet3.parallel.clusters.job_cluster import generic_cluster

            return generic_cluster(scheduler)
        return getattr(importlib.import_module(backend.package), backend.cluster)
    except ImportError as error:
        raise MissingExtraError(
            f"parallel.env is {env!r}, which needs the package {backend.package.split('.')[0]!r}, "
            f"and that cannot be imported ({error}).",
            fix=f"In your clone of ESPnet3: pip install -c constraints.txt {backend.install}",
        ) from error


def gpus_per_job(config: "ParallelConfig") -> int:
    """Return how many GPUs each worker's job asks for; 0 if its options name none."""
    if config.env == "local_gpu":
        return 1
    texts = list(_texts(config.options))
    scheduler = scheduler_of(config.env)
    for pattern in (*(scheduler.gpu_options if scheduler else ()), *_GPUS):
        for text in texts:
            if match := re.search(pattern, text):
                return int(match[1] or 1)
    return 0


def walltime_seconds(config: "ParallelConfig") -> float | None:
    """Return after how many seconds a scheduler ends a worker's job; None if nothing says."""
    scheduler = scheduler_of(config.env) or Scheduler()
    # Directives first: they take the place of what the options say.
    for pattern in scheduler.time_options:
        for text in _texts(config.options):
            if match := re.search(pattern, text):
                return scheduler.parse_time(match[1])
    walltime = config.options.get("walltime")
    return None if walltime is None else scheduler.parse_time(str(walltime))


def left_out(config: "ParallelConfig") -> list[str]:
    """Return what jobs get because the options do not say, each with the line that says it.

    Options without which nothing works, such as `cores`, are refused elsewhere.
    """
    if BACKENDS[config.env].module != "jobqueue":
        return []
    scheduler = known_scheduler(config.env)
    texts = list(_texts(config.options))
    notes = [_default_time(config, scheduler), *scheduler.unasked(config.options, texts)]
    return [note for note in notes if note]


def warn_of_defaults(config: "ParallelConfig") -> None:
    """Log what jobs get because the options do not say."""
    for note in left_out(config):
        warn_once(note)


@cache  # a stage checks, and later starts and submits many jobs: once is enough
def warn_once(message: str) -> None:
    """Log a warning, unless this process has done so."""
    logger.warning("%s", message)


def _default_time(config: "ParallelConfig", scheduler: Scheduler) -> str:
    """Tell of half an hour, which is what dask-jobqueue asks for."""
    from espnet3.parallel.clusters.dask_config import settings

    default = settings(config.env)["walltime"]
    said = config.options.get("walltime") is not None
    said = said or any(re.search(scheduler.asks_for_time, text) for text in _texts(config.options))
    # A time in Dask's own files is the user's; HTCondor has none.
    if said or default not in _DEFAULT_TIMES or config.options.get("job_directives_skip"):
        return ""
    return Note(
        "parallel.options.walltime is not set, so each job ends after 30 minutes, the default of "
        "dask-jobqueue; one that had work is replaced.",
        fix=f'Write, for longer ones: walltime: "{scheduler.example_time}"',
    )


def _texts(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield all texts of the options, at any depth; `name = value` for those with a name."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _texts(value)
        elif isinstance(value, list | tuple):
            yield from map(str, value)
        elif isinstance(name, str) and name.endswith(_KUBE_GPU):
            yield f"gpu={value}"
        else:
            yield f"{name} = {value}"


def start_within(
    seconds: float,
    start: Callable[[], Any],
    watch: Callable[[], None] = lambda: None,
    hint: Callable[[], str] = str,
) -> Any:
    """Return the cluster that `start` returns; one that comes too late is closed again.

    The start runs in a thread of its own, which is left alone after the deadline: it cannot be
    ended from outside.

    Args:
        seconds: the deadline, `parallel.start_timeout`.
        start: starts the cluster.
        watch: called several times a second meanwhile; what it raises ends the wait.
        hint: returns what to try, if the deadline is missed.

    Raises:
        ResourceError: after `seconds`.
        BaseException: whatever `start` or `watch` raises.
    """
    attempt = _ClusterStart(start)
    deadline = time.monotonic() + seconds
    try:
        while not attempt.ended.wait(_LOOK_SECONDS):
            watch()
            if time.monotonic() > deadline:
                raise ResourceError(
                    "The cluster did not start within parallel.start_timeout, "
                    f"{seconds:g} s. {hint()}".strip()
                )
    except BaseException:  # Ctrl-C as well
        attempt.abandon()
        raise
    if attempt.error is not None:
        raise attempt.error
    return attempt.cluster


class _ClusterStart:
    def __init__(self, start: Callable[[], Any]) -> None:
        self.ended = threading.Event()
        self.cluster: Any = None
        self.error: BaseException | None = None
        self._is_abandoned = False
        # The start may end just when it is abandoned: one of the two threads must close it.
        self._lock = threading.Lock()
        # Daemon: a start that hangs must not keep the program from ending.
        threading.Thread(target=self._run, args=[start], name="start", daemon=True).start()

    def _run(self, start: Callable[[], Any]) -> None:
        try:
            self.cluster = start()
        except BaseException as error:
            self.error = error
        with self._lock:
            self.ended.set()
            if not self._is_abandoned:
                return
        self._close()

    def abandon(self) -> None:
        with self._lock:
            self._is_abandoned = True
            if not self.ended.is_set():
                return
        self._close()

    def _close(self) -> None:
        if self.cluster is not None:
            with suppress(Exception):
                self.cluster.close()
