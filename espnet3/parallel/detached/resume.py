"""Resume a run with more workers, here or on another backend; run its failed items again."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from espnet3.errors import RunFolderError
from espnet3.parallel.clusters.registry import ON_THIS_MACHINE
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.detached.description import (
    Description,
    change_policy,
    check_code,
    load_spec,
    load_trusted,
)
from espnet3.parallel.detached.workforce import count_workforce, read_workforce
from espnet3.parallel.faults import FaultPolicy, forget_deaths, forgive
from espnet3.parallel.folder_run import folder_errors, unpack_run
from espnet3.parallel.parallel import as_parallel_config
from espnet3.shards.commit import set_aside
from espnet3.shards.lease import Lease, refuse_other_versions
from espnet3.shards.manifest import require_manifest
from espnet3.shards.merge import read_coverage, read_success
from espnet3.shards.records import JobRecord, RecordPaths, read_stop, write_stop
from espnet3.shards.status import RunStatus, read_status

_OF_THE_PLACE = ("env", "options", "n_workers", "adaptive")
"""Keys of a `parallel` block that mean nothing on another backend."""
_OF_FAULTS = ("retries", "item_timeout", "start_timeout")
"""Keys of a `parallel` block that are part of the fault policy."""
_TIDY_SECONDS = 60.0
"""How long a merger may take to remove leftovers of a complete run before `retry` gives up."""


@dataclass(frozen=True)
class Resumed:
    """Workers that were started."""

    run_dirs: list[Path]
    """Those that had work left."""
    finished: list[Path] = field(default_factory=list)
    """Those that were complete already."""
    config: ParallelConfig | None = None
    jobs: list[JobRecord] = field(default_factory=list)
    n_present: int = 0
    """Workers of this backend, and jobs that wait, that were there before."""
    released: list[Path] = field(default_factory=list)
    """Those that were cancelled, and whose own program may continue now: they have no code here."""


def resume_runs(
    run_dirs: Sequence[Path],
    changes: Mapping[str, Any] | None = None,
    *,
    n_more: int | None = None,
    trust: str | None = None,
    is_block: bool = False,
    faults: Mapping[str, Any] | None = None,
) -> Resumed:
    """Submit workers for runs that are not complete; they share the workers.

    Args:
        run_dirs: folders of detached runs.
        changes: keys of the `parallel` block to change; see `changed_config`.
        n_more: how many workers to add; if None, as many as are missing to `n_workers` on this
            backend.
        trust: a user whose code may be run as well as one's own.
        is_block: `changes` says all about the place where workers run.
        faults: settings of the runner to change, `on_error` and `max_errors`.

    Raises:
        RunFolderError: if a run was not detached, or if its code is another user's.
        ConfigError: if the changes are wrong.
    """
    from espnet3.parallel.detached.submit import Asked, submit_workers

    todo = [run_dir for run_dir in run_dirs if not _is_finished(run_dir)]
    finished = [run_dir for run_dir in run_dirs if run_dir not in todo]
    released = [run_dir for run_dir in todo if _is_cancelled_driver(run_dir)]
    for run_dir in released:
        forgive(run_dir)
        todo.remove(run_dir)
    if not todo:
        return Resumed([], finished, released=released)
    # Workers would refuse it as well, but one by one, and after they have waited in a queue.
    for run_dir in todo:
        refuse_other_versions(run_dir)
    # All are loaded before anything is removed or submitted: one refusal refuses all.
    descriptions = [load_trusted(run_dir, trust=trust) for run_dir in todo]
    config = changed_config(descriptions[0], changes or {}, is_block=is_block)
    for run_dir in todo:
        check_code_of(run_dir, trust)
    for run_dir, description in zip(todo, descriptions, strict=True):
        policy = _changed_policy(description.fault_policy(), config, changes or {}, faults or {})
        change_policy(run_dir, policy, trust=trust)
    # Not the sum: workers serve all folders, and are recorded in each.
    n_present = max(_count_present(run_dir, config.env, n_more) for run_dir in todo)
    n_left = sum(_n_left(read_status(run_dir)) for run_dir in todo)
    n_new = max(config.n_workers - n_present, 0) if n_more is None else n_more
    n_new = min(n_new, max(n_left, 1))  # a worker without a shard has nothing to do
    # The mark must go first: a job that starts at once would see it and end.
    with folder_errors(todo[0]), _forgiven(todo):
        asked: Asked = "by hand" if n_more is None else "by number"
        jobs = submit_workers(todo, config, n_new, trust=trust, asked=asked) if n_new else []
    return Resumed(todo, finished, config, jobs, n_present, released)


def _is_cancelled_driver(run_dir: Path) -> bool:
    """Tell whether a run was cancelled that only the program which began it can continue."""
    paths = RecordPaths(run_dir)
    return not paths.run.exists() and read_stop(paths) is not None


def _count_present(run_dir: Path, env: str, n_more: int | None) -> int:
    if n_more is not None:  # asked for by number: those that are there already do not count
        return read_workforce(run_dir).of_env(env).n_present
    return count_workforce(run_dir, env, only=True)


def _is_finished(run_dir: Path) -> bool:
    return read_status(run_dir).state == "complete"


def _n_left(status: RunStatus) -> int:
    return status.n_shards - status.n_shards_done - len(status.running)


def check_code_of(run_dir: Path, trust: str | None) -> None:
    """Refuse at once what workers would refuse: code of another user, or that changed.

    Raises:
        RunFolderError: naming the user.
        StaleRunError: naming the file.
    """
    load_spec(run_dir, trust=trust)
    check_code(load_trusted(run_dir, trust=trust), run_dir)


@contextmanager
def _forgiven(run_dirs: Sequence[Path]) -> Iterator[None]:
    """Remove the marks that keep workers away; they come back if none can be submitted."""
    marks = {run_dir: read_stop(RecordPaths(run_dir)) for run_dir in run_dirs}
    for run_dir in run_dirs:
        forgive(run_dir)
    try:
        yield
    # Also after Ctrl-C: else a cancelled run would look as if it had been resumed.
    except BaseException:
        for run_dir, mark in marks.items():
            if mark is not None:
                write_stop(RecordPaths(run_dir), mark)
        raise


def changed_config(
    description: Description, changes: Mapping[str, Any], *, is_block: bool = False
) -> ParallelConfig:
    """Return the `parallel` block of a run with changes, checked.

    Options are changed one by one; but with another `env`, or a whole block, those of the run are
    dropped: they were made for another place.
    """
    block = dict(description.parallel)
    env = changes.get("env", block.get("env"))
    if is_block or env != block.get("env"):
        block = {key: value for key, value in block.items() if key not in _OF_THE_PLACE}
        is_here = env in ON_THIS_MACHINE
        n_before = description.parallel.get("n_workers", 1)
        block["n_workers"] = _n_workers_here(str(env)) if is_here else n_before
    if changes.get("adaptive") or "n_workers" in changes:
        block = {key: value for key, value in block.items() if key not in ("adaptive", "n_workers")}
    options = {**(block.get("options") or {}), **(changes.get("options") or {})}
    return as_parallel_config({**block, **changes, "options": options, "mode": "async"})


def _changed_policy(
    policy: FaultPolicy,
    config: ParallelConfig,
    changes: Mapping[str, Any],
    faults: Mapping[str, Any],
) -> FaultPolicy:
    """Return which faults the workers to come tolerate."""
    asked = {name: getattr(config, name) for name in _OF_FAULTS if name in changes}
    on_error, limit = faults.get("on_error"), faults.get("max_errors", policy.max_errors)
    skips = policy.skip_errors if on_error is None else on_error == "skip"
    return replace(policy, **asked, skip_errors=skips, max_errors=limit)


def _n_workers_here(env: str) -> int:
    """Return how many workers this machine can take, if the config does not say."""
    if env == "local_gpu":
        from espnet3.parallel.clusters.gpus import visible_gpus

        return max(len(visible_gpus()), 1)
    # Not cpu_count: inside a job or container only some of the cores are ours.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def refuse_merging(run_dir: Path, lease: Lease) -> None:
    """Make sure that no merge is running, and that none begins while the lease is held.

    Raises:
        RunFolderError: if one is running.
    """
    deadline = time.monotonic() + _TIDY_SECONDS
    while not lease.claim("merge"):
        # Once the run is complete its merger only removes what was left over: `wait` has returned,
        # and a `retry` right after it must not fail for that.
        if not _is_complete(run_dir) or time.monotonic() > deadline:
            raise RunFolderError(f"{run_dir} is being merged at this moment. Try again later.")
        time.sleep(0.1)


def _is_complete(run_dir: Path) -> bool:
    manifest = require_manifest(run_dir)
    return read_success(manifest.layout(run_dir), manifest.run_id) is not None


@dataclass(frozen=True)
class Retried:
    """Items that will run again, and their workers."""

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
    faults: Mapping[str, Any] | None = None,
) -> Retried:
    """Set the shards with failed items aside and resume; the other arguments are `resume_runs`'.

    An item whose error stopped the run is tried again, too. A run without either is left alone.
    """
    for run_dir in run_dirs:
        check_code_of(run_dir, trust)  # before anything is set aside
        refuse_other_versions(run_dir)
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
        resume_runs(touched, changes, n_more=n_more, trust=trust, is_block=is_block, faults=faults),
    )


def _is_incomplete(run_dir: Path) -> bool:
    return bool(read_coverage(run_dir, require_manifest(run_dir)).missing)


def _set_aside(run_dir: Path) -> tuple[int, int]:
    """Return how many shards, and failed items in them, count as not done from now on."""
    manifest = require_manifest(run_dir)
    layout = manifest.layout(run_dir)
    with folder_errors(run_dir), Lease(run_dir) as lease:
        refuse_merging(run_dir, lease)
        unpack_run(run_dir, manifest)
        committed = read_coverage(run_dir, manifest).committed
        failed = {shard: done for shard, done in committed.items() if done.n_failed}
        if failed:
            # First: a run without it is not complete, whatever happens in between.
            layout.success.unlink(missing_ok=True)
            # Else crash notes of before the fix would give up the same items again.
            forget_deaths(run_dir, failed)
        for shard in failed:
            set_aside(layout, shard)
    return len(failed), sum(done.n_failed for done in failed.values())
