import random
from itertools import chain

import pytest
import torch

from espnet3.components.data.batch_sampler import OwnBatches, build_sampler
from espnet3.errors import ConfigError


class Pairs:
    """Batches of two, in an order from global generators."""

    def __init__(self, dataset, seed=None, reverse=False):
        self.dataset, self.seed, self.reverse = dataset, seed, reverse
        self.epoch = None

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        order = torch.randperm(len(self.dataset)).tolist()
        random.shuffle(order)
        return iter([order[i : i + 2] for i in range(0, len(order), 2)])


def plan(given, n_items=10, **more):
    return OwnBatches(given, n_items=n_items, seed=3, **more)


def lists(batches):
    return [batch.tolist() for batch in batches]


def test_its_global_randomness_follows_from_seed_and_epoch():
    source = Pairs(range(10))
    torch.manual_seed(0)
    first = lists(plan(source).batches(4))
    assert source.epoch == 4
    torch.manual_seed(1)
    random.seed(5)
    state = torch.get_rng_state()
    assert lists(plan(source).batches(4)) == first
    assert lists(plan(source).batches(5)) != first
    assert torch.equal(torch.get_rng_state(), state)
    assert sorted(chain(*first)) == list(range(10))


def test_single_indices_are_cut_into_batches():
    order = [4, 2, 0, 1, 3]
    assert lists(plan(order, batch_size=2).batches(0)) == [[4, 2], [0, 1], [3]]
    assert lists(plan(order, batch_size=2, drop_last=True).batches(0)) == [[4, 2], [0, 1]]


def test_a_sample_that_comes_again_is_another_copy():
    assert lists(plan([[1, 1], [2, 1]]).batches(0)) == [[1, 11], [2, 21]]


@pytest.mark.parametrize(
    ("given", "more", "message"),
    [
        ([], {}, "gives no batches"),
        ([1, 2], {}, "gave 1 instead of a list of indices.*as a sampler with a batch_size"),
        ([[1, 2]], {"batch_size": 2}, "instead of an index.*as a batch_sampler"),
        ([["a"]], {}, "instead of a list of indices"),
        ([[]], {}, "instead of a list of indices"),
        ([[3, 10]], {}, r"gave the indices \[3, 10\], but the dataset has 10 items"),
        ([[-1]], {}, "counted from 0"),
    ],
)
def test_what_is_no_index_is_named(given, more, message):
    with pytest.raises(ConfigError, match=message):
        plan(given, **more).batches(0)


def test_one_that_deals_to_ranks_itself_is_refused():
    sampler = torch.utils.data.DistributedSampler(range(10), num_replicas=2, rank=0)
    with pytest.raises(ConfigError, match=r"deals to 2 ranks itself.*num_replicas: 1"):
        plan(sampler, batch_size=2)


def test_it_is_built_with_what_its_signature_asks_for(monkeypatch, tmp_path):
    (tmp_path / "my_sampler.py").write_text(
        "class Mine:\n"
        "    def __init__(self, dataset, seed, reverse=False):\n"
        "        self.all = (dataset, seed, reverse)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    offered = {"dataset": [7, 8], "data_source": None, "seed": 5}
    node = {"_target_": "my_sampler.Mine", "reverse": True}
    built = build_sampler(node, offered, key="dataloader.train.batch_sampler")
    assert built.all == ([7, 8], 5, True)
    with pytest.raises(ConfigError, match=r"dataloader.train.batch_sampler.*'reverse'"):
        build_sampler({"_target_": "my_sampler.Mine", "revers": 1}, offered,
                      key="dataloader.train.batch_sampler")  # fmt: skip
    with pytest.raises(ConfigError, match="Write a mapping with the _target_"):
        build_sampler("my_sampler.Mine", offered, key="k")
