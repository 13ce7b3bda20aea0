"""All backends by the name that `parallel.env` gives them."""

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from espnet3.errors import MissingExtraError, suggest

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig


@dataclass(frozen=True)
class Backend:
    """Where a backend's cluster class is, and what must be installed for it."""

    module: str
    """Our module with a `start(config, backend)` that returns a Dask cluster or address."""
    package: str = "distributed"
    cluster: str = ""
    install: str = "'dask[distributed]'"


def _jobqueue(cluster: str) -> Backend:
    return Backend("jobqueue", "dask_jobqueue", cluster, "dask-jobqueue")


BACKENDS: dict[str, Backend] = {
    "local": Backend("local", cluster="LocalCluster"),
    "local_gpu": Backend("local_gpu", "dask_cuda", "LocalCUDACluster", "-e '.[gpu]'"),
    "slurm": _jobqueue("SLURMCluster"),
    "pbs": _jobqueue("PBSCluster"),
    "sge": _jobqueue("SGECluster"),
    "lsf": _jobqueue("LSFCluster"),
    "oar": _jobqueue("OARCluster"),
    "htcondor": _jobqueue("HTCondorCluster"),
    "moab": _jobqueue("MoabCluster"),
    "ssh": Backend("ssh", cluster="SSHCluster"),
    "kube": Backend("kube", "dask_kubernetes.operator", "KubeCluster", "-e '.[kube]'"),
    "dask": Backend("dask"),
}


def check_env_name(env: str) -> str:
    """Return the name of a backend if it is known.

    Raises:
        ValueError: with the closest name and the list of all.
    """
    if env not in BACKENDS:
        raise ValueError(f"is not known.{suggest(env, BACKENDS)} Known: {', '.join(BACKENDS)}")
    return env


def start_cluster(config: "ParallelConfig") -> Any:
    """Start the backend that a config names.

    Returns:
        A Dask cluster, or the address of a running scheduler.

    Raises:
        MissingExtraError: with the line that installs what is missing.
    """
    backend = BACKENDS[config.env]
    module = importlib.import_module(f"espnet3.parallel.clusters.{backend.module}")
    return module.start(config, backend)


def check_resources(config: "ParallelConfig") -> None:
    """Compare what a config asks for with what can be seen from here, before anything starts.

    Raises:
        ResourceError: if this machine cannot have it, such as more GPUs than are visible.
    """
    module = importlib.import_module(f"espnet3.parallel.clusters.{BACKENDS[config.env].module}")
    if hasattr(module, "check"):
        module.check(config)


def render_job_script(config: "ParallelConfig") -> str | None:
    """Return the script of a worker's job as a scheduler would get it; None if there is none.

    Raises:
        ConfigError: if `parallel.options` is not what the backend takes.
    """
    backend = BACKENDS[config.env]
    module = importlib.import_module(f"espnet3.parallel.clusters.{backend.module}")
    if not hasattr(module, "job_script"):
        return None
    script: str = module.job_script(config, backend)
    return script


def cluster_class(env: str, backend: Backend) -> Any:
    """Import the cluster class of a backend, or say what to install."""
    try:
        return getattr(importlib.import_module(backend.package), backend.cluster)
    except ImportError as error:
        raise MissingExtraError(
            f"parallel.env is {env!r}, which needs the package {backend.package.split('.')[0]!r}, "
            f"and that cannot be imported ({error}). "
            f"In your clone of ESPnet3: pip install -c constraints.txt {backend.install}"
        ) from error
