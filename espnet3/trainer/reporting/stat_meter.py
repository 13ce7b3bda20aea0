"""Weighted means of what a model reports, exact over any number of batches and ranks."""

from collections.abc import Mapping

import torch
import torch.distributed
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
