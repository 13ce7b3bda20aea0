"""The simulation of a metadata server, where its result is known without one."""

import pytest

from benchmarks.metadata_server import GOALS, START_SECONDS, Load, Simulation, simulate

FREE = {"per_shard": 0, "per_worker": 0, "per_second": 0}


def test_workers_that_ask_for_nothing_lose_no_time():
    found = Simulation(Load(50, 800, 30.0, **FREE, stale=0)).run()
    assert found.efficiency == pytest.approx(1)
    assert found.n_operations == 0
    assert found.n_lost == 0


def test_one_worker_loses_the_latency_and_the_service_of_its_operations():
    load = Load(1, 16, 10.0, per_shard=40, per_worker=0, per_second=0, rate=1000, latency=0.002)
    found = Simulation(load).run()
    assert found.worker_seconds - found.work_seconds == pytest.approx(16 * 40 * 0.003)
    assert found.n_operations == 16 * 40


def test_server_that_is_asked_for_too_much_sets_the_pace():
    load = Load(500, 16 * 500, 0.1, per_shard=40, per_worker=0, per_second=0, rate=1000, stale=0)
    found = Simulation(load).run()
    assert found.end - START_SECONDS < 16 * 500 * 40 / 1000 < found.end
    assert found.n_operations / found.end == pytest.approx(1000, rel=0.25)
    assert found.efficiency < 0.01


def test_signs_of_life_load_the_server_but_nobody_waits_for_them():
    load = Load(10, 160, 30.0, per_shard=0, per_worker=0, per_second=1, rate=1000, stale=0)
    found = Simulation(load).run()
    assert found.n_operations == pytest.approx(found.work_seconds)
    assert found.efficiency == pytest.approx(1)


def test_late_views_cost_claims():
    lost = [Simulation(Load(50, 800, 5.0, stale=stale)).run().n_lost for stale in (0, 60)]
    assert lost[0] == 0
    assert lost[1] > 50


def test_thousand_workers_with_shards_of_half_a_minute_lose_less_than_three_hundredths():
    assert simulate(1_000, 30.0).efficiency >= GOALS[1_000, 30.0] == 0.97
