"""Cut items into shards and batches that follow from the costs of the items alone.

Shards are contiguous, balanced by cost, and smaller towards the end of the run. Batches hold items
of similar length, so that little of a padded batch is padding.
"""

import bisect
import heapq
import itertools
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from espnet3.errors import ConfigError
from espnet3.shards.manifest import run_order

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


# Shards taper linearly from this share of the mean cost down to its mirror (1.8 to 0.2): large
# ones first keep the overhead small, small ones last let workers finish together even when one is
# slow or late (trapezoid self-scheduling, Tzen and Ni 1993).
_LARGEST = 1.8
# Of a batch. Where lengths lie far apart, more batches cost less than what they would pad.
_MAX_PADDING = 0.08
OPERATIONS_PER_SHARD = 50
"""What a worker asks of the file system for a shard with one output file, its share of the merge
included; counted by `python -m benchmarks file_operations`, which compares."""
OPERATIONS_PER_WORKER = 100
"""The same to start a worker, and its first take."""
OPERATIONS_PER_SECOND = 0.25
"""The same while a worker runs a shard: heartbeat, stop mark, `done`, record, clock."""
SERVER_RATE = 10_000
"""Operations a second of the file server that plans are made for."""
SERVER_SHARE = 0.3
"""How much of them a plan may ask for, as far as the number of shards decides it."""
_RUN_SECONDS = 1800.0  # a run on thousands of workers is expected to take at least so long
_LEAST_PER_WORKER = 2
_COST_ADVICE = "Give one number per item, such as its duration in seconds."


@dataclass(frozen=True)
class Batches:
    """Batch `k` holds the items at `order[edges[k]]` to `order[edges[k + 1] - 1]`."""

    order: "array[int]"
    """Positions of the items in the dataset, the longest first."""
    edges: "array[int]"
    costs: "NDArray[np.float64]"
    """Of each batch as it is computed: its longest item times the number of its items."""
    padded_share: float
    """Which part of all that is computed is padding, from 0 to 1."""

    def __len__(self) -> int:
        return len(self.edges) - 1


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


def max_shards(n_workers: int) -> int:
    """Return how many shards a plan may have, so that all workers together ask little enough.

    That is `SERVER_SHARE` of the file server while the run takes half an hour or longer, but never
    fewer than two shards for each worker, which it takes to balance their load.
    """
    n_shards = SERVER_RATE * SERVER_SHARE * _RUN_SECONDS / OPERATIONS_PER_SHARD
    return max(int(n_shards), _LEAST_PER_WORKER * n_workers)


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
    # Only whole batches: a batch that was cut would be padded differently, and give other
    # roundings.
    return Plan([edges[cut] for cut in cuts], shard_costs, run_order(shard_costs), batches)


class _Multiples:
    """The edges of batches of one size, however many."""

    def __init__(self, size: int, n_items: int) -> None:
        self._size, self._n_items = size, n_items

    def __getitem__(self, batch: int) -> int:
        return min(batch * self._size, self._n_items)


def batch_edges(edges: Sequence[int], start: int, stop: int) -> tuple[int, ...]:
    """Return the edges of the batches between two positions, both included."""
    return tuple(edges[bisect.bisect_left(edges, start) : bisect.bisect_right(edges, stop)])


def _cumulative_costs(n_items: int, batch_size: int, costs: Iterable[float] | None) -> Any:
    """Return the running total of batch costs, starting with 0; a range where all are equal."""
    if costs is None:
        if n_items % batch_size == 0:
            # A range can be bisected like a list, and takes no memory for ten million items.
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
    # The integral of a line that falls from `_LARGEST` to its mirror, 2 - `_LARGEST`.
    return done * (_LARGEST - (_LARGEST - 1) * done)


def batch_by_cost(costs: Any, limit: float, max_items: int | None = None) -> Batches:
    """Sort items by cost and put as many together as fit into `limit` when padded.

    The longest come first, so that a batch that is too large for the memory shows at once. An item
    above the limit is a batch of its own, and no batch has more than 8 % padding.

    Args:
        costs: of the items, checked by `check_costs`.
        limit: of the cost of the longest item of a batch times the number of its items.
        max_items: of a batch.
    """
    import numpy as np

    # Stable: items of equal cost stay in dataset order, whatever NumPy's default sort would do.
    order = np.argsort(-costs, kind="stable")
    longest_first = costs[order]
    edges = [0]
    while edges[-1] < len(costs):
        first = edges[-1]
        room = _room(longest_first[first], limit, max_items)
        edges.append(first + _similar(longest_first[first : first + room]))
    counts = np.diff(edges)
    padded = longest_first[edges[:-1]] * counts
    return Batches(
        array("q", order.astype(np.int64).tobytes()),
        array("q", edges),
        padded,
        padded_share(float(costs.sum()), float(padded.sum())),
    )


def _room(cost: float, limit: float, max_items: int | None) -> int:
    fitting = int(limit / max(cost, limit * 1e-9))  # a length of 0 is not to divide by
    return max(1, fitting if max_items is None else min(fitting, max_items))


def _similar(longest_first: "NDArray[np.float64]") -> int:
    """Return how many of the items, from the longest on, make a batch with little padding."""
    import numpy as np

    longest = longest_first[0]
    computed = longest * np.arange(1, len(longest_first) + 1)
    # The share can only grow with each item, because they are sorted.
    fits = computed * (1 - _MAX_PADDING) <= np.cumsum(longest_first)
    return max(1, int(np.count_nonzero(fits)))


def padded_share(used: float, computed: float) -> float:
    """Return which part of what is computed is padding."""
    return max(0.0, 1 - used / computed) if computed > 0 else 0.0


def padding_in_order(costs: Any, batch_size: int) -> float:
    """Return the padded share of batches of a fixed number of items in dataset order."""
    import numpy as np

    starts = np.arange(0, len(costs), batch_size)
    counts = np.diff([*starts, len(costs)])
    return padded_share(
        float(costs.sum()), float((np.maximum.reduceat(costs, starts) * counts).sum())
    )


def check_costs(costs: Iterable[float], n_items: int) -> Any:
    """Return the costs as an array.

    Raises:
        ConfigError: if they are not one finite number, 0 or above, per item.
    """
    import numpy as np

    try:
        # NumPy would make a single object of a generator.
        values = np.asarray(costs if hasattr(costs, "__len__") else list(costs), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"costs are not numbers ({error}). {_COST_ADVICE}") from error
    if values.shape != (len(values),):
        raise ConfigError(f"costs has the shape {values.shape}. {_COST_ADVICE}")
    if len(values) != n_items:
        raise ConfigError(
            f"costs has {len(values)} values for {n_items} items.",
            fix="Give one cost per item, in order.",
        )
    bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if bad.size:
        raise ConfigError(
            f"costs[{bad[0]}] is {values[bad[0]]}. A cost is a finite number, 0 or above, "
            "such as the duration in seconds."
        )
    return values


@dataclass(frozen=True)
class Forecast:
    """Expected time of a number of workers, from when they are up."""

    n_workers: int
    n_shards: int
    wall_seconds: float
    work_seconds: float
    """What the items take, without the loading of models."""

    @property
    def worker_seconds(self) -> float:
        """Time asked of the cluster: all workers until the last one is done."""
        return self.n_workers * self.wall_seconds

    @property
    def efficiency(self) -> float:
        """Share of that which goes into items, from 0 to 1."""
        return self.work_seconds / self.worker_seconds if self.wall_seconds else 1.0

    @property
    def operations_per_second(self) -> float:
        """File operations of all workers together per second, on average."""
        seconds = max(self.wall_seconds, 1.0)
        return self.operations / seconds + self.n_workers * OPERATIONS_PER_SECOND

    @property
    def operations(self) -> int:
        """File operations that do not depend on the length of shards: starts, and each shard."""
        return self.n_shards * OPERATIONS_PER_SHARD + self.n_workers * OPERATIONS_PER_WORKER

    def __add__(self, other: "Forecast") -> "Forecast":
        """Return what both take, one after the other on the same workers."""
        return Forecast(
            self.n_workers,
            self.n_shards + other.n_shards,
            self.wall_seconds + other.wall_seconds,
            self.work_seconds + other.work_seconds,
        )


def forecast(
    shard_seconds: Sequence[float], n_workers: int, *, load_seconds: float = 0.0
) -> Forecast:
    """Hand out shards in their order, each to the worker that is free first.

    Args:
        shard_seconds: what each shard takes, in run order.
        n_workers: that are up from the beginning.
        load_seconds: what each worker takes before its first shard.
    """
    # All equal, and so a valid heap from the start.
    ends = [load_seconds] * min(n_workers, len(shard_seconds))
    for seconds in shard_seconds:
        heapq.heapreplace(ends, ends[0] + seconds)
    wall = max(ends, default=0.0)
    return Forecast(n_workers, len(shard_seconds), wall, sum(shard_seconds))
