"""Batches of items of similar length, so that little of a padded batch is padding."""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from espnet3.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Of a batch. Where lengths lie far apart, more batches cost less than what they would pad.
_MAX_PADDING = 0.08
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
        values = np.asarray(costs if hasattr(costs, "__len__") else list(costs), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"costs are not numbers ({error}). {_COST_ADVICE}") from error
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
    return values
