"""Stage 6, `infer`: decode the test sets of a config on the workers of its `parallel` block."""

import logging
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from espnet3.errors import ConfigError
from espnet3.parallel.parallel import as_parallel_config, use_parallel
from espnet3.parallel.shared_cluster import SharedCluster
from espnet3.systems.base.error_places import place_key
from espnet3.systems.base.test_set_run import plan_inference

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

logger = logging.getLogger(__name__)


def infer(loaded: "LoadedConfig") -> dict[str, Any]:
    """Decode all test sets, one after the other, on one cluster.

    Returns:
        What the runner's `merge` returned, by test set: for an `InferenceRunner` the files by
        field.

    Raises:
        ConfigError: before anything starts.
    """
    parallel = as_parallel_config(loaded)
    runs = plan_inference(loaded)
    n_tasks = sum(run.n_items for run in runs)
    with use_parallel(parallel):
        shared = SharedCluster(parallel, n_tasks) if parallel.env != "local" else nullcontext(None)
        with shared as client:
            results = {}
            for run in runs:
                logger.info("Test set %s: %d items into %s", run.name, run.n_items, run.output_dir)
                try:
                    results[run.name] = run(client)
                except ConfigError as error:
                    raise place_key(error, loaded) from error.__cause__
    return results
