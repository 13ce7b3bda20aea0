"""Batches whose loss or gradient is NaN or infinite: left out on all ranks, counted, limited."""

import logging
import math
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from espnet3.errors import TrainingError
from espnet3.trainer.optimization.model_inputs import ids_of

logger = logging.getLogger(__name__)

_SHOWN_IDS = 8


class NonFiniteGuard:
    """Counts bad batches and stops a training that has too many of them in a row.

    Args:
        limit: as many in a row are left out; one more is an error.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.n_bad = 0
        """Of the whole training."""
        self.n_in_a_row = 0
        self._is_bad = False

    def start_batch(self) -> None:
        """Forget the verdict on the batch before."""
        self._is_bad = False

    def is_bad_loss(self, loss: Tensor, batch: Any, trainer: Trainer) -> bool:
        """Tell whether the loss is not finite on any rank, and say so on that rank.

        All ranks get the same answer: one that went on alone would wait for the others forever.
        """
        if _n_bad_ranks(loss, trainer) == 0:
            return False
        if not math.isfinite(loss.item()):
            self._warn(f"its loss is {loss.item()}", batch, trainer)
        self._is_bad = True
        return True

    def report_bad_norm(self, norm: float, batch: Any, trainer: Trainer) -> None:
        """Take note of gradients that are not finite, which all ranks see alike."""
        self._warn(f"the norm of its gradients is {norm}", batch, trainer)
        self._is_bad = True

    def end_batch(self, is_updated: bool) -> None:
        """Count the batch; those before are forgiven once a good one has changed the weights.

        Raises:
            TrainingError: it is one bad batch too many.
        """
        if self._is_bad:
            self.n_bad += 1
            self.n_in_a_row += 1
        elif is_updated:
            self.n_in_a_row = 0
        if self.n_in_a_row > self.limit:
            raise TrainingError(
                f"{self.n_in_a_row} batches in a row had a loss or gradient that is not finite "
                f"(max_nonfinite_batches: {self.limit}); the utterances stand in the warnings "
                "above. The weights are those before the first of them, as none was stepped with. "
                "Try a lower learning rate or a longer warm-up, gradient clipping "
                "(trainer.gradient_clip_val: 1.0), or precision: bf16-mixed or 32 instead of "
                "16-mixed. Empty texts, and texts longer than the frames for CTC, are the usual "
                "reason in data. Running train again goes on from the last checkpoint."
            )

    def _warn(self, what: str, batch: Any, trainer: Trainer) -> None:
        ids = ids_of(batch)
        more = f" and {len(ids) - _SHOWN_IDS} more" if len(ids) > _SHOWN_IDS else ""
        named = f" with {', '.join(ids[:_SHOWN_IDS])}{more}" if ids else ""
        logger.warning(
            "epoch %d, batch %d, rank %d: the batch%s is left out: %s",
            trainer.current_epoch,
            trainer.fit_loop.batch_idx,
            trainer.global_rank,
            named,
            what,
        )

    def state_dict(self) -> dict[str, int]:
        """Return the counts."""
        return {"n_bad": self.n_bad, "n_in_a_row": self.n_in_a_row}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from other counts."""
        self.n_bad, self.n_in_a_row = state["n_bad"], state["n_in_a_row"]


def _n_bad_ranks(loss: Tensor, trainer: Trainer) -> int:
    if trainer.world_size == 1:
        return int(not math.isfinite(loss.item()))
    is_bad = (~torch.isfinite(loss.detach())).float().reshape(1)
    return int(trainer.strategy.reduce(is_bad, reduce_op="sum").item())
