"""The batches of an epoch: by count or by length, little padding, the same steps on all ranks."""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

from espnet3.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

    from espnet3.components.data.dataset import Floats, Ints


Order = Callable[[int], "Ints"]
"""Given an epoch, the indices of a dataset in the order in which to read them."""

# Ranks wait for the slowest one, so batches of similar cost stand together: in blocks of these
# sizes, each within the one before, in random order. They fit the usual numbers of ranks.
_BLOCKS = (96, 16, 8, 4, 2, 1)


# Sums of sizes are rounded.
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Limit:
    """Limits of a batch: so many samples, and so much with each padded to the largest."""

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


class BatchPlan(Protocol):
    """Makes the batches of an epoch."""

    limit: Limit
    """What one of them may hold, also where ranks need others."""

    def batches(self, epoch: int) -> list["Ints"]:
        """Return the tickets of each batch, in the order of training."""
        ...


@dataclass(frozen=True)
class DatasetPart:
    """The items of one dataset that take part, and how often each comes."""

    items: "Ints"
    weight: float = 1.0


@dataclass(frozen=True)
class Slots:
    """Places in an epoch, of which each is taken by one item, or by some neighbours in turn.

    A weight of 1.5 makes a place of its own for each item, and one more for each two of them. So
    each epoch has as many samples, of nearly the same lengths.
    """

    items: "Ints"
    starts: "Ints"
    """Where the items of a place begin."""
    counts: "Ints"
    """How many take turns."""
    copies: "Ints"
    """How many other places of the same items come before."""
    turns: "Ints"
    """Which one begins."""

    def __len__(self) -> int:
        return len(self.starts)

    def tickets(self, epoch: int, n_items: int) -> "Ints":
        """Return the ticket for each place."""
        own = self.starts + (self.turns + epoch) % self.counts
        return self.copies * n_items + self.items[own]

    def at(self, order: "Ints") -> "Slots":
        """Return these places, in this order."""
        return Slots(
            self.items,
            *(x[order] for x in (self.starts, self.counts, self.copies, self.turns)),
        )

    def bounds(self, lengths: "Floats") -> tuple["Floats", "Floats"]:
        """Return the longest and the shortest that may take each place, if items fall in length."""
        return lengths[self.items[self.starts]], lengths[self.items[self.starts + self.counts - 1]]

    def candidates(self, start: int, end: int) -> "Ints":
        """Return the items that may take one of the places from `start` to `end`."""
        import numpy as np

        counts = self.counts[start:end]
        offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        found: Ints = self.items[np.repeat(self.starts[start:end], counts) + offsets]
        return found


class CountBatches:
    """Batches of so many samples.

    Args:
        parts: The datasets.
        batch_size: Samples of a batch.
        n_items: The number of items that indices count, those that do not take part included.
        seed: For the order and for what a weight leaves out; None keeps the order.
        drop_last: Leave out what does not fill a batch.
        order: Used instead of a random one.
    """

    def __init__(
        self,
        parts: Sequence[DatasetPart],
        batch_size: int,
        *,
        n_items: int,
        seed: int | None,
        drop_last: bool = False,
        order: Order | None = None,
    ) -> None:
        self.slots = find_slots(parts, seed or 0)
        self.batch_size = batch_size
        self.limit = Limit(batch_size)
        self.n_items = n_items
        self.seed = seed
        self.drop_last = drop_last
        self.order = order

    def batches(self, epoch: int) -> list["Ints"]:
        """Return the batches; of what does not fill one, a smaller one."""
        tickets = self.slots.tickets(epoch, self.n_items)
        if self.seed is not None:
            keys = _sort_keys(tickets, self.n_items, self.order, [self.seed, epoch, 1])
            tickets = tickets[keys.argsort(kind="stable")]
        n_batches = len(tickets) // self.batch_size
        if n_batches * self.batch_size < len(tickets) and not self.drop_last:
            n_batches += 1
        return [tickets[i * self.batch_size : (i + 1) * self.batch_size] for i in range(n_batches)]


class LengthBatches:
    """Batches of samples of similar length, within a budget.

    Items are put into buckets by length, so narrow that no batch from one bucket has more padding
    than allowed. Each epoch deals out the items of a bucket again.

    Args:
        parts: The datasets.
        lengths: Of each item, in seconds or whatever the budget is in; [fields, items] where the
            sum of several fields counts, of which each is padded for itself.
        budget: What the number of samples times the longest may come to.
        max_items: The largest number of samples of a batch.
        max_padding: The largest part of a batch that may be padding.
        seed: For the order and for what a weight leaves out; None gives the longest first.
        order: Batches follow it, instead of a random order.
    """

    def __init__(
        self,
        parts: Sequence[DatasetPart],
        lengths: "Floats",
        *,
        budget: float,
        max_items: int | None = None,
        max_padding: float,
        seed: int | None,
        order: Order | None = None,
    ) -> None:
        import numpy as np

        self.limit = Limit(max_items, np.atleast_2d(lengths), budget)
        self.lengths = lengths = np.atleast_2d(lengths).sum(axis=0)
        self.seed = seed
        self.order = order
        by_length = [DatasetPart(_falling(part.items, lengths), part.weight) for part in parts]
        slots = find_slots(by_length, seed or 0)
        longest, shortest = slots.bounds(lengths)
        falling = np.argsort(-longest, kind="stable")
        self.slots = slots.at(falling)
        self.buckets = [
            _for_fields(bucket, self.slots, self.limit)
            for bucket in _find_buckets(
                longest[falling], shortest[falling], self.limit, max_padding
            )
        ]
        self.sizes = _join([_even_sizes(len(bucket), bucket.capacity) for bucket in self.buckets])

    def batches(self, epoch: int) -> list["Ints"]:
        """Return the batches; those of similar cost stand together, in random order."""
        import numpy as np

        n_items = len(self.lengths)
        tickets = self.slots.tickets(epoch, n_items)
        starts = np.cumsum(self.sizes) - self.sizes
        if self.seed is None:
            return _cut(tickets, starts)
        bucket = np.repeat(np.arange(len(self.buckets)), list(map(len, self.buckets)))
        keys = _sort_keys(tickets, n_items, self.order, [self.seed, epoch, 1])
        order = np.lexsort((keys, bucket))
        batches = _cut(tickets[order], starts)
        if self.order is not None:
            sequence = np.minimum.reduceat(keys[order], starts).argsort(kind="stable")
        else:
            longest = np.maximum.reduceat(self.lengths[tickets[order] % n_items], starts)
            by_cost = np.argsort(longest * self.sizes, kind="stable")
            sequence = _in_blocks(by_cost, np.random.default_rng([self.seed, epoch, 2]))
        return [batches[i] for i in sequence]


@dataclass(frozen=True)
class _Bucket:
    start: int
    end: int
    """Of places in an epoch, from the longest to the shortest."""
    capacity: int
    """Samples of a batch."""

    def __len__(self) -> int:
        return self.end - self.start


def _find_buckets(
    longest: "Floats", shortest: "Floats", limit: Limit, max_padding: float
) -> Iterator[_Bucket]:
    """Yield buckets of places, whose longest lengths fall."""
    import numpy as np

    totals = np.concatenate([[0.0], np.cumsum(shortest)])
    start, n_slots = 0, len(longest)
    while start < n_slots:
        capacity = min(limit.capacity(float(longest[start])), n_slots)
        least = longest[start] * (1 - max_padding) * (1 - TOLERANCE)
        # However these are dealt, none is more padded than is allowed for all.
        end = start + _n_leading(shortest[start:] >= least)
        # What is one batch in any case may differ more, as long as its mean is fine.
        ends = np.arange(start + 1, min(start + capacity, n_slots) + 1)
        means = (totals[ends] - totals[start]) / (ends - start)
        end = max(end, start + _n_leading(means >= least), start + 1)
        yield _Bucket(start, end, capacity)
        start = end


def _for_fields(bucket: _Bucket, slots: Slots, limit: Limit) -> _Bucket:
    """Return the bucket with room for the longest of each field, which may be of two samples."""
    if limit.sizes is None or len(limit.sizes) == 1:
        return bucket
    candidates = slots.candidates(bucket.start, bucket.end)
    return replace(bucket, capacity=min(bucket.capacity, limit.capacity(limit.padded(candidates))))


def _n_leading(values: "np.ndarray[Any, np.dtype[np.bool_]]") -> int:
    return len(values) if values.all() else int(values.argmin())


def _falling(items: "Ints", lengths: "Floats") -> "Ints":
    return items[(-lengths[items]).argsort(kind="stable")]


def _even_sizes(n_tickets: int, capacity: int) -> "Ints":
    """Return sizes that differ by one at most, rather than full batches and a small one."""
    import numpy as np

    n_batches = -(-n_tickets // capacity)
    sizes = np.full(n_batches, n_tickets // max(n_batches, 1), dtype=np.int64)
    sizes[: n_tickets - int(sizes.sum())] += 1
    return sizes


def _sort_keys(tickets: "Ints", n_items: int, order: Order | None, words: list[int]) -> "Floats":
    """Return a number for each ticket that gives its place: random, or as the order says."""
    import numpy as np

    keys = np.random.default_rng(words).random(len(tickets))
    if order is None:
        return keys
    places = np.empty(n_items, dtype=np.float64)
    places[order(words[1])] = np.arange(n_items)
    # Keys are below 1, so they decide only among the copies of an item.
    return places[tickets % n_items] + keys


def _in_blocks(by_cost: "Ints", rng: "np.random.Generator") -> "Ints":
    """Return batches, sorted by cost, in a random order in which neighbours have similar costs."""
    import numpy as np

    parts = []
    for i, size in enumerate(_BLOCKS):
        n_rest = len(by_cost) % size
        # At random, or the remainder would always be the cheapest batches, or the costliest.
        start = int(rng.integers(0, len(by_cost) - n_rest + 1))
        rest, blocks = (
            by_cost[start : start + n_rest],
            np.delete(by_cost, slice(start, start + n_rest)).reshape(1, -1, size),
        )
        for larger, smaller in pairwise((size, *_BLOCKS[i + 1 :])):
            blocks = _shuffled(blocks, rng).reshape(-1, larger // smaller, smaller)
        parts.append(_shuffled(blocks, rng).reshape(-1))
        by_cost = rest
    return _join(parts)


def _shuffled(blocks: "Ints", rng: "np.random.Generator") -> "Ints":
    """Shuffle the second axis of [groups, blocks, items], differently in each group."""
    import numpy as np

    order = rng.random(blocks.shape[:2]).argsort(axis=1)
    return np.take_along_axis(blocks, order[:, :, None], axis=1)


def _cut(tickets: "Ints", starts: "Ints") -> list["Ints"]:
    ends = [*starts.tolist()[1:], len(tickets)]
    return [tickets[start:end] for start, end in zip(starts.tolist(), ends, strict=True)]


def _join(arrays: Sequence["Ints"]) -> "Ints":
    import numpy as np

    # concatenate() refuses an empty list.
    return np.concatenate([np.empty(0, np.int64), *arrays])


def find_slots(parts: Sequence[DatasetPart], seed: int) -> Slots:
    """Return the places of all datasets; neighbours among a dataset's items share one."""
    import numpy as np

    rng = np.random.default_rng([seed, 3])
    columns: list[list[Ints]] = [[], [], [], []]
    n_before = 0
    for part in parts:
        n_items, n_whole = len(part.items), int(part.weight)
        n_shared = round((part.weight - n_whole) * n_items)
        for copy in range(n_whole + (n_shared > 0)):
            n_slots = n_shared if copy == n_whole else n_items
            edges = np.arange(n_slots + 1) * n_items // n_slots
            columns[0].append(n_before + edges[:-1])
            columns[1].append(np.diff(edges))
            columns[2].append(np.full(n_slots, copy))
            # At random, or an epoch would take the first item of every place.
            columns[3].append(rng.integers(0, 2**31, n_slots))
        n_before += n_items
    items = np.concatenate([part.items for part in parts])
    return Slots(items, *(np.concatenate(column) for column in columns))


def tickets_of(indices: "Ints", n_items: int) -> "Ints":
    """Return the tickets of indices that may come several times."""
    import numpy as np

    order = np.argsort(indices, kind="stable")
    in_order = indices[order]
    is_first = np.ones(len(indices), dtype=bool)
    is_first[1:] = in_order[1:] != in_order[:-1]
    firsts = np.flatnonzero(is_first)
    run = np.cumsum(is_first) - 1
    copies = np.empty_like(indices)
    copies[order] = np.arange(len(indices)) - firsts[run]
    return copies * n_items + indices


def shard_order(locality: Any, *, seed: int, epoch: int, buffer_shards: int) -> "Ints":
    """Return the positions of all items, shard by shard in random order, mixed among neighbours.

    The shards are shuffled; each `buffer_shards` of them in a row are put together, and their
    items are shuffled. So at any time items come from at most that many shards, which are then
    done with. The same arguments give the same order.

    Args:
        locality: The shard of each item; see `locality_of`.
        seed: Of the experiment.
        epoch: From 0.
        buffer_shards: More mix better, fewer are read more smoothly.

    Example:
        >>> shard_order([0, 0, 1, 1, 2, 2], seed=0, epoch=0, buffer_shards=1).tolist()
        [3, 2, 5, 4, 1, 0]
    """
    import numpy as np

    if buffer_shards < 1:
        raise ValueError(f"buffer_shards is {buffer_shards}; it must be 1 or more.")
    generator = np.random.default_rng([seed, epoch])
    numbers, shard_of_item = np.unique(np.asarray(locality), return_inverse=True)
    pool_of_shard = generator.permutation(len(numbers)) // buffer_shards
    order = generator.permutation(len(shard_of_item))
    pools = pool_of_shard[shard_of_item[order]]
    # Stable, so that the random order within a pool stays.
    return np.asarray(order[np.argsort(pools, kind="stable")], dtype=np.int64)


def world() -> tuple[int, int]:
    """Return the number of ranks and our own: of the process group, or 1 and 0 without one."""
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size(), distributed.get_rank()
    return 1, 0


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
            "drop_last leaves no batch of an epoch.",
            fix="Use smaller batches or more data, or write: drop_last: false",
        )
    n_rest = len(batches) % n_ranks
    n_whole = len(batches) - n_rest
    if n_rest == 0 or (drop_last and n_whole):
        return list(batches[:n_whole])
    n_samples = sum(map(len, batches))
    if n_samples < n_ranks or drop_last:
        raise ConfigError(
            f"There are {n_ranks} ranks, but only {len(batches)} batches with {n_samples} samples "
            "of an epoch are left for them.",
            fix="Use fewer devices or more data, or smaller batches: batch_size: 1",
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


def for_all_ranks(batches: Sequence["Ints"], n_ranks: int, *, drop_last: bool) -> list["Ints"]:
    """Return batches of all ranks together, each with a sample for every rank at least.

    Those with fewer are joined with the next such batches; what is left in the end goes into the
    last batch.

    Args:
        batches: Of tickets.
        n_ranks: How many share a batch.
        drop_last: Leave out what is left in the end.

    Raises:
        ConfigError: There are fewer samples than ranks.
    """
    import numpy as np

    whole: list[Ints] = []
    few: list[Ints] = []
    for batch in batches:
        few = few if len(batch) >= n_ranks else [*few, batch]
        if len(batch) >= n_ranks:
            whole.append(batch)
        elif sum(map(len, few)) >= n_ranks:
            whole.append(np.concatenate(few))
            few = []
    if few and whole and not drop_last:
        whole[-1] = np.concatenate([whole[-1], *few])
    if not whole:
        raise ConfigError(
            f"There are {n_ranks} ranks, but only {sum(map(len, batches))} samples of an epoch for "
            "them.",
            fix="Use fewer devices, or more data.",
        )
    return whole


def shares(batches: Sequence["Ints"], n_ranks: int) -> list["Ints"]:
    """Return each batch as one for every rank: rank r gets the samples r, r + n_ranks, ..."""
    return [batch[rank::n_ranks] for batch in batches for rank in range(n_ranks)]


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
    n_remade = 2 * (n_batches - n_wanted)
    while True:
        chosen = sorted(order[:n_remade])
        packed = list(_packed([batches[i] for i in chosen], limit))
        n_saved = len(chosen) - len(packed)
        if n_batches - n_saved <= n_wanted or n_remade >= n_batches:
            break
        n_remade *= 2
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
