"""The forecast hands out shards as the dispatcher does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.open_pool import shards_to_aim_at
from espnet3.shards.plan import (
    OPERATIONS_PER_SECOND,
    OPERATIONS_PER_SHARD,
    OPERATIONS_PER_WORKER,
    SERVER_RATE,
    SERVER_SHARE,
    Forecast,
    forecast,
)


def test_each_shard_goes_to_the_worker_that_is_free_first():
    found = forecast([4.0, 3.0, 2.0, 2.0, 1.0], 2)
    # 4 + 2 on one worker, 3 + 2 + 1 on the other
    assert found == Forecast(2, 5, 6.0, 12.0)
    assert found.efficiency == 1.0
    assert found.worker_seconds == 12.0


def test_each_worker_loads_once_and_idle_ones_count():
    found = forecast([4.0, 4.0], 3, load_seconds=1.0)
    assert found.wall_seconds == 5.0
    assert found.worker_seconds == 15.0
    assert found.efficiency == pytest.approx(8 / 15)


def test_runs_come_one_after_the_other():
    both = forecast([2.0], 2) + forecast([4.0, 4.0], 2)
    assert both == Forecast(2, 3, 6.0, 10.0)


def test_nothing_takes_no_time():
    assert forecast([], 4) == Forecast(4, 0, 0.0, 0.0)
    assert forecast([], 4).efficiency == 1.0


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=50), st.integers(1, 9))
def test_no_number_of_workers_is_faster_than_the_ideal_or_slower_than_one(shards, n_workers):
    found = forecast(shards, n_workers)
    ideal = max(sum(shards) / n_workers, max(shards))
    assert found.wall_seconds >= ideal - 1e-6
    assert found.wall_seconds <= sum(shards) + 1e-6
    assert 0 < found.efficiency <= 1 + 1e-9


def test_operations_of_a_thousand_workers_follow_from_shards_and_time():
    found = forecast([60.0] * 16_000, 1_000)
    once = 16_000 * OPERATIONS_PER_SHARD + 1_000 * OPERATIONS_PER_WORKER
    expected = once / 960 + 1_000 * OPERATIONS_PER_SECOND
    assert found.operations_per_second == pytest.approx(expected)


@pytest.mark.parametrize("n_workers", [1, 64, 1_000, 6_000])
def test_plans_for_up_to_thousands_of_workers_are_cut_as_finely_as_asked(n_workers):
    assert shards_to_aim_at(ParallelConfig(n_workers=n_workers)) == 16 * n_workers


@pytest.mark.parametrize("n_workers", [10_000, 40_000])
def test_plan_for_more_workers_stays_below_its_share_of_the_file_server(n_workers):
    n_shards = shards_to_aim_at(ParallelConfig(n_workers=n_workers))
    assert 2 * n_workers <= n_shards < 16 * n_workers
    assert n_shards * OPERATIONS_PER_SHARD / 1800 <= SERVER_RATE * SERVER_SHARE


def test_number_of_shards_that_was_asked_for_is_kept():
    asked = ParallelConfig(n_workers=20_000, shards_per_worker=16)
    assert shards_to_aim_at(asked) == 320_000
