"""Nodes that are slow, or on which all dies: the others do the work, and nobody is asked."""

import pytest

from espnet3.shards.records import WorkerRecord, read_deaths, read_jobs, read_workers
from tests.cluster.detached_run import DetachedRun

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]
N_WORKERS = 4
BAD = "node2"


@pytest.fixture
def run_with(slurm, tmp_path):
    """Return a function that submits a worker per node, of which one is no good."""

    def submit(**settings) -> DetachedRun:
        block = {**slurm.parallel(N_WORKERS, queue="spread"), "shards_per_worker": 5}
        run = DetachedRun(tmp_path / "out", slurm, parallel=block, **settings)
        run.submit()
        return run

    return submit


def test_a_shard_of_a_node_that_hangs_is_run_a_second_time(run_with, reference):
    run = run_with(hangs_on=BAD, seconds=3.0)
    run.wait_for(lambda: "begins" in log_of_bad_node(run))
    run.hurry.touch()
    run.wait_for_end(300.0)
    assert run.text == reference
    assert run.computed_twice() == set(), run.state
    logs = "".join(log.read_text() for log in (run.out / "logs").glob("*.log"))
    assert "it is started a second time" in logs, run.state
    (slow,) = [node for node in run.success["accounting"]["nodes"] if node["name"] == BAD]
    assert slow["n_shards"] == 0
    assert slow["lost_seconds"] > 0


def test_a_node_on_which_all_dies_is_avoided_and_named(run_with, reference):
    run = run_with(dies_on=BAD, seconds=5.0)
    run.wait_for(lambda: any("is avoided" in worker.reason for worker in on_bad_node(run)))
    assert BAD in run.tell("explain"), run.state
    assert f"Avoided {BAD}: " in " ".join(run.tell("status").split()), run.state
    run.wait_for(lambda: any(f"--exclude={BAD}" in job.script for job in read_jobs(run.paths)))
    run.hurry.touch()
    run.wait_for_end(300.0)
    assert run.text == reference
    assert run.success["n_failed"] == 0
    assert {note.host for note in read_deaths(run.paths)} == {BAD}
    assert not any(worker.n_shards for worker in on_bad_node(run))


def log_of_bad_node(run) -> str:
    logs = [run.out / worker.log for worker in on_bad_node(run)]
    return "".join(log.read_text() for log in logs if log.exists())


def on_bad_node(run) -> list[WorkerRecord]:
    return [worker for worker in read_workers(run.paths) if worker.host == BAD]
