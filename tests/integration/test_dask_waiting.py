"""Attempts that wait at a Dask worker behind the one that runs: real workers with four threads."""

import itertools
import json
import os
import signal
import time

import pytest
from distributed import Client, LocalCluster

from espnet3.parallel import BaseRunner, dask_pool, use_parallel
from espnet3.parallel.dask_pool import DaskPool, pause_after_change
from espnet3.shards.layout import DONE
from tests.helpers.providers import Provider
from tests.helpers.waiting import wait_until

WAITING = " (next)"


class Trace(BaseRunner):
    """Tells when and where items ran; the worker of item `killer` dies once, not at its start."""

    @staticmethod
    def forward(idx, killer=None, marker=""):
        begin = time.time()
        time.sleep(0.005)
        if idx == killer and not os.path.exists(marker):
            open(marker, "w").close()
            time.sleep(1.0)  # by then the next attempt has come
            os.kill(os.getpid(), signal.SIGKILL)
        return {"idx": idx, "pid": os.getpid(), "begin": begin, "end": time.time()}


@pytest.fixture
def submitted(monkeypatch):
    """Return what was submitted: the place, the queued shards when it was offered, the shard."""
    seen, queued = [], [0]
    idle, submit = DaskPool.idle, DaskPool.submit

    def offer(self):
        queued[0] = self._n_left - len(self._running)  # several places may be offered at once
        return idle(self)

    def spy(self, worker, task):
        seen.append((worker, queued[0], task.shard))
        submit(self, worker, task)

    monkeypatch.setattr(DaskPool, "idle", offer)
    monkeypatch.setattr(DaskPool, "submit", spy)
    return seen


@pytest.fixture
def client(dask_address):
    with Client(dask_address) as client:
        client.wait_for_workers(2, timeout=60)
        yield client


def test_workers_run_one_shard_at_a_time_in_the_order_of_submission(client, submitted):
    results = Trace(Provider())(range(96), client=client)
    assert [result["idx"] for result in results] == list(range(96))
    assert len(submitted) == 32  # each shard once
    assert any(place.endswith(WAITING) for place, _, _ in submitted)
    for pid in {result["pid"] for result in results}:
        mine = sorted((r["begin"], r["end"]) for r in results if r["pid"] == pid)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(mine))


def test_no_attempt_waits_at_a_worker_that_has_not_finished_one_nor_at_the_end(client, submitted):
    Trace(Provider())(range(96), client=client)
    busy = set()
    for place, n_queued, _ in submitted:
        address = place.removesuffix(WAITING)
        if place.endswith(WAITING):
            assert address in busy
            assert n_queued >= 2
        busy.add(address)
    first = {place.removesuffix(WAITING): place for place, _, _ in reversed(submitted)}
    assert not any(place.endswith(WAITING) for place in first.values())


def test_a_shard_that_waited_behind_a_dying_one_is_not_blamed(client, submitted, tmp_path):
    marker = str(tmp_path / "killed")
    runner = Trace(Provider(killer=20, marker=marker), output_dir=tmp_path / "out")
    with use_parallel({"retries": 1}):
        file = runner(range(96), client=client)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["idx"] for line in lines] == list(range(96))
    done = [json.loads(path.read_text()) for path in (tmp_path / "out").glob(f"split.*/{DONE}")]
    deaths = {each["shard"]: each["n_deaths"] for each in done if each["n_deaths"]}
    guilty = next(each["shard"] for each in done if each["start"] <= 20 < each["stop"])
    assert deaths == {guilty: 1}
    again = [shard for _, _, shard in submitted]
    assert len(again) in (33, 34)  # the guilty one, and the one behind it, if there was one


def test_workers_are_looked_for_often_at_first_and_then_once_a_second():
    assert pause_after_change(0.0) <= 0.05
    assert pause_after_change(2.0) <= 0.2
    assert pause_after_change(3600.0) == 1.0


def test_a_worker_that_comes_is_noticed_at_once_and_not_at_the_next_look(monkeypatch):
    monkeypatch.setattr(dask_pool, "pause_after_change", lambda seconds: 600.0)
    options = {"dashboard_address": "127.0.0.1:0", "processes": False, "threads_per_worker": 1}
    with LocalCluster(n_workers=0, **options) as cluster, Client(cluster) as client:
        pool = DaskPool(client, b"")
        pool.poll(0.0)
        assert pool.idle() == []
        cluster.scale(1)
        wait_until(lambda: pool.poll(0.2) or pool.idle(), 60)
        # A scheduler outlives its pools, and does not keep what they have left there.
        plugins = cluster.scheduler.plugins
        (name,) = (name for name in plugins if name.startswith("espnet3-arrivals"))
        pool.stop()
        wait_until(lambda: name not in plugins, 60)
