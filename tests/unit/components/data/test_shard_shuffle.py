import time

import numpy as np
import pytest

from espnet3.components.data.batching import shard_order
from espnet3.components.data.dataset import CombinedDataset, TransformedDataset, locality_of


def shards_in_flight(locality, order) -> int:
    """Return how many shards, at most, have begun and are not yet done with."""
    seen = locality[order]
    first, last = {}, {}
    for i, shard in enumerate(seen.tolist()):
        first.setdefault(shard, i)
        last[shard] = i
    changes = sorted([(i, 1) for i in first.values()] + [(i + 0.5, -1) for i in last.values()])
    return int(np.cumsum([change for _, change in changes]).max())


@pytest.mark.parametrize("buffer_shards", [1, 3, 100])
def test_every_item_comes_once_and_few_shards_are_read_at_a_time(buffer_shards):
    sizes = np.random.default_rng(0).integers(1, 40, 20)
    locality = np.repeat(np.arange(20), sizes)
    order = shard_order(locality, seed=1, epoch=0, buffer_shards=buffer_shards)
    assert order.dtype == np.int64
    assert np.array_equal(np.sort(order), np.arange(len(locality)))
    assert shards_in_flight(locality, order) == min(buffer_shards, 20)


def test_the_order_is_that_of_seed_and_epoch():
    locality = np.repeat(np.arange(10), 10)
    orders = [
        shard_order(locality, seed=seed, epoch=epoch, buffer_shards=2).tolist()
        for seed, epoch in [(0, 0), (0, 0), (0, 1), (1, 0)]
    ]
    assert orders[0] == orders[1]
    assert len({tuple(order) for order in orders}) == 3


def test_items_are_mixed_within_a_pool_and_shards_are_shuffled():
    locality = np.repeat(np.arange(8), 50)
    order = shard_order(locality, seed=0, epoch=0, buffer_shards=4)
    halves = [set(locality[part].tolist()) for part in (order[:200], order[200:])]
    assert [len(half) for half in halves] == [4, 4]
    assert set(locality[order[:50]].tolist()) == halves[0]  # all four from the beginning
    epochs = [shard_order(locality, seed=0, epoch=e, buffer_shards=4)[:200] for e in range(5)]
    assert len({frozenset(locality[part].tolist()) for part in epochs}) > 1


def test_shards_may_have_any_numbers_and_any_order():
    locality = np.array([7, -1, 7, 10**9, -1])
    order = shard_order(locality, seed=3, epoch=0, buffer_shards=1)
    assert sorted(order.tolist()) == [0, 1, 2, 3, 4]
    assert shards_in_flight(locality, order) == 1
    assert shard_order([], seed=0, epoch=0, buffer_shards=1).tolist() == []


def test_two_million_items_take_about_a_second():
    locality = np.repeat(np.arange(2000), 1000)
    start = time.process_time()
    shard_order(locality, seed=0, epoch=0, buffer_shards=16)
    assert time.process_time() - start < 5


def test_less_than_one_shard_is_refused():
    with pytest.raises(ValueError, match="must be 1 or more"):
        shard_order([0], seed=0, epoch=0, buffer_shards=0)


class Sharded(list):
    def locality(self):
        return np.array(self) // 10


def test_datasets_made_of_others_tell_where_their_items_are():
    sharded = TransformedDataset(Sharded([0, 1, 10]), transform=dict)
    combined = CombinedDataset([sharded, [5, 6], Sharded([0, 20])])
    assert locality_of(combined).tolist() == [0, 0, 1, 2, 2, 3, 5]
    assert locality_of(CombinedDataset([[1], [2]])) is None
    assert locality_of([1]) is None
