"""The job script of each scheduler, from the block that its page in docs/clusters shows first.

They are reviewed as code. After a change on purpose: ESPNET3_UPDATE_GOLDEN=1 python -m pytest on
this file, and look at `git diff`.
"""

from pathlib import Path

import pytest

from espnet3.parallel.clusters.registry import render_job_script
from tests.helpers.golden_scripts import (
    JOB_BACKENDS,
    compare,
    config_of,
    elsewhere,  # noqa: F401 - a fixture
)

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("env", JOB_BACKENDS)
def test_the_job_script_is_the_reviewed_one(env):
    compare(render_job_script(config_of(env)), GOLDEN / f"{env}.sh")


def test_there_is_a_script_for_each_scheduler_and_no_other():
    assert sorted(path.stem for path in GOLDEN.glob("*.sh")) == sorted(JOB_BACKENDS)
