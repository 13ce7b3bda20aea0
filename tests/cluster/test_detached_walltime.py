"""Six minutes of work in jobs of one minute: each is followed by the next, and nothing is lost."""

import pytest

from espnet3.shards.records import read_deaths, read_jobs, read_workers
from tests.cluster.detached_run import DetachedRun
from tests.helpers.job_runs import Job

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
N_ITEMS = 360
N_WORKERS = 4
PARALLEL = {"shards_per_worker": 18}  # 72 shards of five seconds


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> bytes:
    """Return the output of a run that waits for its workers."""
    job = Job(tmp_path_factory.mktemp("reference") / "out", n_workers=2, n_items=N_ITEMS)
    job.succeed(seconds=0.0)
    return job.text


def test_jobs_of_a_minute_do_six_minutes_of_work(slurm, sge, tmp_path, undisturbed):
    # At once: they only wait, and so do we.
    runs = [start(clients, tmp_path / clients.env_name) for clients in (slurm, sge)]
    for run in runs:
        run.wait_for_end(400.0)
    for run in runs:
        assert_nothing_was_lost(run, undisturbed)
    slurm_states = set(slurm.submitted().values())
    assert slurm_states <= {"COMPLETED", "CANCELLED"}  # none was ended by its walltime


def start(clients, folder) -> DetachedRun:
    folder.mkdir()
    block = {**clients.parallel(N_WORKERS, walltime="00:01:00"), **PARALLEL}
    run = DetachedRun(folder / "out", clients, n_items=N_ITEMS, seconds=1.0, parallel=block)
    run.submit()
    return run


def assert_nothing_was_lost(run, undisturbed):
    assert run.text == undisturbed
    assert run.computed_twice() == set(), run.state
    assert read_deaths(run.paths) == []
    workers = [worker for worker in read_workers(run.paths) if worker.n_shards]
    assert len(workers) > N_WORKERS  # by chaining
    assert max(worker.generation for worker in workers) >= 1
    assert any(job.after for job in read_jobs(run.paths))
    assert all(worker.exit_code == 0 for worker in workers), workers
    assert sum(worker.compute_seconds for worker in workers) >= N_ITEMS
    accounting = run.success["accounting"]
    assert accounting["n_shards"] == 18 * N_WORKERS
    assert N_WORKERS < accounting["n_workers"] <= len(read_workers(run.paths))
    assert accounting["n_generations"] >= 2
    assert accounting["deaths"] == {}
    assert accounting["lost_seconds"] == 0 or run.slow_shards()  # on a machine that stalls
    assert sum(row["n_shards"] for row in accounting["workers"]) == accounting["n_shards"]
    assert accounting["compute_seconds"] >= N_ITEMS
    assert accounting["worker_hours"] * 3600 >= accounting["compute_seconds"]
    assert "Worker time" in run.tell("status")
