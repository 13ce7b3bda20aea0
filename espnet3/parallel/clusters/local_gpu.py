"""Backend `local_gpu`: one worker per visible GPU, or several, with its own GPU first.

Through dask-cuda if it is installed and each GPU has one worker; it is not needed. A worker's
`CUDA_VISIBLE_DEVICES` is that of the run, turned so that its own GPU is number 0, which is where
`LOCAL_RANK` 0 puts the model.
"""

import logging
import os
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from espnet3.errors import ConfigError, Note, ResourceError
from espnet3.parallel.clusters import gpus, local
from espnet3.parallel.clusters.registry import Backend, warn_once
from espnet3.text import count

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig

logger = logging.getLogger(__name__)
_OF_DASK_CUDA = (
    "device_memory_limit", "enable_cudf_spill", "cudf_spill_stats", "shared_filesystem",
    "jit_unspill", "log_spilling", "enable_tcp_over_ucx", "enable_infiniband", "enable_nvlink",
    "enable_rdmacm", "rmm_pool_size", "rmm_maximum_pool_size", "rmm_managed_memory", "rmm_async",
    "rmm_allocator_external_lib_list", "rmm_release_threshold", "rmm_log_directory",
    "rmm_track_allocations", "pre_import",
)  # fmt: skip
PER_GPU = "workers_per_gpu"
_OPTIONS = (gpus.VARIABLE, PER_GPU, *_OF_DASK_CUDA)


def start(config: "ParallelConfig", backend: Backend) -> Any:
    """Start a Dask cluster: `LocalCUDACluster`, or without dask-cuda a `LocalCluster`.

    Raises:
        ResourceError: if there are fewer visible GPUs than workers.
    """
    local.check_options(config, _OPTIONS)
    own = _checked_gpus(config)
    if uses_dask_cuda(config):
        return _start_dask_cuda(config, own)
    of_gpus = (gpus.VARIABLE, PER_GPU)
    options = {name: value for name, value in config.options.items() if name not in of_gpus}
    changed = config.model_copy(update={"options": options})
    return local.start_with(changed, _variables(own, config.n_workers))


def check(config: "ParallelConfig") -> None:
    """Look at the options, and compare the workers with the visible GPUs.

    Raises:
        ConfigError: if an option is unknown, or needs dask-cuda, which is not there or not used.
        ResourceError: if there are fewer GPUs.
    """
    local.check_options(config, _OPTIONS)
    for name in config.options:
        if name in _OF_DASK_CUDA and _per_gpu(config) > 1:
            raise ConfigError(
                f"parallel.options.{name} is an option of dask-cuda, which has one worker per GPU, "
                f"but {PER_GPU} is {_per_gpu(config)}.",
                fix=f"Delete one of them: {name} or {PER_GPU}",
            )
        if name in _OF_DASK_CUDA and not has_dask_cuda():
            raise ConfigError(
                f"parallel.options.{name} is an option of dask-cuda, which is not installed.",
                fix="Delete it; or, in your clone of ESPnet3: pip install -c constraints.txt "
                "-e '.[gpu]'",
            )
    _checked_gpus(config)


def worker_variables(config: "ParallelConfig") -> list[dict[str, str]]:
    """Return what to add to the environment of each worker process.

    Raises:
        ConfigError: if an option is unknown.
        ResourceError: if there are fewer visible GPUs than workers.
    """
    check(config)
    return _variables(_checked_gpus(config), config.n_workers)


def uses_dask_cuda(config: "ParallelConfig") -> bool:
    """Tell whether dask-cuda starts the workers: if it is there, and each has its own GPU."""
    if _per_gpu(config) == 1:
        return has_dask_cuda()
    if find_spec("dask_cuda") is not None:
        warn_once(f"dask-cuda is not used: it has one worker per GPU, and {PER_GPU} is set")
    return False


@cache
def has_dask_cuda() -> bool:
    """Tell whether dask-cuda can be used."""
    if find_spec("dask_cuda") is None:
        return False
    try:
        import dask_cuda  # noqa: F401
    except ImportError as error:  # pip install dask-cuda leaves out what it imports
        logger.warning(
            "dask-cuda is installed but cannot be imported (%s), so workers are started without "
            "it. To fix it: pip install -c constraints.txt -e '.[gpu]'",
            error,
        )
        return False
    return True


def _start_dask_cuda(config: "ParallelConfig", own: list[str]) -> Any:
    from dask_cuda import LocalCUDACluster

    class Cluster(LocalCUDACluster):
        def new_worker_spec(self) -> dict[Any, Any]:
            specs: dict[Any, Any] = super().new_worker_spec()
            for spec in specs.values():
                # Workers inherit ours, which is another in a job of torchrun, say.
                spec["options"]["env"]["LOCAL_RANK"] = "0"
            return specs

    defaults = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", "host": "127.0.0.1"}
    given = {name: value for name, value in config.options.items() if name != PER_GPU}
    options = {**defaults, **given, gpus.VARIABLE: own}
    return Cluster(n_workers=config.n_workers, **options)


def _variables(own: list[str], n_workers: int) -> list[dict[str, str]]:
    # In turn, so that no GPU has two workers more than another, however many there are.
    return [
        {gpus.VARIABLE: gpus.rotated(own, rank % len(own)), "LOCAL_RANK": "0"}
        for rank in range(n_workers)
    ]


def _per_gpu(config: "ParallelConfig") -> int:
    value = config.options.get(PER_GPU, 1)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(
            f"parallel.options.{PER_GPU} is {value!r}, which is no number of workers.",
            fix=f"Write: {PER_GPU}: 2",
        )
    return value


def _checked_gpus(config: "ParallelConfig") -> list[str]:
    """Return the GPUs of the workers; those that stay idle are left to others."""
    setting, where = _setting(config)
    visible = gpus.visible_gpus(setting)
    per_gpu = _per_gpu(config)
    room = len(visible) * per_gpu
    if config.n_workers > room:
        advice = f"Set n_workers: {room} or make more GPUs visible."
        if not visible:
            advice = "Without a GPU, write env: local; or make GPUs visible."
        raise ResourceError(
            f"parallel.n_workers is {config.n_workers} but {len(visible)} GPU(s) are visible "
            f"({where})" + (f", with {PER_GPU}: {per_gpu}." if per_gpu > 1 else "."),
            fix=advice,
        )
    if config.n_workers < len(visible):
        warn_once(
            Note(
                f"{count(config.n_workers, 'worker')} for {len(visible)} visible GPUs: GPU "
                f"{', '.join(visible[config.n_workers :])} will stay idle.",
                fix=f"To use all, set parallel.n_workers: {room}",
            )
        )
    return visible[: config.n_workers]


def _setting(config: "ParallelConfig") -> tuple[str | None, str]:
    """Return which GPUs are meant to be visible, and where that is set."""
    option = config.options.get(gpus.VARIABLE)  # an option of LocalCUDACluster
    if option is not None:
        entries = option if isinstance(option, list | tuple) else [option]
        setting = ",".join(str(entry) for entry in entries)
        return setting, f"parallel.options.{gpus.VARIABLE}={setting!r}"
    return None, f"{gpus.VARIABLE}={os.environ.get(gpus.VARIABLE)!r}"
