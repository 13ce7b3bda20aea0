"""Rank of this process according to its launcher, without imports."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

LAUNCHED = "ESPNET3_LAUNCHED_STAGE"
"""Set for the processes that Lightning starts from ours: the only stage that they run."""


@dataclass(frozen=True)
class ProcessRank:
    """A process among those that train one model."""

    rank: int = 0
    world_size: int = 1
    launcher: str = ""
    """`torchrun`, `srun` or `lightning`; empty for a process without a launcher."""

    @property
    def is_first(self) -> bool:
        """Tell whether it is the one that prints, logs and writes."""
        return self.rank == 0

    @property
    def is_external(self) -> bool:
        """Tell whether a launcher started all processes with the same command line."""
        return self.launcher in ("torchrun", "srun") and self.world_size > 1

    def show_logs(self) -> None:
        """Show the log of this process on the screen; of further ones warnings, with their rank."""
        import logging

        from espnet3 import logs

        if self.is_first:
            logs.make_visible()
        else:
            logs.make_visible(f"[rank {self.rank}] ", logging.WARNING)


def process_rank(environ: Mapping[str, str] = os.environ) -> ProcessRank:
    """Read the rank from the environment.

    Example:
        >>> process_rank({"SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "3"})
        ProcessRank(rank=3, world_size=8, launcher='srun')
    """
    by_hand = "MASTER_ADDR" in environ and _number(environ, "NODE_RANK") > 0
    if LAUNCHED in environ or (by_hand and "TORCHELASTIC_RUN_ID" not in environ):
        return _lightning_rank(environ)
    if "TORCHELASTIC_RUN_ID" in environ:
        return ProcessRank(_number(environ, "RANK"), _number(environ, "WORLD_SIZE", 1), "torchrun")
    # A batch script has SLURM_NTASKS as well, but only what srun starts has a step of its own.
    if "SLURM_STEP_NUM_TASKS" in environ:
        n_tasks = _number(environ, "SLURM_STEP_NUM_TASKS", 1)
        return ProcessRank(_number(environ, "SLURM_PROCID"), n_tasks, "srun")
    return ProcessRank()


def _lightning_rank(environ: Mapping[str, str]) -> ProcessRank:
    # On further nodes, where NODE_RANK was set by hand, no process is the first.
    rank = _number(environ, "LOCAL_RANK") or _number(environ, "NODE_RANK")
    return ProcessRank(rank, _number(environ, "WORLD_SIZE", 1), "lightning")


def _number(environ: Mapping[str, str], name: str, default: int = 0) -> int:
    text = environ.get(name, "")
    return int(text) if text.isdigit() else default
