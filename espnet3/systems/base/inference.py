"""Stage 6, `infer`: decode the test sets of a config on the workers of its `parallel` block."""

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from espnet3.config.sources import names_places
from espnet3.parallel.client import SharedCluster
from espnet3.parallel.parallel import as_parallel_config, use_parallel
from espnet3.shards.layout import RunLayout
from espnet3.systems.base.inference_checks import WrittenFields, written_fields
from espnet3.systems.base.inference_output import Need
from espnet3.systems.base.run_description import (
    describe_batches,
    describe_folder,
    describe_items,
    describe_job_script,
    describe_shards,
    plan_shards,
    run_folder,
)
from espnet3.systems.base.stages import Detached
from espnet3.systems.base.test_set_run import TestSetRun, plan_inference

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig
    from espnet3.parallel.config import ParallelConfig

logger = logging.getLogger(__name__)


@names_places
def infer(
    loaded: "LoadedConfig",
    *,
    detach: bool = False,
    on_all_done: Callable[[], None] = lambda: None,
    needs: Sequence[Need] = (),
) -> dict[str, Any] | Detached:
    """Decode all test sets, one after the other, on one cluster.

    Args:
        loaded: the config.
        detach: use detached workers, as with `parallel.mode: async`.
        on_all_done: called if an earlier run had finished all test sets.
        needs: fields that a later stage reads; a first item that lacks one ends the run.

    Returns:
        What the runner's `merge` returned, by test set: for an `InferenceRunner` the files by
        field; or where the work goes on without this program.

    Raises:
        ConfigError: before anything starts.
    """
    parallel = parallel_of(loaded, detach=detach)
    runs = plan_inference(loaded, needs=needs)
    before = _ends(runs)
    results = _decode(runs, parallel)
    if None not in before and _ends(runs) == before:
        on_all_done()
    return results


def _decode(runs: Sequence[TestSetRun], parallel: "ParallelConfig") -> dict[str, Any] | Detached:
    if parallel.mode == "async":
        return _leave(runs, parallel)
    n_tasks = sum(run.n_items for run in runs)
    with use_parallel(parallel):
        shared = SharedCluster(parallel, n_tasks) if parallel.env != "local" else nullcontext(None)
        with shared as client:
            return {run.name: _run(run, client) for run in runs}


def _ends(runs: Sequence[TestSetRun]) -> list[tuple[int, int] | None]:
    """Return what tells the end of each run from that of another; None of one that is not over."""
    found: list[tuple[int, int] | None] = []
    for run in runs:
        file = RunLayout(run_folder(run), n_shards=1).success
        stat = file.stat() if file.exists() else None
        found.append((stat.st_ino, stat.st_mtime_ns) if stat else None)
    return found


def parallel_of(loaded: "LoadedConfig", *, detach: bool = False) -> "ParallelConfig":
    """Return the `parallel` block, as it is with `--detach`.

    Raises:
        ConfigError: if its workers cannot be detached.
    """
    parallel = as_parallel_config(loaded)
    if not detach or parallel.mode == "async":
        return parallel
    return as_parallel_config({**parallel.model_dump(exclude_unset=True), "mode": "async"})


def _leave(runs: Sequence[TestSetRun], parallel: "ParallelConfig") -> dict[str, Any] | Detached:
    """Submit workers for all test sets together; results are there if all is done already."""
    from espnet3.parallel.detached.launch import SharedWorkers  # with it comes all that submits

    with use_parallel(parallel), SharedWorkers(parallel) as workers:
        handles = {run.name: _run(run, workers) for run in runs}
    if workers.roots:
        return Detached(tuple(workers.roots))
    return {name: handle.result() for name, handle in handles.items()}


def _run(run: TestSetRun, client: Any) -> Any:
    logger.info("Test set %s: %d items into %s", run.name, run.n_items, run.output_dir)
    return run(client)


def describe_inference(loaded: "LoadedConfig", *, detach: bool = False) -> list[str]:
    """Return lines that tell test sets, batches, padding, shards, workers and the job script.

    Raises:
        ConfigError: as the stage itself would.
    """
    parallel = parallel_of(loaded, detach=detach)
    alone = ", which continue without this program" if parallel.mode == "async" else ""
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
