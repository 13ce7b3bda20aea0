"""What was logged of a training, and what is to be logged next, as a checkpoint keeps it."""

from typing import Any

import torch
from lightning.pytorch import Trainer

from espnet3.trainer.reporting.stat_meter import StatMeter


class TrainLog:
    """The statistics of training batches since the last log point, and the metrics from it.

    A run that goes on from a checkpoint logs what it would have logged without the interruption:
    schedules and the choice of checkpoints may go by it.

    Args:
        norms: of the gradients, by optimizer, which are logged as well.
    """

    def __init__(self, norms: dict[str, float]) -> None:
        self.stats = StatMeter()
        self.is_logged = False
        """Whether the epoch at hand had a log point."""
        self._norms = norms
        self._restored: dict[str, float] = {}

    def state_dict(self, trainer: Trainer) -> dict[str, Any]:
        """Return it for a checkpoint; all ranks must call it."""
        metrics = trainer.callback_metrics
        return {
            "sums": self.stats.state_dict(),
            "is_logged": self.is_logged,
            "norms": dict(self._norms),
            "metrics": {n: float(v) for n, v in metrics.items() if n.startswith("train/")},
        }

    def load_state_dict(self, state: dict[str, Any], trainer: Trainer) -> None:
        """Go on from a checkpoint; `restore_metrics` is the second half."""
        self.is_logged, self._restored = state["is_logged"], state["metrics"]
        self._norms.update(state["norms"])
        if trainer.is_global_zero:
            self.stats.load_state_dict(state["sums"])

    def restore_metrics(self, trainer: Trainer) -> None:
        """Let callbacks see what was logged last; at the train start, after the sanity check."""
        values = {name: torch.tensor(value) for name, value in self._restored.items()}
        trainer.callback_metrics.update(values)
        self._restored = {}
