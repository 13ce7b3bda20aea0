"""One worker per visible GPU of this machine."""

import os
from typing import TYPE_CHECKING, Any

from espnet3.errors import ResourceError
from espnet3.parallel.clusters.table import Backend, cluster_class

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig


def start(config: "ParallelConfig", backend: Backend) -> Any:
    """Start a `LocalCUDACluster`.

    Raises:
        ResourceError: if there are fewer visible GPUs than workers.
    """
    check(config)
    return cluster_class(config.env, backend)(n_workers=config.n_workers, **config.options)


def check(config: "ParallelConfig") -> None:
    """Compare the workers with the visible GPUs.

    Raises:
        ResourceError: if there are fewer GPUs.
    """
    n_gpus = _count_gpus()
    if config.n_workers > n_gpus:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        advice = f"Set n_workers: {n_gpus} or make more GPUs visible."
        if n_gpus == 0:
            advice = "Without a GPU, write env: local; or make GPUs visible."
        raise ResourceError(
            f"parallel.n_workers is {config.n_workers} but {n_gpus} GPU(s) are visible "
            f"(CUDA_VISIBLE_DEVICES={visible!r}). {advice}"
        )


def _count_gpus() -> int:
    import torch

    return torch.cuda.device_count()
