"""Cut items into shards: contiguous, balanced by cost, and smaller towards the end of the run."""

import bisect
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from espnet3.errors import ConfigError

# Shards taper linearly from this share of the mean cost down to its mirror (1.8 to 0.2): large
# ones first keep the overhead small, small ones last let workers finish together even when one is
# slow or late (trapezoid self-scheduling, Tzen and Ni 1993).
_LARGEST = 1.8
_COST_ADVICE = "Give one number per item, such as its duration in seconds."


@dataclass(frozen=True)
class Plan:
    """Shard `k` holds the item positions `bounds[k]` to `bounds[k + 1]`; `order` is run order."""

    bounds: list[int]
    costs: list[float]
    order: list[int]

    @property
    def n_shards(self) -> int:
        """Number of shards; none of them is empty."""
        return len(self.bounds) - 1


def make_plan(
    n_items: int,
    n_shards: int,
    *,
    batch_size: int | None = None,
    costs: Iterable[float] | None = None,
) -> Plan:
    """Cut `n_items` into at most `n_shards` contiguous shards of whole batches.

    Args:
        n_items: how many items there are.
        n_shards: how many shards to aim at; fewer if there are fewer batches.
        batch_size: shards begin at multiples of it, so that no batch is cut.
        costs: expected cost of each item in any unit, such as seconds of audio; equal if None.

    Returns:
        A plan that depends on nothing but the arguments.
    """
    if n_items == 0:
        return Plan([0], [], [])
    cumulative = _cumulative_costs(n_items, batch_size or 1, costs)
    n_batches = len(cumulative) - 1
    cuts = _cut(cumulative, min(n_shards, n_batches))
    shard_costs = [float(cumulative[b] - cumulative[a]) for a, b in itertools.pairwise(cuts)]
    bounds = [min(cut * (batch_size or 1), n_items) for cut in cuts]
    return Plan(bounds, shard_costs, run_order(shard_costs))


def run_order(costs: Sequence[float]) -> list[int]:
    """Return shard numbers, the costliest first, equal ones in dataset order."""
    return sorted(range(len(costs)), key=lambda shard: -costs[shard])


def _cumulative_costs(n_items: int, batch_size: int, costs: Iterable[float] | None) -> Any:
    """Return the running total of batch costs, starting with 0; a range where all are equal."""
    if costs is None:
        if n_items % batch_size == 0:
            return range(0, n_items + 1, batch_size)
        return [*range(0, n_items, batch_size), n_items]
    import numpy as np

    try:
        array = np.asarray(costs if hasattr(costs, "__len__") else list(costs), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"costs are not numbers ({error}). {_COST_ADVICE}") from error
    values = _check_costs(array, n_items)
    totals = np.concatenate([[0.0], np.cumsum(values)])
    edges = np.minimum(np.arange(0, n_items + batch_size, batch_size), n_items)
    return totals[edges]


def _check_costs(values: Any, n_items: int) -> Any:
    import numpy as np

    if values.shape != (len(values),):
        raise ConfigError(f"costs has the shape {values.shape}. {_COST_ADVICE}")
    if len(values) != n_items:
        raise ConfigError(
            f"costs has {len(values)} values for {n_items} items. Give one cost per item, in order."
        )
    bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if bad.size:
        raise ConfigError(
            f"costs[{bad[0]}] is {values[bad[0]]}. A cost is a finite number, 0 or above, "
            "such as the duration in seconds."
        )
    # All zero tells nothing; and a shard of cost 0 among others would sort behind all of them.
    return values if values.any() else np.ones_like(values)


def _cut(cumulative: Any, n_shards: int) -> list[int]:
    """Choose batch numbers at which to cut, so that shard costs taper; each shard has a batch."""
    n_batches = len(cumulative) - 1
    total = cumulative[n_batches]
    cuts = [0]
    for shard in range(1, n_shards):
        wanted = total * _taper(shard, n_shards)
        cut = bisect.bisect_left(cumulative, wanted)
        if cut > 0 and wanted - cumulative[cut - 1] < cumulative[cut] - wanted:
            cut -= 1
        # Leave at least one batch for this shard and for each one after it.
        cuts.append(min(max(cut, cuts[-1] + 1), n_batches - (n_shards - shard)))
    return [*cuts, n_batches]


def _taper(shard: int, n_shards: int) -> float:
    """Return the share of the total cost that lies before `shard`."""
    done = shard / n_shards
    return done * (_LARGEST - (_LARGEST - 1) * done)
