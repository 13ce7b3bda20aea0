"""Cut items into shards: contiguous, balanced by cost, and smaller towards the end of the run."""

import bisect
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from espnet3.shards.batches import Batches, batch_by_cost, check_costs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Shards taper linearly from this share of the mean cost down to its mirror (1.8 to 0.2): large
# ones first keep the overhead small, small ones last let workers finish together even when one is
# slow or late (trapezoid self-scheduling, Tzen and Ni 1993).
_LARGEST = 1.8


@dataclass(frozen=True)
class Plan:
    """Shard `k` holds the positions `bounds[k]` to `bounds[k + 1]`; `order` is run order.

    Positions are those of the dataset, unless `batches` puts the items into another order.
    """

    bounds: list[int]
    costs: list[float]
    order: list[int]
    batches: Batches | None = None

    @property
    def n_shards(self) -> int:
        """Number of shards; none of them is empty."""
        return len(self.bounds) - 1


def make_plan(
    n_items: int,
    n_shards: int,
    *,
    batch_size: int | None = None,
    batch_seconds: float | None = None,
    costs: Iterable[float] | None = None,
) -> Plan:
    """Cut `n_items` into at most `n_shards` contiguous shards of whole batches.

    Args:
        n_items: how many items there are.
        n_shards: how many shards to aim at; fewer if there are fewer batches.
        batch_size: shards begin at multiples of it, so that no batch is cut.
        batch_seconds: sort the items by cost instead, and let a batch cost no more than this when
            padded; it then has at most `batch_size` items. Needs `costs`.
        costs: expected cost of each item in any unit, such as seconds of audio; equal if None.

    Returns:
        A plan that depends on nothing but the arguments.
    """
    if n_items == 0:
        return Plan([0], [], [])
    if batch_seconds is not None:
        assert costs is not None
        batches = batch_by_cost(check_costs(costs, n_items), batch_seconds, batch_size)
        return _plan(_totals(_telling(batches.costs)), batches.edges, n_shards, batches)
    edges = _Multiples(batch_size or 1, n_items)
    return _plan(_cumulative_costs(n_items, batch_size or 1, costs), edges, n_shards)


def _plan(cumulative: Any, edges: Any, n_shards: int, batches: Batches | None = None) -> Plan:
    cuts = _cut(cumulative, min(n_shards, len(cumulative) - 1))
    shard_costs = [float(cumulative[b] - cumulative[a]) for a, b in itertools.pairwise(cuts)]
    return Plan([edges[cut] for cut in cuts], shard_costs, run_order(shard_costs), batches)


class _Multiples:
    """The edges of batches of one size, however many."""

    def __init__(self, size: int, n_items: int) -> None:
        self._size, self._n_items = size, n_items

    def __getitem__(self, batch: int) -> int:
        return min(batch * self._size, self._n_items)


def run_order(costs: Sequence[float]) -> list[int]:
    """Return shard numbers, the costliest first, equal ones in dataset order."""
    return sorted(range(len(costs)), key=lambda shard: -costs[shard])


def batch_edges(edges: Sequence[int], start: int, stop: int) -> tuple[int, ...]:
    """Return the edges of the batches between two positions, both included."""
    return tuple(edges[bisect.bisect_left(edges, start) : bisect.bisect_right(edges, stop)])


def _cumulative_costs(n_items: int, batch_size: int, costs: Iterable[float] | None) -> Any:
    """Return the running total of batch costs, starting with 0; a range where all are equal."""
    if costs is None:
        if n_items % batch_size == 0:
            return range(0, n_items + 1, batch_size)
        return [*range(0, n_items, batch_size), n_items]
    import numpy as np

    edges = np.minimum(np.arange(0, n_items + batch_size, batch_size), n_items)
    return _totals(_telling(check_costs(costs, n_items)))[edges]


def _totals(values: "NDArray[np.float64]") -> "NDArray[np.float64]":
    import numpy as np

    return np.concatenate([[0.0], np.cumsum(values)])


def _telling(values: "NDArray[np.float64]") -> "NDArray[np.float64]":
    """Return ones for zeros: they tell nothing, and a shard of cost 0 would sort behind all."""
    import numpy as np

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
