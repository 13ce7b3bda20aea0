"""Batches by length: little padding, every item once, nothing above the limit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from espnet3.errors import ConfigError
from espnet3.shards.plan import batch_by_cost, check_costs, make_plan, padding_in_order

durations = st.lists(st.floats(0, 100), min_size=1, max_size=60)


@given(durations, st.floats(1, 200), st.one_of(st.none(), st.integers(1, 9)))
def test_every_item_is_in_one_batch_that_keeps_the_limits(values, limit, max_items):
    costs = np.array(values)
    batches = batch_by_cost(costs, limit, max_items)
    assert sorted(batches.order) == list(range(len(values)))
    for first, last in zip(batches.edges, batches.edges[1:], strict=False):
        members = costs[list(batches.order[first:last])]
        assert len(members) == 1 or members.max() * len(members) <= limit * (1 + 1e-9)
        assert max_items is None or len(members) <= max_items
        assert members.sum() >= 0.92 * members.max() * len(members) * (1 - 1e-9)
    assert batches.edges[-1] == len(values)


def test_the_longest_batch_comes_first_so_that_one_too_large_shows_at_once():
    batches = batch_by_cost(np.array([1.0, 9.0, 3.0, 8.0]), 18)
    assert list(batches.order) == [1, 3, 2, 0]
    assert list(batches.edges) == [0, 2, 3, 4]  # 3 and 1 are too different
    assert list(batches.costs) == [18.0, 3.0, 1.0]


def test_equal_lengths_stay_in_dataset_order():
    assert list(batch_by_cost(np.ones(5), 2.5).order) == [0, 1, 2, 3, 4]


def test_an_item_above_the_limit_is_alone():
    assert list(batch_by_cost(np.array([50.0, 1.0, 1.0]), 10).edges) == [0, 1, 3]


def test_padding_is_far_below_that_of_batches_in_dataset_order():
    lengths = np.random.default_rng(0).lognormal(2.3, 0.6, 2000).clip(1, 35)
    batches = batch_by_cost(lengths, 200)
    assert batches.padded_share < 0.02
    assert batch_by_cost(lengths, 5000).padded_share < 0.08
    assert padding_in_order(lengths, 16) > 0.4


def test_a_plan_by_seconds_cuts_between_batches():
    lengths = np.random.default_rng(1).uniform(1, 20, 500)
    plan = make_plan(500, 12, batch_seconds=60, costs=lengths)
    assert plan.n_shards == 12
    assert set(plan.bounds) <= set(plan.batches.edges)
    assert sum(plan.costs) == pytest.approx(plan.batches.costs.sum())


def test_items_without_length_still_make_a_plan():
    plan = make_plan(10, 4, batch_seconds=5, costs=[0.0] * 10)
    assert plan.bounds == [0, 10]


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        ([1.0, 2.0], r"costs has 2 values for 3 items\. Give one cost per item"),
        ([1.0, float("nan"), 2.0], r"costs\[1\] is nan\. A cost is a finite number"),
        (["a", "b", "c"], r"not numbers.* such as its duration in seconds"),
    ],
)
def test_bad_costs_are_refused(costs, message):
    with pytest.raises(ConfigError, match=message):
        check_costs(costs, 3)
