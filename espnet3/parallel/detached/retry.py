"""Run shards with failed items again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espnet3.parallel.deaths import forget_deaths
from espnet3.parallel.detached.resume import Resumed, check_code_of, refuse_merging, resume_runs
from espnet3.parallel.folder_run import folder_errors
from espnet3.shards.commit import set_aside
from espnet3.shards.lease import Lease
from espnet3.shards.merge import read_coverage
from espnet3.shards.status import require_manifest


@dataclass(frozen=True)
class Retried:
    """What will be computed anew, and by whom."""

    n_shards: int
    """Shards with failed items that were set aside."""
    n_failed: int
    """Failed items in them."""
    resumed: Resumed | None = None
    """None if there was nothing to do."""


def retry_runs(
    run_dirs: Sequence[Path],
    changes: Mapping[str, Any] | None = None,
    *,
    n_more: int | None = None,
    trust: str | None = None,
    is_block: bool = False,
) -> Retried:
    """Set the shards with failed items aside and resume; the other arguments are `resume_runs`'.

    An item whose error stopped the run is tried again, too. A run without either is left alone.
    """
    for run_dir in run_dirs:
        check_code_of(run_dir, trust)  # before anything is set aside
    counts = [_set_aside(run_dir) for run_dir in run_dirs]
    touched = [
        run_dir
        for run_dir, (n_shards, _) in zip(run_dirs, counts, strict=True)
        if n_shards or _is_incomplete(run_dir)
    ]
    n_shards, n_failed = (sum(column) for column in zip(*counts, strict=True))
    if not touched:
        return Retried(n_shards, n_failed)
    return Retried(
        n_shards,
        n_failed,
        resume_runs(touched, changes, n_more=n_more, trust=trust, is_block=is_block),
    )


def _is_incomplete(run_dir: Path) -> bool:
    return bool(read_coverage(run_dir, require_manifest(run_dir)).missing)


def _set_aside(run_dir: Path) -> tuple[int, int]:
    """Return how many shards, and failed items in them, count as not done from now on."""
    manifest = require_manifest(run_dir)
    layout = manifest.layout(run_dir)
    with folder_errors(run_dir), Lease(run_dir) as lease:
        refuse_merging(run_dir, lease)
        committed = read_coverage(run_dir, manifest).committed
        failed = {shard: done for shard, done in committed.items() if done.n_failed}
        if failed:
            # First: a run without it is not complete, whatever happens in between.
            layout.success.unlink(missing_ok=True)
            forget_deaths(run_dir, failed)
        for shard in failed:
            set_aside(layout, shard)
    return len(failed), sum(done.n_failed for done in failed.values())
