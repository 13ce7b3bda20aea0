"""The job of a detached worker for each scheduler, from the block that its page shows first.

They are reviewed as code. After a change on purpose: ESPNET3_UPDATE_GOLDEN=1 python -m pytest on
this file, and look at `git diff`.
"""

from pathlib import Path

import pytest

from espnet3.parallel.detached.job_script import WorkerJob, make_job, render_worker_script
from tests.helpers.golden_scripts import (
    JOB_BACKENDS,
    compare,
    config_of,
    elsewhere,  # noqa: F401 - a fixture
)

GOLDEN = Path(__file__).parent / "golden"
RUN = Path("/data/it's a run")


@pytest.mark.parametrize("env", JOB_BACKENDS)
def test_the_script_of_a_worker_is_the_reviewed_one(env):
    compare(render_worker_script(config_of(env, mode="async"), [RUN]), GOLDEN / f"{env}.sh")


@pytest.mark.parametrize("env", JOB_BACKENDS)
def test_the_script_of_a_successor_is_the_reviewed_one(env):
    work = WorkerJob((RUN, RUN / "b"), "12", 3, ("n01", "n02.cluster"), trust="alice")
    job = make_job(config_of(env, mode="async", max_successors=9), work, 1763300000.0)
    compare(job.job_script(), GOLDEN / f"{env}.successor.sh")


def test_there_are_two_scripts_for_each_scheduler_and_no_other():
    expected = [f"{env}{end}" for env in JOB_BACKENDS for end in (".sh", ".successor.sh")]
    assert sorted(path.name for path in GOLDEN.iterdir()) == sorted(expected)
