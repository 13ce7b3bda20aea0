"""What `--dry-run` tells of any run on workers: what its folder holds, and the job script."""

from typing import TYPE_CHECKING, Any

from espnet3.parallel.clusters.table import render_job_script
from espnet3.parallel.identity import changes, describe_run, is_below
from espnet3.shards.manifest import load_manifest
from espnet3.shards.merge import read_coverage

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig


def describe_folder(run: Any) -> str:
    """Return whether results are there, and what would become of them; empty if there are none.

    Args:
        run: with `runner`, `n_items` and `output_dir`.
    """
    manifest = load_manifest(run.output_dir)
    if manifest is None:
        return ""
    if run.runner.resume:
        changed = changes(manifest, describe_run(run.runner, range(run.n_items)))
        accepted = run.runner.accept_changes
        refused = [line for line in changed if not is_below(line.partition(":")[0], accepted)]
        if refused:
            return f"would be refused, results of another run are there: {'; '.join(refused)}"
    done = len(read_coverage(run.output_dir, manifest).committed)
    state = f"there is a run already: {done} of {manifest.n_shards} shards are done"
    return state if run.runner.resume else f"{state}; they would be removed (resume: false)"


def describe_job_script(parallel: "ParallelConfig") -> list[str]:
    """Return the script that each worker's job would run; nothing without a scheduler."""
    script = render_job_script(parallel)
    if script is None:
        return []
    head = f"job script of each of the {parallel.n_workers} workers:"
    return [head, *(f"  {line}" for line in script.strip().splitlines())]
