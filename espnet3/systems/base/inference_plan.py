"""What the `infer` stage would do, for `--dry-run`: nothing is started, nothing is written."""

from typing import TYPE_CHECKING

from espnet3.parallel.parallel import as_parallel_config
from espnet3.systems.base.run_description import (
    describe_batches,
    describe_folder,
    describe_items,
    describe_job_script,
    describe_shards,
    plan_shards,
)
from espnet3.systems.base.test_set_run import TestSetRun, plan_inference

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig
    from espnet3.parallel.config import ParallelConfig


def describe_inference(loaded: "LoadedConfig") -> list[str]:
    """Return lines that tell test sets, batches, padding, shards, workers and the job script.

    Raises:
        ConfigError: as the stage itself would.
    """
    parallel = as_parallel_config(loaded)
    lines = [f"workers: {parallel.n_workers} on env: {parallel.env}"]
    for run in plan_inference(loaded, runs_here=False):
        lines += _describe_test_set(run, parallel)
    return [*lines, *describe_job_script(parallel)]


def _describe_test_set(run: TestSetRun, parallel: "ParallelConfig") -> list[str]:
    plan = plan_shards(run, parallel)
    facts = [describe_batches(run, plan), describe_shards(plan), describe_folder(run)]
    lines = [f"test set {run.name}: {describe_items(run)}"]
    return lines + [f"  {fact}" for fact in facts if fact]
