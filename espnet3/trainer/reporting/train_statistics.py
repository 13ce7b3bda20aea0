"""Statistics of batches: weighted means over batches and ranks, kept by checkpoints."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed
from lightning.pytorch import Trainer
from torch import Tensor

Number = Tensor | float
Sums = dict[str, tuple[float, float]]
"""By name of a statistic, the weighted sum of its values and the sum of their weights."""


class StatMeter:
    """Adds up statistics where they are; a statistic counts only in batches that report it."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[Number, Number]] = {}

    def add(self, stats: Mapping[str, Number], weight: Number, prefix: str = "") -> None:
        """Add a batch, without waiting for a device."""
        weight = _long(weight)
        for name, value in stats.items():
            key = f"{prefix}{name}"
            total, weights = self._sums.get(key, (0.0, 0.0))
            self._sums[key] = (total + _long(value) * weight, weights + weight)

    def take(self) -> dict[str, float]:
        """Return the means over all ranks, by name, and start anew; all ranks must call it."""
        totals = self.state_dict()
        self._sums = {}
        return {name: value / weight for name, (value, weight) in totals.items() if weight}

    def state_dict(self) -> Sums:
        """Return the sums over all ranks; all ranks must call it."""
        own = {name: (float(total), float(weight)) for name, (total, weight) in self._sums.items()}
        totals: Sums = {}
        for sums in _of_all_ranks(own):
            for name, (value, weight) in sums.items():
                before = totals.get(name, (0.0, 0.0))
                totals[name] = (before[0] + value, before[1] + weight)
        return totals

    def load_state_dict(self, sums: Sums) -> None:
        """Go on from sums over all ranks; to be called on one of them."""
        self._sums = dict(sums)


def _long(value: Number) -> Number:
    """Return it in 64 bits: sums of a long epoch in 32, let alone 16, would round visibly."""
    if not isinstance(value, Tensor):
        return float(value)
    if value.device.type == "cpu":  # nothing to wait for, and numbers add up faster than tensors
        return float(value.item())
    value = value.detach()
    return value.float() if value.device.type == "mps" else value.double()


def _of_all_ranks(own: Sums) -> list[Sums]:
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    if not distributed or torch.distributed.get_world_size() == 1:
        return [own]
    # Objects, not tensors: the ranks may have seen different statistics.
    gathered: list[Sums] = [{}] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(gathered, own)
    return gathered


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
