"""LSF takes hours and minutes.

A walltime with seconds ended `run.py`, `plan` and workers with a ValueError of zip(), and a worker
whose shards do not fit was told to write one.
"""

from pathlib import Path

import pytest

from espnet3.parallel.clusters.registry import walltime_seconds
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.shard_queue import Walltime, too_long
from espnet3.shards.open_shards import Pace


def test_a_walltime_with_seconds_is_no_time_of_lsf():
    config = ParallelConfig(env="lsf", options={"walltime": "01:00:00"})
    assert walltime_seconds(config) is None


@pytest.mark.parametrize(("env", "spelled"), [("lsf", "'2:00'"), ("slurm", "'02:00:00'")])
def test_a_longer_walltime_is_spelled_as_the_scheduler_reads_it(env, spelled):
    pace = Pace(None, at_least={0: 3000.0}, n_cuts={0: 2})
    told = too_long(Path("/run"), pace, 0, Walltime(0.0, 3600.0, env))
    assert f"options.walltime={spelled}" in told
