"""What the `infer` stage would do, for `--dry-run`: nothing is started, nothing is written."""

from typing import TYPE_CHECKING

from espnet3.parallel.parallel import as_parallel_config
from espnet3.parallel.progress import duration
from espnet3.shards.batches import check_costs, padding_in_order
from espnet3.shards.plan import Plan, make_plan
from espnet3.systems.base.run_description import describe_folder, describe_job_script
from espnet3.systems.base.test_set_run import TestSetRun, plan_inference

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig
    from espnet3.parallel.config import ParallelConfig

_COMPARED_SIZE = 16


def describe_inference(loaded: "LoadedConfig") -> list[str]:
    """Return lines that tell test sets, batches, padding, shards, workers and the job script.

    Raises:
        ConfigError: as the stage itself would.
    """
    parallel = as_parallel_config(loaded)
    lines = [f"workers: {parallel.n_workers} on env: {parallel.env}"]
    for run in plan_inference(loaded):
        lines += _describe_test_set(run, parallel)
    return [*lines, *describe_job_script(parallel)]


def _describe_test_set(run: TestSetRun, parallel: "ParallelConfig") -> list[str]:
    runner = run.runner
    plan = make_plan(
        run.n_items,
        parallel.n_workers * parallel.shards_per_worker,
        batch_size=runner.batch_size,
        batch_seconds=runner.batch_seconds,
        costs=run.durations,
    )
    audio = "" if run.durations is None else f", {duration(sum(run.durations))} of audio"
    lines = [f"test set {run.name}: {run.n_items} items{audio} -> {run.output_dir}"]
    facts = [_batches(run, plan), _shards(plan), describe_folder(run)]
    return lines + [f"  {fact}" for fact in facts if fact]


def _batches(run: TestSetRun, plan: Plan) -> str:
    runner = run.runner
    if plan.batches is not None:
        costs = check_costs(run.durations, run.n_items)
        size = runner.batch_size or _COMPARED_SIZE
        return (
            f"batches: {len(plan.batches)} of up to {runner.batch_seconds:g} s, sorted by length; "
            f"{plan.batches.padded_share:.1%} padding (batch_size: {size} in dataset order: "
            f"{padding_in_order(costs, size):.1%})"
        )
    if runner.batch_size is None:
        return "batches: none, one item at a time"
    n_batches = -(-run.n_items // runner.batch_size)
    text = f"batches: {n_batches} of {runner.batch_size} items in dataset order"
    if run.durations is None:
        return text
    share = padding_in_order(check_costs(run.durations, run.n_items), runner.batch_size)
    return f"{text}; {share:.1%} padding (set batch_seconds for less)"


def _shards(plan: Plan) -> str:
    sizes = [b - a for a, b in zip(plan.bounds, plan.bounds[1:], strict=False)]
    return f"shards: {plan.n_shards}, of {min(sizes)} to {max(sizes)} items; the costliest first"
