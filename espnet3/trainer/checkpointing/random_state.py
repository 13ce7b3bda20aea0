"""The random states of all ranks in a checkpoint, so that a resumed run draws the same numbers."""

import logging
import random
import zlib
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
import torch.distributed as dist
from typing_extensions import override

log = logging.getLogger(__name__)

KEY = "random_states"


class RandomStates(pl.Callback):
    """Stores the states of Python, NumPy, torch and the GPU of each rank, and restores them.

    They are restored when everything is set up, right before the first batch. On another number of
    ranks each gets a new seed, derived from the stored states.
    """

    def __init__(self) -> None:
        self._stored: list[dict[str, Any]] = []

    @override
    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        states: list[Any] = [random_state()]
        if trainer.world_size > 1:
            own = states[0]
            states = [None] * trainer.world_size
            dist.all_gather_object(states, own)
        checkpoint[KEY] = states

    @override
    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self._stored = checkpoint.get(KEY, [])

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        stored, self._stored = self._stored, []
        if len(stored) == trainer.world_size:
            set_random_state(stored[trainer.global_rank])
        elif stored:
            seed_from(stored[0], trainer.global_rank)
            if trainer.is_global_zero:
                log.warning(
                    "The checkpoint was written by %d process(es) and is resumed by %d, so random "
                    "numbers (dropout and the like) are drawn anew from here. The data goes on "
                    "where it was.",
                    len(stored),
                    trainer.world_size,
                )


def random_state() -> dict[str, Any]:
    """Return the states of this process as tensors, numbers and lists."""
    version, numbers, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state()
    state = {
        "python": [version, torch.tensor(numbers, dtype=torch.int64), gauss],
        "numpy": [torch.from_numpy(np.asarray(keys, dtype=np.int64)), position, has_gauss, cached],
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Put this process back in a state that `random_state` returned."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers.tolist()), gauss))
    keys, *rest = state["numpy"]
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def seed_from(state: dict[str, Any], rank: int) -> None:
    """Seed everything from a stored state and the rank: another stream, but always the same."""
    stored = zlib.crc32(state["torch"].numpy().tobytes())
    seed = int(np.random.SeedSequence([stored, rank]).generate_state(1)[0])
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
