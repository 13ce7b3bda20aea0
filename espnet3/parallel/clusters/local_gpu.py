"""One worker per visible GPU of this machine."""

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
    start_cluster = cluster_class(config.env, backend)
    n_gpus = _count_gpus()
    if config.n_workers > n_gpus:
        import os

        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        raise ResourceError(
            f"parallel.n_workers is {config.n_workers} but {n_gpus} GPU(s) are visible "
            f"(CUDA_VISIBLE_DEVICES={visible!r}). Set n_workers: {max(n_gpus, 1)} or make more "
            "GPUs visible."
        )
    return start_cluster(n_workers=config.n_workers, **config.options)


def _count_gpus() -> int:
    import torch

    return torch.cuda.device_count()
