"""The random numbers of a training: the same weights on all ranks, then another stream on each."""

import random
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from typing_extensions import override


def seed_all(seed: int, rank: int = 0) -> None:
    """Seed Python, NumPy and torch from a seed and a rank."""
    value = seed if rank == 0 else _mixed(seed, rank)
    random.seed(value)
    np.random.seed(value % 2**32)
    torch.manual_seed(value)


def _mixed(seed: int, rank: int) -> int:
    return int(np.random.SeedSequence([seed, rank]).generate_state(1)[0])


class SeedRanks(pl.Callback):
    """Gives each rank a stream of its own, so that dropout differs, once the model is built.

    A checkpoint that is restored afterwards wins.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    @override
    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> Any:
        seed_all(self._seed, trainer.global_rank)
