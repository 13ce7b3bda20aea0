"""Distribute the batches of an epoch over the ranks: all get the same number of steps."""

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from espnet3.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

    Ints = np.ndarray[Any, np.dtype[np.int64]]
    Floats = np.ndarray[Any, np.dtype[np.float64]]

# Sums of sizes are rounded.
TOLERANCE = 1e-9


def world() -> tuple[int, int]:
    """Return the number of ranks and our own: of the process group, or 1 and 0 without one."""
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size(), distributed.get_rank()
    return 1, 0


@dataclass(frozen=True)
class Limit:
    """What a batch may hold: so many samples, and so much with each padded to the largest."""

    max_items: int | None = None
    sizes: "Floats | None" = None
    """[fields, items], in seconds or whatever the budget is in: each field is padded for itself."""
    budget: float = math.inf

    def capacity(self, largest: float) -> int:
        """Return how many samples fit, at least 1, if the largest is of this size."""
        most = self.max_items or sys.maxsize
        # A product, since a size may be 0.
        if largest * most <= self.budget * (1 + TOLERANCE):
            return most
        return max(int(self.budget * (1 + TOLERANCE) / largest), 1)

    def padded(self, tickets: "Ints") -> float:
        """Return the size of each of these samples, if they are one batch."""
        if self.sizes is None:
            return 0.0
        return float(self.sizes[:, tickets % self.sizes.shape[1]].max(axis=1).sum())

    def fits(self, tickets: "Ints") -> bool:
        """Tell whether these may be one batch."""
        return len(tickets) <= self.capacity(self.padded(tickets))


def in_steps(
    batches: Sequence["Ints"], n_ranks: int, *, drop_last: bool, limit: Limit | None = None
) -> list["Ints"]:
    """Return the batches such that their number is a multiple of the number of ranks.

    Step s of rank r is batch `s * n_ranks + r`. Only batches near the end are changed: the largest
    are split until there are enough. If there are too few samples for that, which means that nearly
    all batches are single samples, the shortest are joined as far as the limit allows; single
    samples that are then still too many for whole steps, fewer than there are ranks, are left out.

    Args:
        batches: Of tickets.
        n_ranks: How many take part.
        drop_last: Leave out what does not fill a step.
        limit: Of a batch; without one, none gets more samples than the largest of those given.

    Raises:
        ConfigError: There is no batch, or there are fewer samples than ranks.
    """
    if not batches:
        raise ConfigError(
            "drop_last leaves no batch of an epoch. Use smaller batches or more data, or write: "
            "drop_last: false"
        )
    n_rest = len(batches) % n_ranks
    n_whole = len(batches) - n_rest
    if n_rest == 0 or (drop_last and n_whole):
        return list(batches[:n_whole])
    n_samples = sum(map(len, batches))
    if n_samples < n_ranks or drop_last:
        raise ConfigError(
            f"There are {n_ranks} ranks, but only {len(batches)} batches with {n_samples} samples "
            "of an epoch are left for them. Use fewer devices or more data, or smaller batches: "
            "batch_size: 1"
        )
    tail = n_whole
    n_in_tail = sum(map(len, batches[tail:]))
    while tail and n_in_tail < n_whole + n_ranks - tail:
        n_in_tail += sum(map(len, batches[tail - n_ranks : tail]))
        tail -= n_ranks
    if n_in_tail < n_whole + n_ranks - tail:
        joined = _joined(list(batches), n_whole, limit or Limit(max(map(len, batches))))
        return _without_singles(joined, n_whole)
    return [*batches[:tail], *_split(list(batches[tail:]), n_whole + n_ranks - tail)]


def _split(batches: list["Ints"], n_wanted: int) -> list["Ints"]:
    while len(batches) < n_wanted:
        i = max(range(len(batches)), key=lambda i: len(batches[i]))
        half = (len(batches[i]) + 1) // 2
        batches[i : i + 1] = [batches[i][:half], batches[i][half:]]
    return batches


def _joined(batches: list["Ints"], n_wanted: int, limit: Limit) -> list["Ints"]:
    """Return `n_wanted` batches, or as few as the limit allows.

    Those with the smallest samples are made again, and only as many of them as it takes.
    """
    n_batches = len(batches)
    sizes = [limit.padded(batch) for batch in batches]
    order = sorted(range(n_batches), key=lambda i: (sizes[i], len(batches[i]), -i))
    n_anew = 2 * (n_batches - n_wanted)
    while True:
        chosen = sorted(order[:n_anew])
        packed = list(_packed([batches[i] for i in chosen], limit))
        n_saved = len(chosen) - len(packed)
        if n_batches - n_saved <= n_wanted or n_anew >= n_batches:
            break
        n_anew *= 2
    if n_saved <= 0:
        return batches
    remade = _split(packed, max(len(packed), len(chosen) - (n_batches - n_wanted)))
    for i, batch in zip(chosen, remade, strict=False):
        batches[i] = batch
    gone = set(chosen[len(remade) :])
    return [batch for i, batch in enumerate(batches) if i not in gone]


def _packed(batches: Sequence["Ints"], limit: Limit) -> Iterator["Ints"]:
    """Yield as few batches as possible of these samples, the largest first.

    Of one field no fewer are possible: how many fit depends on the largest of a batch alone.
    """
    import numpy as np

    tickets = np.concatenate(batches)
    if limit.sizes is None:
        size = limit.capacity(0.0)
        yield from (tickets[i : i + size] for i in range(0, len(tickets), size))
        return
    sizes = limit.sizes[:, tickets % limit.sizes.shape[1]]
    order = np.argsort(-sizes.sum(axis=0), kind="stable")
    tickets, sizes = tickets[order], sizes[:, order]
    start = 0
    while start < len(tickets):
        end, largest = start + 1, sizes[:, start]
        while end < len(tickets):
            largest = np.maximum(largest, sizes[:, end])
            if end + 1 - start > limit.capacity(float(largest.sum())):
                break
            end += 1
        yield tickets[start:end]
        start = end


def _without_singles(batches: list["Ints"], n_wanted: int) -> list["Ints"]:
    """Leave out the last single samples, until there are so many batches."""
    singles = [i for i, batch in enumerate(batches) if len(batch) == 1]
    gone = set(singles[len(singles) - (len(batches) - n_wanted) :])
    assert len(batches) - len(gone) == n_wanted, "fewer samples than two for each batch"
    return [batch for i, batch in enumerate(batches) if i not in gone]
