"""An order that is random, and reads few shards at a time."""

from typing import Any

import numpy as np

from espnet3.components.data.dataset import CombinedDataset, TransformedDataset

Integers = np.ndarray[Any, np.dtype[np.int64]]


def shard_order(locality: Any, *, seed: int, epoch: int, buffer_shards: int) -> Integers:
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
    if buffer_shards < 1:
        raise ValueError(f"buffer_shards is {buffer_shards}; it must be 1 or more.")
    generator = np.random.default_rng([seed, epoch])
    numbers, shard_of_item = np.unique(np.asarray(locality), return_inverse=True)
    pool_of_shard = generator.permutation(len(numbers)) // buffer_shards
    order = generator.permutation(len(shard_of_item))
    pools = pool_of_shard[shard_of_item[order]]
    return np.asarray(order[np.argsort(pools, kind="stable")], dtype=np.int64)


def locality_of(dataset: Any) -> Integers | None:
    """Return the shard of each item, or None if no part of the dataset is in shards.

    Of combined datasets, each that has no shards counts as one.
    """
    if isinstance(dataset, TransformedDataset):
        return locality_of(dataset.dataset)
    if isinstance(dataset, CombinedDataset):
        parts = [locality_of(part) for part in dataset.datasets]
        if all(part is None for part in parts):
            return None
        sizes = [len(part) for part in dataset.datasets]
        return _joined([np.zeros(n, np.int64) if p is None else p
                        for p, n in zip(parts, sizes, strict=True)])  # fmt: skip
    ask = getattr(dataset, "locality", None)
    return None if ask is None else np.asarray(ask(), dtype=np.int64)


def _joined(parts: list[Integers]) -> Integers:
    joined, start = [], 0
    for part in parts:
        joined.append(part + start)
        start = int(joined[-1].max(initial=start - 1)) + 1
    return np.concatenate(joined)
