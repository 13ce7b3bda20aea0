"""A minute of faults of all kinds: a detached run on a real Slurm ends complete by itself."""

import pytest

from espnet3.shards.layout import origin_of_attempt
from espnet3.shards.records import read_workers
from tests.cluster.chaos import Chaos
from tests.cluster.detached_run import DetachedRun
from tests.helpers.job_runs import Job

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(500)]
N_ITEMS = 800
N_WORKERS = 5
N_SHARDS = 200
SECONDS = 60.0


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> bytes:
    """Return the output of a run that waits for its workers and meets no fault."""
    job = Job(tmp_path_factory.mktemp("reference") / "out", n_workers=2, n_items=N_ITEMS)
    job.succeed(seconds=0.0)
    return job.text


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_run_of_200_shards_survives_a_minute_of_faults(slurm, tmp_path, undisturbed, seed):
    scratch = slurm.cluster.scratch
    block = slurm.parallel(
        N_WORKERS, queue="spread", job_script_prologue=[f"export TMPDIR={scratch}"]
    )
    run = DetachedRun(
        tmp_path / "out",
        slurm,
        n_items=N_ITEMS,
        seconds=0.5,  # two of these minutes: the faults end before the work does
        scratch=str(scratch),
        parallel={**block, "shards_per_worker": N_SHARDS // N_WORKERS},
    )
    run.submit()
    run.wait_for(lambda: run.n_running >= N_WORKERS - 1)
    chaos = Chaos(run, seed)
    chaos.rage(SECONDS)
    committed = run.n_committed
    run.hurry.touch()
    run.wait_for_end(300.0)
    print("\n".join(["", *chaos.told, f"{committed} shards by then", str(dict(chaos.counts))]))
    assert run.text == undisturbed
    assert run.success["n_shards"] == N_SHARDS
    assert run.success["n_failed"] == 0
    assert len(run.owners()) == N_SHARDS
    assert committed < N_SHARDS  # all faults fell into the run
    assert len(chaos.counts) == 5, chaos.told  # of all kinds
    assert not (run.out / "failed.jsonl").exists()
    assert_only_the_killed_left_something(run)
    assert set(run.computed()) == set(range(N_ITEMS))


def assert_only_the_killed_left_something(run):
    """Who was killed in the last minute of a run may still live, for all that others know."""
    left = {origin_of_attempt(path.name)[0] for path in run.out.glob("split.*.part-*")}
    killed = {worker.owner_id for worker in read_workers(run.paths) if worker.ended is None}
    assert left <= killed
