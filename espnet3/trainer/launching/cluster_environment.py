"""Which of Lightning's cluster environments this process is in."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from espnet3.trainer.launching.process_rank import process_rank

if TYPE_CHECKING:
    from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment


def cluster_environment(environ: Mapping[str, str] = os.environ) -> "ClusterEnvironment":
    """Return the environment to hand to Lightning's trainer as a plugin.

    Lightning would choose one itself, but takes a batch script for a process of srun, and the
    processes of srun in an `salloc` shell for ones that nobody started. And its own handling of
    Slurm's signal, which writes a checkpoint of another name, is left out.
    """
    from lightning.fabric.plugins.environments.lightning import LightningEnvironment
    from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
    from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment

    rank = process_rank(environ)
    if rank.launcher == "torchrun":
        return TorchElasticEnvironment()
    if rank.launcher == "srun" and rank.world_size > 1:
        return SLURMEnvironment(auto_requeue=False)
    return LightningEnvironment()
