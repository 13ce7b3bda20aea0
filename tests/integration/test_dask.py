"""Runners on a Dask cluster that the user has: a real scheduler, workers with four threads."""

import itertools
import json
import os
import signal
import threading
import time

import pytest
from distributed import Client, WorkerPlugin, get_worker

from espnet3.errors import ItemError, ProviderError
from espnet3.parallel import BaseRunner, get_client, parallel_map, use_parallel
from tests.helpers.providers import Provider


class Trace(BaseRunner):
    """Records when and where each item ran."""

    @staticmethod
    def forward(idx, seconds=0.01):
        begin = time.time()
        time.sleep(seconds)
        return {"idx": idx, "pid": os.getpid(), "begin": begin, "end": time.time()}


class Square(BaseRunner):
    @staticmethod
    def forward(idx, bad=(), marker=""):
        items = idx if isinstance(idx, list) else [idx]
        for item in items:
            if item in bad and not (marker and os.path.exists(f"{marker}{item}")):
                if marker:
                    open(f"{marker}{item}", "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
        return [item**2 for item in items] if isinstance(idx, list) else idx**2


@pytest.fixture
def client(dask_address):
    with Client(dask_address) as client:
        client.wait_for_workers(2, timeout=30)
        yield client


def test_results_in_memory_come_in_order_from_an_address(dask_address):
    with use_parallel({"env": "dask", "options": {"address": dask_address}}):
        assert Square(Provider())(range(50)) == [i**2 for i in range(50)]


def test_a_worker_with_four_threads_runs_one_shard_at_a_time(client):
    results = Trace(Provider())(range(40), client=client)
    assert {r["pid"] for r in results} == set(client.run(os.getpid).values())
    for pid in {r["pid"] for r in results}:
        mine = sorted((r["begin"], r["end"]) for r in results if r["pid"] == pid)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(mine))


def test_a_run_folder_filled_by_dask_workers_equals_one_filled_in_this_process(client, awkward):
    here, there = awkward / "here", awkward / "there"
    Square(Provider(), output_dir=here)(range(100))
    Square(Provider(), output_dir=there)(range(100), client=client)
    assert (here / "results.jsonl").read_bytes() == (there / "results.jsonl").read_bytes()


def test_a_run_begun_in_this_process_is_finished_on_dask(client, tmp_path):
    Square(Provider(), output_dir=tmp_path)(range(100))
    before = (tmp_path / "results.jsonl").read_bytes()
    for done in sorted(tmp_path.glob("split.*/done"))[::2]:
        done.unlink()
    (tmp_path / "_SUCCESS.json").unlink()
    (tmp_path / "results.jsonl").unlink()
    with get_client(client):
        Square(Provider(), output_dir=tmp_path)(range(100))
    assert (tmp_path / "results.jsonl").read_bytes() == before


def test_a_worker_that_is_killed_loses_one_shard_which_runs_again(client, tmp_path):
    marker = str(tmp_path / "killed-")
    runner = Square(Provider(bad=(7, 70), marker=marker), output_dir=tmp_path / "out")
    runner(range(100), client=client)
    lines = (tmp_path / "out" / "results.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [i**2 for i in range(100)]


@pytest.mark.parametrize("in_memory", [True, False], ids=["in memory", "in a folder"])
def test_an_item_that_kills_its_workers_is_isolated(client, tmp_path, in_memory):
    out = None if in_memory else tmp_path / "out"
    with use_parallel({"retries": 0}):
        runner = Square(Provider(bad=(13,)), output_dir=out, on_error="skip")
        results = runner(range(20), client=client)
    if in_memory:
        assert [r for i, r in enumerate(results) if i != 13] == [i**2 for i in range(20) if i != 13]
        assert results[13].index == 13
    else:
        failures = [json.loads(line) for line in (out / "failed.jsonl").read_text().splitlines()]
        assert [failure["index"] for failure in failures] == [13]
        assert len((out / "results.jsonl").read_text().splitlines()) == 19


def test_a_worker_that_joins_late_gets_work_at_once(tmp_path):
    from distributed import LocalCluster

    with LocalCluster(1, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster:
        with Client(cluster) as client:
            threading.Timer(0.3, lambda: cluster.scale(2)).start()
            results = Trace(Provider(seconds=0.1))(range(80), client=client)
    assert len({r["pid"] for r in results}) == 2
    assert [r["idx"] for r in results] == list(range(80))


class FailingProvider(Provider):
    def build_worker_setup_fn(self):
        def setup():
            raise FileNotFoundError("no such checkpoint: model.pt")

        return setup


def test_a_provider_that_fails_on_a_worker_is_told_with_its_traceback(client):
    with pytest.raises(ProviderError, match=r"no such checkpoint: model\.pt") as error:
        Square(FailingProvider())(range(10), client=client)
    assert "in setup" in str(error.value)


class Failing(BaseRunner):
    @staticmethod
    def forward(idx):
        return 1 / (idx - 5)


def test_an_item_that_raises_stops_the_run_with_its_traceback(client):
    with pytest.raises(ItemError, match=r"Item 5 .*ZeroDivisionError") as error:
        Failing(Provider())(range(10), client=client)
    assert "return 1 / (idx - 5)" in str(error.value)


class Tag(WorkerPlugin):
    def setup(self, worker):
        worker.tag = "tagged"


def test_get_client_takes_a_plugin_a_config_an_address_or_a_set_up_function(dask_address):
    config = {"env": "dask", "options": {"address": dask_address}}
    with use_parallel(config):
        with get_client(Tag()) as client:
            assert isinstance(client, Client)
            assert parallel_map(lambda i: (i, get_worker().tag), range(3)) == [
                (0, "tagged"), (1, "tagged"), (2, "tagged"),
            ]  # fmt: skip
    with get_client(config):
        assert parallel_map(lambda i: i + 1, range(30)) == list(range(1, 31))
    with get_client(dask_address) as client:
        assert parallel_map(str, [1, 2], client=client) == ["1", "2"]
    with get_client(dask_address, setup_fn=lambda: {"scale": 10, "unused": 0}):
        assert parallel_map(lambda i, scale: i * scale, range(3)) == [0, 10, 20]


def test_get_client_of_one_local_worker_is_a_real_client_and_ends_with_the_block():
    with get_client({"env": "local", "n_workers": 1}) as client:
        assert client.submit(lambda: 1 + 1).result() == 2
        assert len(client.nthreads()) == 1
    assert client.status == "closed"
