"""Merge a detached run by a command, and return its result."""

import os
import shlex
from pathlib import Path
from typing import Any

from espnet3.errors import IncompleteRunError, RunFolderError
from espnet3.parallel.detached.description import load_runner
from espnet3.parallel.folder_run import Merger, finished_result, folder_errors
from espnet3.shards.lease import Lease, claims, living_owners
from espnet3.shards.merge import check_complete
from espnet3.shards.status import require_manifest
from espnet3.shards.success import read_success


def merge_detached(run_dir: Path, *, trust: str | None = None) -> Any:
    """Merge a run whose shards are all done, and return what `merge` returns.

    Nothing is done if it is merged already and its files are as they were.

    Raises:
        IncompleteRunError: with what is missing.
        RunFolderError: if another process is merging it, or if its code is another user's.
    """
    manifest = require_manifest(run_dir)
    answer = finished_answer(run_dir)
    if answer is not None:
        return answer[0]
    check_complete(run_dir, manifest, contents=False)  # before the code is loaded
    runner = load_runner(run_dir, trust=trust)
    with folder_errors(run_dir), Lease(run_dir.resolve()) as lease:
        if not lease.claim("merge"):
            raise RunFolderError(f"{_merger(run_dir)} is merging {run_dir} just now.")
        return Merger(run_dir, runner.output_dir, manifest, lease, runner.merge).merge()


def finished_answer(run_dir: Path) -> tuple[Any] | None:
    """Return what `merge` returned, in a tuple, if it is known and its files are as they were."""
    manifest = require_manifest(run_dir)
    output_dir = Path(os.path.normpath(run_dir / manifest.output_dir))
    return finished_result(run_dir, manifest, output_dir)


def result_of(run_dir: Path, *, trust: str | None = None) -> Any:
    """Return what `merge` returned; merge again if that could not be noted.

    Raises:
        IncompleteRunError: if the run is not complete.
    """
    manifest = require_manifest(run_dir)
    if read_success(manifest.layout(run_dir), manifest.run_id) is None:
        raise IncompleteRunError(
            f"The run in {run_dir} is not complete, so it has no result yet. Wait for it: "
            f"espnet3 wait {shlex.quote(str(run_dir))}, or in Python: run.wait()"
        )
    answer = finished_answer(run_dir)
    return answer[0] if answer is not None else merge_detached(run_dir, trust=trust)


def _merger(run_dir: Path) -> str:
    layout = require_manifest(run_dir).layout(run_dir)
    holder = claims(layout.leases).get("merge", "")
    return next(
        (str(owner) for owner in living_owners(layout.leases) if owner.owner_id == holder),
        "Somebody",
    )
