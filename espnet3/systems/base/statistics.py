"""Stage 3, `collect_stats`: shapes and statistics of the training and validation sets."""

import logging
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from espnet3.parallel.parallel import as_parallel_config, use_parallel
from espnet3.parallel.shared_cluster import SharedCluster
from espnet3.systems.base.run_description import (
    describe_folder,
    describe_items,
    describe_job_script,
)
from espnet3.systems.base.split_run import SplitRun, plan_statistics
from espnet3.systems.base.statistics_config import check_collect_stats

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

__all__ = ["check_collect_stats", "collect_stats", "describe_collect_stats"]

logger = logging.getLogger(__name__)


def collect_stats(loaded: "LoadedConfig") -> dict[str, dict[str, Path]]:
    """Take the statistics of the training set, then of the validation set, on one cluster.

    Returns:
        The files in `<stats_dir>/<split>/` by name, such as `speech_shape` and `feats_stats`, by
        split.

    Raises:
        ConfigError: before anything starts.
    """
    parallel = as_parallel_config(loaded)
    runs = plan_statistics(loaded)
    n_tasks = sum(run.n_items for run in runs)
    with use_parallel(parallel):
        shared = SharedCluster(parallel, n_tasks) if parallel.env != "local" else nullcontext(None)
        with shared as client:
            results = {}
            for run in runs:
                logger.info("Split %s: %d items into %s", run.name, run.n_items, run.output_dir)
                results[run.name] = run(client)
    return results


def describe_collect_stats(loaded: "LoadedConfig") -> list[str]:
    """Return what the stage would do: nothing is started, nothing is written.

    Raises:
        ConfigError: as the stage itself would.
    """
    parallel = as_parallel_config(loaded)
    lines = [f"workers: {parallel.n_workers} on env: {parallel.env}"]
    for run in plan_statistics(loaded, runs_here=False):
        lines.append(f"split {run.name}: {describe_items(run)}")
        lines += [f"  {fact}" for fact in (_features(run), describe_folder(run)) if fact]
    return [*lines, *describe_job_script(parallel)]


def _features(run: SplitRun) -> str:
    batches = f"in batches of {run.runner.batch_size}"
    if run.has_model:
        return f"statistics of what model.collect_feats returns, {batches}"
    return f"statistics of the arrays in the samples, {batches}; no model has collect_feats"
