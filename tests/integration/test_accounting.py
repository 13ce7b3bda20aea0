"""What a run of real processes says that it cost."""

import json
import os
import signal
import time
from functools import partial

import pytest

from espnet3.parallel import BaseRunner, use_parallel
from tests.helpers.detached_parts import DetachedFolder
from tests.helpers.providers import Provider

N_ITEMS = 40


class SlowToLoad(Provider):
    def build_env_local(self):
        time.sleep(0.3)
        return super().build_env_local()


class Sleep(BaseRunner):
    @staticmethod
    def forward(idx, seen):
        (seen / str(os.getpid())).touch()
        deadline = time.monotonic() + 60
        while len(os.listdir(seen)) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)  # a worker must not be done with all before the other is there
        time.sleep(0.02)
        return {"idx": idx}


@pytest.fixture
def accounting(awkward, tmp_path):
    (tmp_path / "seen").mkdir()
    provider = SlowToLoad(seen=tmp_path / "seen")
    with use_parallel({"env": "local", "n_workers": 2}):
        Sleep(provider, output_dir=awkward)(range(N_ITEMS), durations=[1.0] * N_ITEMS)
    return json.loads((awkward / "_SUCCESS.json").read_text())["accounting"]


def test_a_synchronous_run_tells_what_its_workers_did(accounting):
    workers = accounting["workers"]
    assert len(workers) == accounting["n_workers"] == 2
    assert accounting["n_nodes"] == 1
    assert sum(row["n_items"] for row in workers) == accounting["n_items"] == N_ITEMS
    assert accounting["compute_seconds"] >= N_ITEMS * 0.02
    assert all(row["load_seconds"] >= 0.3 for row in workers)
    assert accounting["real_time_factor"] == pytest.approx(
        accounting["compute_seconds"] / N_ITEMS, rel=1e-4
    )


@pytest.mark.parametrize("kind", ["workers", "nodes"])
def test_rows_add_up_to_the_total_and_parts_to_the_time(accounting, kind):
    approx = partial(pytest.approx, abs=1e-4)  # all are rounded
    parts = ["load", "compute", "write", "running", "lost", "idle"]
    for row in accounting[kind]:
        assert sum(row[f"{part}_seconds"] for part in parts) == approx(row["seconds"])
    for key in ("seconds", "n_shards", *(f"{part}_seconds" for part in parts)):
        assert sum(row[key] for row in accounting[kind]) == approx(accounting[key])


@pytest.fixture
def detached(awkward):
    """A run whose first worker is killed at an item, with all that it started."""
    mark = awkward / "killed"
    run = DetachedFolder(
        awkward / "run", faults={"9": f"kill agent@{mark}"}, seconds=0.05, load=0.3
    )
    assert run.run("--submitted", str(time.time() - 10)) == -signal.SIGKILL
    assert run.run("--submitted", str(time.time() - 30), "--generation", "1") == 0
    run.assert_complete()
    yield json.loads((run.out / "_SUCCESS.json").read_text())["accounting"]
    run.close()


def test_a_detached_run_tells_of_a_worker_that_could_not_speak_any_more(detached):
    first, second = detached["workers"]
    assert first["n_shards"] + second["n_shards"] == detached["n_shards"] == 6
    assert detached["deaths"] == {"died": 1}
    assert (first["n_deaths"], second["n_deaths"]) == (1, 0)
    assert second["load_seconds"] >= 0.3
    assert detached["compute_seconds"] >= 24 * 0.05
    assert (first["queue_seconds"] >= 10, second["queue_seconds"] >= 30) == (True, True)
    assert detached["n_generations"] == 2
    for row in detached["workers"]:
        parts = ["load", "compute", "write", "running", "lost", "idle"]
        total = sum(row[f"{part}_seconds"] for part in parts)
        assert total == pytest.approx(row["seconds"], abs=1e-4)
