"""Start a detached run, resume it with more workers, run its failed items again, and cancel it.

A run may go on here or on another backend. To cancel is to mark the run, cancel its jobs, and wait
until no driver or worker is left.
"""

import getpass
import logging
import os
import shlex
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.errors import ItemError, ResourceError, RunFolderError
from espnet3.parallel.clusters.registry import ON_THIS_MACHINE, check_resources, warn_of_defaults
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.detached.description import (
    Description,
    change_policy,
    check_code,
    load_spec,
    load_trusted,
    write_description,
)
from espnet3.parallel.detached.submit import cancel_jobs, job_states, submit_workers
from espnet3.parallel.detached.workforce import Job, Workforce, count_workforce, read_workforce
from espnet3.parallel.execute import environment_keys
from espnet3.parallel.faults import FaultPolicy, forget_deaths, forgive, too_many_message
from espnet3.parallel.folder_run import (
    RunRequest,
    count_failed,
    folder_errors,
    open_run,
    shards_to_run,
    unpack_run,
)
from espnet3.parallel.open_pool import shards_to_aim_at, worker_setup_fn
from espnet3.parallel.parallel import as_parallel_config
from espnet3.shards.commit import set_aside
from espnet3.shards.layout import leases_folder
from espnet3.shards.lease import Lease, living_owners, refuse_other_versions
from espnet3.shards.manifest import Manifest, load_manifest, require_manifest
from espnet3.shards.merge import read_coverage, read_success
from espnet3.shards.records import (
    JobRecord,
    RecordPaths,
    StopMark,
    clear_stop,
    make_folders,
    read_jobs,
    read_stop,
    write_stop,
)
from espnet3.shards.status import RunStatus, read_status
from espnet3.text import count

if TYPE_CHECKING:
    from espnet3.parallel.base_runner import BaseRunner
    from espnet3.parallel.tasks import RunSpec

logger = logging.getLogger(__name__)
_OF_THE_PLACE = ("env", "options", "n_workers", "adaptive")
"""Keys of a `parallel` block that mean nothing on another backend."""
_OF_FAULTS = ("retries", "item_timeout", "start_timeout")
"""Keys of a `parallel` block that are part of the fault policy."""
_TIDY_SECONDS = 60.0
"""How long a merger may take to remove leftovers of a complete run before `retry` gives up."""


def start_detached(
    runner: "BaseRunner",
    request: RunRequest,
    spec: "RunSpec",
    config: "ParallelConfig",
    policy: FaultPolicy,
    shared: "SharedWorkers | None" = None,
) -> None:
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
        manifest = open_run(request, lambda: shards_to_aim_at(config))
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


_POLL_SECONDS = 1.0
PATIENCE_SECONDS = 90.0
"""How long to wait until all are gone: schedulers give a job some time to end."""


@dataclass
class Cancelled:
    """Result of cancelling one run."""

    run_dir: Path
    was_complete: bool = False
    n_workers: int = 0
    """Workers that were at work."""
    n_jobs: int = 0
    """Jobs that were cancelled."""
    n_processes: int = 0
    """Local processes that got a signal to end."""
    shared: list[str] = field(default_factory=list)
    """Jobs that stay, because they serve other runs as well."""
    problems: list[str] = field(default_factory=list)
    """Messages for jobs and workers that could not be cancelled."""
    left: list[str] = field(default_factory=list)
    """Workers and jobs that have not ended."""


def cancel_runs(
    run_dirs: Sequence[Path], *, reason: str = "", patience: float = PATIENCE_SECONDS
) -> list[Cancelled]:
    """Cancel runs, and return when all workers have ended, or after a timeout.

    Detached workers and drivers see the mark at their next heartbeat; a driver cancels the jobs of
    its own cluster. Finished shards are kept, and `resume` lets the rest continue.

    Raises:
        RunFolderError: if a run has neither workers nor a driver; nothing is cancelled then.
    """
    # All are checked before the first is marked: a refusal must leave nothing half cancelled.
    for run_dir in run_dirs:
        _refuse_idle(run_dir)
    results = [_mark(run_dir, reason) for run_dir in run_dirs]
    active = [result for result in results if not result.was_complete]
    deadline = time.monotonic() + patience
    notified: dict[str, JobRecord] = {}
    refused: dict[Path, dict[str, str]] = {result.run_dir: {} for result in active}
    while True:
        # Each time: a worker may have submitted a successor before it saw the mark.
        workforces = {result.run_dir: read_workforce(result.run_dir) for result in active}
        for result in active:
            _cancel_jobs(
                result, workforces[result.run_dir], notified, run_dirs, refused[result.run_dir]
            )
        for result in active:
            workforce = workforces[result.run_dir]
            result.left = _left(workforce, result)
            # A worker that could not be signalled has seen the mark, if it is gone.
            there = {job.record.key for job in workforce.jobs if job.is_there}
            result.problems = [
                said for key, said in refused[result.run_dir].items() if key in there
            ]
        if not any(result.left for result in active) or time.monotonic() >= deadline:
            break
        time.sleep(_POLL_SECONDS)
    for result in active:
        _unmark_finished(result)
    return results


def _unmark_finished(result: Cancelled) -> None:
    """Remove the mark from a run that was completed in this very moment."""
    if read_status(result.run_dir).state == "complete":
        result.was_complete = True
        clear_stop(RecordPaths(result.run_dir))


def _refuse_idle(run_dir: Path) -> None:
    """Refuse to cancel a run that only a driver could continue, where there is none."""
    manifest = require_manifest(run_dir)
    if RecordPaths(run_dir).run.exists() or read_success(manifest.layout(run_dir), manifest.run_id):
        return
    if not living_owners(leases_folder(run_dir)):
        raise RunFolderError(
            f"There is nothing to cancel in {run_dir}: no driver or worker is at work there, and "
            "it has no jobs. Finished shards are kept; to continue, run the same command again."
        )


def _mark(run_dir: Path, reason: str) -> Cancelled:
    if read_status(run_dir).state == "complete":
        return Cancelled(run_dir, was_complete=True)
    by = f"{getpass.getuser()}@{socket.gethostname()}"
    with folder_errors(run_dir):
        paths = make_folders(run_dir)
        if read_stop(paths) is None:  # else the reason of an earlier stop would be lost
            write_stop(paths, StopMark("cancelled", reason or f"cancelled by {by}", by))
    return Cancelled(run_dir, n_workers=len(read_workforce(run_dir).living))


def _cancel_jobs(
    result: Cancelled,
    workforce: Workforce,
    notified: dict[str, JobRecord],
    run_dirs: Sequence[Path],
    refused: dict[str, str],
) -> None:
    from espnet3.parallel.detached.submit import cancel_jobs

    # Those in an unknown state, too: cancelling a job that has ended does no harm.
    jobs = [job for job in workforce.jobs if job.is_there]
    shared = [job for job in jobs if _serves_others(result.run_dir, job, run_dirs)]
    # Not only those of this look: a worker that has left this run is at the next one.
    result.shared = list(dict.fromkeys([*result.shared, *(job.record.job_id for job in shared)]))
    # Each job once: this look is repeated every second, and schedulers take longer to end a job.
    new = [job.record for job in jobs if job not in shared and job.record.key not in notified]
    if new:
        notified.update({record.key: record for record in new})
        n_processes = sum(bool(record.machine) for record in new)
        result.n_processes += n_processes
        n_submitting = sum(record.is_submitting for record in new)
        result.n_jobs += len(new) - n_processes - n_submitting
        # One by one, so that a refusal can be matched with its job.
        for record in new:
            problems = cancel_jobs([record])
            refused |= {record.key: problems[0]} if problems else {}


def _serves_others(run_dir: Path, job: Job, run_dirs: Sequence[Path]) -> bool:
    """Tell whether a job has work in a run that is not being cancelled."""
    ending = {path.resolve() for path in run_dirs}
    # Records have relative paths, since run folders may be moved together.
    others = [Path(os.path.normpath(run_dir.resolve() / other)) for other in job.record.others]
    return any(other not in ending and _has_work(other) for other in others)


def _has_work(run_dir: Path) -> bool:
    manifest = load_manifest(run_dir)
    # A run that is stopped itself has no claim on the job.
    if manifest is None or read_stop(RecordPaths(run_dir)) is not None:
        return False
    return read_success(manifest.layout(run_dir), manifest.run_id) is None


def _left(workforce: Workforce, result: Cancelled) -> list[str]:
    """Name the workers and jobs that are left; a job in an unknown state cannot be awaited."""
    workers = [f"worker {worker.name} on {worker.record.host}" for worker in workforce.living]
    jobs = [
        f"job {job.record.job_id} ({job.state.word or job.state.phase})"
        for job in workforce.jobs
        if job.state.phase in ("pending", "running")
        and not job.has_living_worker
        and job.record.job_id not in result.shared
    ]
    return workers + jobs
