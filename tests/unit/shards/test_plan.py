import itertools
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from espnet3.errors import ConfigError
from espnet3.shards.manifest import run_order
from espnet3.shards.plan import make_plan

COSTS = st.lists(st.floats(0, 1e6), max_size=120)
N_SHARDS = st.integers(1, 40)
BATCH = st.none() | st.integers(1, 9)


@given(n_items=st.integers(0, 300), n_shards=N_SHARDS, batch_size=BATCH)
def test_shards_cover_all_items_once_in_whole_batches(n_items, n_shards, batch_size):
    plan = make_plan(n_items, n_shards, batch_size=batch_size)
    check_cover(plan, n_items, n_shards, batch_size)


@given(costs=COSTS, n_shards=N_SHARDS, batch_size=BATCH)
def test_shards_by_cost_cover_all_items_once_in_whole_batches(costs, n_shards, batch_size):
    plan = make_plan(len(costs), n_shards, batch_size=batch_size, costs=costs)
    check_cover(plan, len(costs), n_shards, batch_size)
    total = sum(costs) if any(costs) else len(costs)
    assert sum(plan.costs) == pytest.approx(total)


def check_cover(plan, n_items, n_shards, batch_size):
    assert plan.bounds[0] == 0
    assert plan.bounds[-1] == n_items
    assert all(type(bound) is int for bound in plan.bounds)
    assert all(start < stop for start, stop in itertools.pairwise(plan.bounds))
    n_batches = -(-n_items // (batch_size or 1))
    assert plan.n_shards == len(plan.costs) == min(n_shards, n_batches)
    assert all(bound % (batch_size or 1) == 0 for bound in plan.bounds[:-1])
    assert sorted(plan.order) == list(range(plan.n_shards))


@given(costs=COSTS, n_shards=N_SHARDS, batch_size=BATCH)
def test_costliest_shard_runs_first_and_equal_ones_in_dataset_order(costs, n_shards, batch_size):
    plan = make_plan(len(costs), n_shards, batch_size=batch_size, costs=costs)
    for one, next_one in itertools.pairwise(plan.order):
        assert (-plan.costs[one], one) < (-plan.costs[next_one], next_one)


@given(costs=COSTS.filter(any), n_shards=N_SHARDS, batch_size=BATCH)
def test_no_shard_costs_much_more_than_the_mean_unless_one_batch_does(costs, n_shards, batch_size):
    plan = make_plan(len(costs), n_shards, batch_size=batch_size, costs=costs)
    size = batch_size or 1
    largest_batch = max(sum(costs[i : i + size]) for i in range(0, len(costs), size))
    mean = sum(costs) / plan.n_shards
    assert max(plan.costs) <= 1.8 * mean + largest_batch + 1e-6 * sum(costs)


@given(costs=COSTS, n_shards=N_SHARDS, batch_size=BATCH)
def test_plan_depends_on_nothing_but_its_arguments(costs, n_shards, batch_size):
    forms = [costs, tuple(costs), iter(costs), np.array(costs)]
    plans = [make_plan(len(costs), n_shards, batch_size=batch_size, costs=f) for f in forms]
    assert all(plan == plans[0] for plan in plans)


@given(n_items=st.integers(0, 200), n_shards=N_SHARDS, batch_size=BATCH, cost=st.floats(1e-3, 1e3))
def test_equal_costs_plan_like_no_costs(n_items, n_shards, batch_size, cost):
    plain = make_plan(n_items, n_shards, batch_size=batch_size)
    zeros = make_plan(n_items, n_shards, batch_size=batch_size, costs=[0] * n_items)
    ones = make_plan(n_items, n_shards, batch_size=batch_size, costs=[1] * n_items)
    equal = make_plan(n_items, n_shards, batch_size=batch_size, costs=[cost] * n_items)
    assert zeros == ones == plain
    # A cut in the middle of two batches may fall to either side when sums are rounded.
    size = batch_size or 1
    assert all(abs(a - b) <= size for a, b in zip(equal.bounds, plain.bounds, strict=True))


def test_shards_get_smaller_towards_the_end():
    plan = make_plan(16_000, 16)
    sizes = np.diff(plan.bounds)
    assert (np.diff(sizes) < 0).all()
    assert plan.order == list(range(16))
    assert sizes[0] == pytest.approx(1750, abs=2)
    assert sizes[-1] == pytest.approx(250, abs=2)


@given(n_shards=st.integers(1, 12), batch_size=st.integers(1, 9), n_batches=st.integers(200, 300))
def test_shards_end_at_the_batch_that_is_nearest_to_their_share(n_shards, batch_size, n_batches):
    n_items = n_batches * batch_size
    plan = make_plan(n_items, n_shards, batch_size=batch_size)
    for shard, bound in enumerate(plan.bounds):
        done = shard / n_shards
        assert abs(bound - n_items * done * (1.8 - 0.8 * done)) <= batch_size / 2 + 1e-6


def test_one_long_item_gets_a_shard_of_its_own_and_runs_first():
    costs = [1.0] * 50 + [1000.0] + [1.0] * 49
    plan = make_plan(100, 10, costs=costs)
    first = plan.order[0]
    assert plan.bounds[first] <= 50 < plan.bounds[first + 1]
    assert plan.costs[first] <= 1000 + 1099 * 0.18


def test_no_items_are_no_shards():
    plan = make_plan(0, 8)
    assert (plan.bounds, plan.costs, plan.order, plan.n_shards) == ([0], [], [], 0)


def test_run_order_keeps_dataset_order_among_equals():
    assert run_order([1, 3, 3, 2]) == [1, 2, 3, 0]
    assert run_order([]) == []


@pytest.mark.parametrize("n_costs", [0, 2, 4])
def test_wrong_number_of_costs_is_refused_with_what_to_give(n_costs):
    with pytest.raises(ConfigError, match=f"costs has {n_costs} values for 3 items. Give one cost"):
        make_plan(3, 2, costs=[1.0] * n_costs)


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_impossible_cost_is_named_with_its_place_and_what_a_cost_is(bad):
    with pytest.raises(ConfigError) as error:
        make_plan(3, 2, costs=[1.0, bad, 2.0])
    assert f"costs[1] is {bad}" in str(error.value)
    assert "0 or above, such as the duration in seconds" in str(error.value)


def test_ten_million_items_plan_in_a_second():
    begin = time.process_time()
    assert make_plan(10_000_000, 4096, batch_size=16).n_shards == 4096
    assert make_plan(1_000_000, 4096, costs=np.ones(1_000_000)).n_shards == 4096
    assert time.process_time() - begin < 2
