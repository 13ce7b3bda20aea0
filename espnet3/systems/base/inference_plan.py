"""What the `infer` stage would do, for `--dry-run`: nothing is started, nothing is written."""

from typing import TYPE_CHECKING

from espnet3.systems.base.inference import parallel_of
from espnet3.systems.base.inference_checks import WrittenFields, written_fields
from espnet3.systems.base.run_description import (
    describe_batches,
    describe_folder,
    describe_items,
    describe_job_script,
    describe_shards,
    plan_shards,
    run_folder,
)
from espnet3.systems.base.test_set_run import TestSetRun, plan_inference

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig
    from espnet3.parallel.config import ParallelConfig


def describe_inference(loaded: "LoadedConfig", *, detach: bool = False) -> list[str]:
    """Return lines that tell test sets, batches, padding, shards, workers and the job script.

    Raises:
        ConfigError: as the stage itself would.
    """
    parallel = parallel_of(loaded, detach=detach)
    alone = ", which go on without this program" if parallel.mode == "async" else ""
    lines = [f"workers: {parallel.n_workers} on env: {parallel.env}{alone}"]
    runs = plan_inference(loaded, runs_here=False)
    for run in runs:
        lines += _describe_test_set(run, parallel)
    lines.append(_describe_fields(written_fields(loaded)))
    return [*lines, *describe_job_script(parallel, [run_folder(run) for run in runs])]


def _describe_fields(written: WrittenFields) -> str:
    if written.names is None:
        usual = f"; of a text, {', '.join(written.usual)}" if written.usual else ""
        return f"fields to write: known at the first item, {written.why}{usual}"
    return f"fields to write: {', '.join(written.names) or 'none'} ({written.why})"


def _describe_test_set(run: TestSetRun, parallel: "ParallelConfig") -> list[str]:
    plan = plan_shards(run, parallel)
    facts = [describe_batches(run, plan), describe_shards(plan), describe_folder(run)]
    lines = [f"test set {run.name}: {describe_items(run)}"]
    return lines + [f"  {fact}" for fact in facts if fact]
