"""Merge a run by its folder alone: for one of its workers, for `espnet3 merge`, for its result."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from espnet3.errors import EspnetError, IncompleteRunError, ProviderError, RunFolderError
from espnet3.io.atomic import is_folder_trouble
from espnet3.parallel.detached.description import load_runner
from espnet3.parallel.folder_run import (
    Merger,
    finished_result,
    folder_errors,
)
from espnet3.parallel.tasks import describe_error, secrets_held, user_traceback
from espnet3.shards.lease import Lease, claims, living_owners
from espnet3.shards.merge import check_complete
from espnet3.shards.reachable import is_of_node
from espnet3.shards.status import require_manifest
from espnet3.shards.success import read_success


def merge_as_user(
    root: Path, lease: Lease, shard_dirs: Sequence[Path], *, trust: str | None
) -> Any:
    """Call `merge` of the run's own runner, for a worker that got the turn.

    Raises:
        ProviderError: if that fails, with the user's traceback.
    """
    runner = None
    try:
        runner = load_runner(root, trust=trust)
        return runner.merge(shard_dirs)
    except EspnetError:
        raise
    except Exception as error:
        if is_folder_trouble(error) or is_of_node(error, root):
            raise  # a full disk, or one that is away: the caller says what to do
        secrets = secrets_held(runner)
        raise ProviderError(
            f"merge() failed on {lease.owner}: {describe_error(error, secrets)}. Mend it "
            "and run the same command again; all shards are done and kept.\n\n"
            f"{user_traceback(error, secrets)}"
        ) from error


def merge_detached(run_dir: Path, *, trust: str | None = None) -> Any:
    """Merge a run whose shards are all done, and return what `merge` returns.

    Nothing is done if it is merged already and its files are as they were.

    Raises:
        IncompleteRunError: with what is missing.
        RunFolderError: if somebody is merging it just now, or if its code is somebody else's.
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
