"""A cluster or a worker that does not go away held up the merge, and with it the whole run.

An operator of Kubernetes that is gone never removes its cluster: the driver waited for an hour in
`close`, with all shards done and none merged.
"""

import os
import signal
import threading
from contextlib import ExitStack, suppress

import pytest
from distributed import LocalCluster

from espnet3.errors import RunInterrupted
from espnet3.parallel import BaseRunner, open_pool, process_pool, use_parallel
from espnet3.parallel.clusters import ray
from espnet3.parallel.clusters.registry import BACKENDS, register_backend
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.open_pool import SharedCluster
from tests.helpers.providers import Provider
from tests.helpers.waiting import wait_for_end, wait_until

ITEMS = range(6)


class Double(BaseRunner):
    @staticmethod
    def forward(idx):
        return {"idx": idx, "double": 2 * idx}


class StuckCluster(LocalCluster):
    """Has two threads as workers; its `close` waits for `gate`."""

    def __init__(self, gate, output_dir):
        super().__init__(n_workers=2, processes=False, dashboard_address=None)
        self.gate, self.output_dir = gate, output_dir
        self.was_merged = []

    def close(self, *args, **kwargs):
        self.was_merged.append((self.output_dir / "results.jsonl").exists())
        self.gate.wait(60)
        return super().close(*args, **kwargs)

    def left_behind(self):
        return "Two threads still run. Remove them: kill -9 1"


@pytest.fixture
def stuck(tmp_path, monkeypatch):
    """Register a backend whose clusters do not close; give the list of those."""
    gate, clusters = threading.Event(), []

    def start(config):
        clusters.append(StuckCluster(gate, tmp_path))
        return clusters[-1]

    register_backend("stuck", start)
    monkeypatch.setattr(open_pool, "CLOSE_SECONDS", 0.3)
    yield clusters
    gate.set()
    del BACKENDS["stuck"]
    wait_until(lambda: "close" not in {each.name for each in threading.enumerate()}, 60)
    for cluster in clusters:
        cluster.close()


def warnings_of(caplog):
    return [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]


def test_a_run_is_merged_before_a_cluster_that_hangs_in_close(stuck, tmp_path, caplog):
    with use_parallel({"env": "stuck", "n_workers": 2}):
        path = Double(Provider(), output_dir=tmp_path)(ITEMS)
    assert len(path.read_text().splitlines()) == len(ITEMS)
    assert (tmp_path / "_SUCCESS.json").exists()
    assert stuck[0].was_merged == [True]
    (told,) = [each for each in warnings_of(caplog) if "kill -9 1" in each]
    assert "0.3 s" in told


def test_all_runs_of_a_shared_cluster_are_returned_though_it_hangs_in_close(stuck, tmp_path):
    config = ParallelConfig(env="stuck", n_workers=2)
    with use_parallel(config), SharedCluster(config, n_tasks=12) as shared:
        first = Double(Provider(), output_dir=tmp_path)(ITEMS, client=shared)
        second = Double(Provider(), output_dir=tmp_path / "other")(ITEMS, client=shared)
    assert len(stuck) == 1
    assert first.read_text() == second.read_text()


def test_a_ray_that_hangs_when_it_is_closed_is_left_with_a_word(monkeypatch, caplog):
    gate, opened = threading.Event(), ExitStack()
    opened.callback(gate.wait)
    monkeypatch.setattr(ray, "open_ray", lambda config, **_: ray.RayCluster(config, opened))
    monkeypatch.setattr(open_pool, "CLOSE_SECONDS", 0.3)
    with open_pool.open_cluster(ParallelConfig(env="ray")):
        pass
    (told,) = warnings_of(caplog)
    assert "within 0.3 s" in told
    assert "ray stop" in told
    gate.set()
    wait_until(lambda: "close" not in {each.name for each in threading.enumerate()}, 60)


def test_after_an_interrupt_less_time_is_left_for_a_cluster_to_close(stuck, monkeypatch, caplog):
    """The process is ended 30 s after Ctrl-C, and must have said what is left by then."""
    monkeypatch.setattr(open_pool, "CLOSE_SECONDS", 60.0)
    monkeypatch.setattr(open_pool, "INTERRUPTED_CLOSE_SECONDS", 0.2)
    config = ParallelConfig(env="stuck", n_workers=2)

    def be_interrupted():
        with SharedCluster(config, n_tasks=12) as shared:
            shared.connect()
            raise RunInterrupted(130)

    with pytest.raises(RunInterrupted):
        be_interrupted()
    assert any("0.2 s. Two threads still run" in each for each in warnings_of(caplog))


def test_results_in_memory_are_returned_though_the_cluster_hangs_in_close(stuck, tmp_path):
    with use_parallel({"env": "stuck", "n_workers": 2}):
        assert [each["double"] for each in Double(Provider())(ITEMS)] == [0, 2, 4, 6, 8, 10]


def test_an_error_in_close_does_not_take_the_result(stuck, tmp_path, monkeypatch, caplog):
    def refuse(self, *args, **kwargs):
        raise TimeoutError("the operator is gone")

    with monkeypatch.context() as patch:
        patch.setattr(StuckCluster, "close", refuse)
        with use_parallel({"env": "stuck", "n_workers": 2}):
            path = Double(Provider(), output_dir=tmp_path)(ITEMS)
    assert path.exists()
    (told,) = [each for each in warnings_of(caplog) if "kill -9 1" in each]
    assert "the operator is gone" in told


def test_an_error_of_an_item_is_raised_though_the_cluster_hangs_in_close(stuck, tmp_path):
    class Fails(Double):
        @staticmethod
        def forward(idx):
            raise KeyError("my item")

    with use_parallel({"env": "stuck", "n_workers": 2}), pytest.raises(Exception, match="my item"):
        Fails(Provider(), output_dir=tmp_path)(ITEMS)
    assert len(stuck) == 1


def test_a_run_is_merged_though_a_process_does_not_end(tmp_path, monkeypatch, caplog):
    """As one does that waits for a file server: not even SIGKILL ends it."""
    monkeypatch.setattr(process_pool, "STOP_SECONDS", 0.3)
    spared = []

    def killpg(pid, number):
        spared.append(pid)

    with monkeypatch.context() as patch:
        patch.setattr(process_pool.os, "killpg", killpg)
        with use_parallel({"env": "local", "n_workers": 2}):
            path = Double(Provider(), output_dir=tmp_path)(ITEMS)
    try:
        assert len(path.read_text().splitlines()) == len(ITEMS)
        told = "\n".join(warnings_of(caplog))
        assert all(str(pid) in told for pid in spared)
    finally:
        for pid in set(spared):
            with suppress(ProcessLookupError):  # it ends when its driver hangs up
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):  # it was forked from the warm process
                os.waitpid(pid, 0)
        wait_for_end(spared, 30)
