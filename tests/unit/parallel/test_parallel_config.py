"""The `adaptive` block and its limits."""

import pytest

from espnet3.errors import ConfigError
from espnet3.parallel.clusters.job_monitor import JobLimits, job_limits
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.parallel import as_parallel_config

ADAPTIVE = {"minimum": 2, "maximum": 8}


def test_the_maximum_is_the_number_of_workers_to_plan_for():
    config = as_parallel_config({"env": "slurm", "adaptive": ADAPTIVE})
    assert config.n_workers == 8
    assert job_limits(config) == JobLimits(8, 2, 24, 30.0, spares_useful=True)


def test_with_less_work_there_are_fewer_jobs():
    config = as_parallel_config({"env": "slurm", "adaptive": ADAPTIVE})
    few = config.model_copy(update={"n_workers": 1})  # as a runner does for a single shard
    assert job_limits(few).maximum == job_limits(few).minimum == 1


def test_without_adaptive_the_number_is_fixed():
    staffing = job_limits(ParallelConfig(env="slurm", n_workers=4, max_lost_jobs=0))
    assert staffing == JobLimits(4, 4, max_lost=0)
    assert staffing.n_wanted(100, 1) == 4
    assert staffing.n_wanted(3, 1) == 3


@pytest.mark.parametrize(
    ("block", "hint"),
    [
        ({"adaptive": {"minimum": 9, "maximum": 8}}, "minimum is 9, which is more than maximum: 8"),
        ({"adaptive": {"minimum": 0, "maximum": 8}}, "minimum"),
        ({"adaptive": {"minimum": 1}}, "maximum"),
        ({"adaptive": {"maximum": 8, "minimums": 1}}, "minimum"),
        ({"adaptive": ADAPTIVE, "n_workers": 4}, "leave out n_workers"),
        ({"adaptive": ADAPTIVE, "env": "local"}, "write instead: n_workers: 8"),
        ({"adaptive": ADAPTIVE, "env": "kube"}, "backends that submit jobs"),
    ],
)
def test_what_contradicts_itself_is_refused(block, hint):
    with pytest.raises(ConfigError, match=hint):
        as_parallel_config({"env": "slurm", **block})
