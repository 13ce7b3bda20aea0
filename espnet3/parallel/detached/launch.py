"""Start a detached run: plan it, write its description, submit workers."""

import logging
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from espnet3.errors import ItemError, ResourceError
from espnet3.parallel.clusters.registry import check_resources, warn_of_defaults
from espnet3.parallel.detached.description import write_description
from espnet3.parallel.detached.handle import DetachedRun
from espnet3.parallel.detached.resume import refuse_merging
from espnet3.parallel.detached.submit import cancel_jobs, job_states, submit_workers
from espnet3.parallel.detached.workforce import count_workforce
from espnet3.parallel.execute import environment_keys
from espnet3.parallel.faults import FaultPolicy, forgive, too_many_message
from espnet3.parallel.folder_run import (
    RunRequest,
    count_failed,
    folder_errors,
    open_run,
    shards_to_run,
)
from espnet3.parallel.open_pool import count_shards, worker_setup_fn
from espnet3.shards.lease import Lease
from espnet3.shards.manifest import Manifest, load_manifest
from espnet3.shards.records import RecordPaths, StopMark, read_jobs, write_stop
from espnet3.text import count

if TYPE_CHECKING:
    from espnet3.parallel.base_runner import BaseRunner
    from espnet3.parallel.config import ParallelConfig
    from espnet3.parallel.tasks import RunSpec

logger = logging.getLogger(__name__)


def launch(
    runner: "BaseRunner",
    request: RunRequest,
    spec: "RunSpec",
    config: "ParallelConfig",
    policy: FaultPolicy,
    shared: "SharedWorkers | None" = None,
) -> DetachedRun:
    """Begin or resume a run without waiting for it; with `shared`, workers come at its end.

    Only workers that are missing are submitted: those at work and those in the queue count.

    Raises:
        EspnetError: before anything is submitted, as a run that waits would.
    """
    n_left = prepare(runner, request, spec, config, policy)
    root = request.root.resolve()
    if n_left is None:
        logger.info("%s is complete already; nothing is submitted", root)
    elif shared is not None:
        shared.add(root, n_left)
    else:
        submit_missing([root], config, n_left)
    return DetachedRun(root)


def prepare(
    runner: "BaseRunner",
    request: RunRequest,
    spec: "RunSpec",
    config: "ParallelConfig",
    policy: FaultPolicy,
) -> int | None:
    """Plan a run and describe it in its folder; nothing is submitted.

    Returns:
        How many shards are to be run; None if the run is complete.
    """
    check_resources(config)
    root = request.root
    queued = read_jobs(RecordPaths(root))  # before a run that is replaced is removed with them
    # Read before `open_run`, which may replace the plan.
    before = load_manifest(root) if queued and request.resume else None
    with folder_errors(root):
        manifest = open_run(request, lambda: count_shards(config))
        if queued and (before is None or before.run_id != manifest.run_id):
            # Of a replaced run, whose records are gone: these could not be cancelled later.
            cancel_jobs([job for job in queued if job_states([job])[job.key].phase == "pending"])
        if request.finished_result(manifest) is not None:
            return None
        n_left = _shards_left(request, manifest, policy)
        setup_fn = worker_setup_fn(runner.provider)
        keys = environment_keys(runner.provider, setup_fn, setup_fn)
        described = replace(spec, setup_fn=setup_fn, keys=keys)
        # Before the stop mark goes: a worker that sees none must find the new description.
        write_description(root.resolve(), runner, described, manifest, config, policy)
        forgive(root)
    return n_left


def _shards_left(request: RunRequest, manifest: Manifest, policy: FaultPolicy) -> int:
    root = request.root.resolve()
    layout = manifest.layout(root)
    # Workers that died left notes of where: workers to come read them, so nothing is swept here.
    with Lease(root) as lease:
        lease.refuse_other_versions()
        if request.retry_failed:
            refuse_merging(root, lease)
        order = shards_to_run(layout, manifest, retry_failed=request.retry_failed)
        # What it proves is gone or changed, else we were not here; workers would believe it.
        layout.success.unlink(missing_ok=True)
    if policy.max_errors is not None:
        n_failed = count_failed(layout, manifest)
        if n_failed > policy.max_errors:
            raise ItemError(too_many_message(n_failed, policy))
    return len(order)


class SharedWorkers:
    """Workers for several runs, submitted once when all of them are prepared.

    Give it to each runner as `client`; at the end of its `with` block workers are submitted, which
    serve the runs one after the other. If a runner refuses, nothing is submitted for any.

    Args:
        config: where workers run; its mode is `async`.

    Example:
        ```python
        with SharedWorkers(config) as workers:
            for runner, items in runs:
                runner(items, client=workers)
        ```
    """

    def __init__(self, config: "ParallelConfig") -> None:
        self.config = config
        self.roots: list[Path] = []
        """The folders of the runs that were not complete."""
        self._n_shards = 0

    def add(self, root: Path, n_shards: int) -> None:
        """Let the workers serve a run that has so many shards left."""
        self.roots.append(root)
        self._n_shards += n_shards

    def __enter__(self) -> "SharedWorkers":
        return self

    def __exit__(self, error: object, *exc_info: object) -> None:
        if error is None and self.roots:
            submit_missing(self.roots, self.config, self._n_shards)


def submit_missing(roots: Sequence[Path], config: "ParallelConfig", n_shards: int) -> None:
    """Submit the workers that several run folders lack, for all of them together, and log it.

    Args:
        roots: run folders that are prepared and not complete.
        config: where workers run.
        n_shards: how many shards are to be run in all; no more workers are submitted.
    """
    n_wanted = min(config.n_workers, max(n_shards, 1))  # one, if only the merge is left
    # Not their sum: one worker serves all folders, and is recorded in each.
    n_there = max(count_workforce(root, config.env) for root in roots)
    n_missing = max(n_wanted - n_there, 0)
    if n_missing:
        warn_of_defaults(config)
        try:
            jobs = submit_workers(roots, config, n_missing)
        except ResourceError as error:
            if not n_there:
                _note_refusal(roots, error)
            raise
        what = count(len(jobs), "process" if jobs and jobs[0].machine else "job")
        numbers = ", ".join(job.job_id for job in jobs[:8]) + (", ..." if len(jobs) > 8 else "")
        logger.info("Submitted to %s: %s (%s)", config.env, what, numbers)
    if n_there:
        verb = "is" if n_there == 1 else "are"
        logger.info("%s %s there or in the queue already", count(n_there, "worker"), verb)
    for line in what_to_type(roots):
        logger.info("%s", line)


def _note_refusal(roots: Sequence[Path], error: ResourceError) -> None:
    """Leave the reason in the run folders: there is no worker and no job that could tell it."""
    from espnet3.parallel.clusters.jobqueue import SCRIPT_BELOW

    reason = str(error).partition(SCRIPT_BELOW)[0]
    for root in roots:
        with suppress(OSError):  # the error itself is what matters
            write_stop(RecordPaths(root), StopMark("failed", reason, by="the submission"))


def what_to_type(roots: Sequence[Path]) -> list[str]:
    """Return the commands that control detached runs."""
    folders = shlex.join(map(str, roots))
    first = shlex.quote(str(roots[0]))
    return [
        "The workers continue without this program. To control them:",
        f"  espnet3 status {folders} --watch",
        f"  espnet3 logs {first} -f",
        f"  espnet3 wait {folders}",
        f"  espnet3 cancel {folders}",
    ]
