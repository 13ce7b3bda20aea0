"""The forecast hands out shards as the dispatcher does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espnet3.parallel.forecast import Forecast, forecast


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
