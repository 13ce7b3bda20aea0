"""Describe and forecast the runs of a stage on workers, without running them.

This is for `--dry-run` and `espnet3 plan`.
"""

import logging
import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING

from espnet3.errors import ConfigError, MissingExtraError, RunFolderError
from espnet3.parallel.clusters.registry import ON_THIS_MACHINE, left_out, render_job_script
from espnet3.parallel.folder_run import count_files, file_limit
from espnet3.parallel.identity import changes, describe_run, is_below, not_results_of
from espnet3.parallel.open_pool import shards_to_aim_at
from espnet3.shards.commit import Done
from espnet3.shards.manifest import Manifest, load_manifest, run_order
from espnet3.shards.merge import has_outputs, read_coverage, read_success
from espnet3.shards.plan import (
    SERVER_RATE,
    SERVER_SHARE,
    Forecast,
    Plan,
    check_costs,
    forecast,
    make_plan,
    padding_in_order,
)
from espnet3.shards.status import Rate, read_rate
from espnet3.systems.base.context import context_value
from espnet3.systems.base.inference import PlannedRun, parallel_of, plan_inference
from espnet3.systems.base.inference_config import WrittenFields, written_fields
from espnet3.text import count, duration, first_few, local_time

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig
    from espnet3.parallel.config import ParallelConfig

logger = logging.getLogger(__name__)

_COMPARED_SIZE = 16
_DEPTH = 4  # exp/TAG/WITH_SLASH/INFERENCE/TEST_SET
_SHOWN = 3
_SPEED_KEYS = ("batch_size", "batch_seconds", "config.model", "params", "provider", "runner")
"""What a rate depends on most, of all that results depend on."""


@dataclass(frozen=True)
class FolderState:
    """State of a run folder before a run."""

    manifest: Manifest | None = None
    refused: list[str] = field(default_factory=list)
    """How the existing run differs from the requested one, which cannot resume it."""
    committed: dict[int, Done] = field(default_factory=dict)
    is_complete: bool = False
    """Whether it would be answered at once."""


def look_at_folder(run: PlannedRun) -> FolderState:
    """Return what the folder holds, and whether the requested run would resume it."""
    root = run.folder
    manifest = load_manifest(root)
    if manifest is None:
        return FolderState()
    committed = read_coverage(root, manifest).committed
    if not run.runner.resume:
        return FolderState(manifest, committed=committed)
    accepted = run.runner.accept_changes
    changed = _changed(run, manifest, root)
    # As in the run itself, which accepts these.
    refused = [line for line in changed if not is_below(line.partition(":")[0], accepted)]
    return FolderState(manifest, refused, committed, not refused and _is_complete(run, manifest))


def _changed(run: PlannedRun, manifest: Manifest, root: Path) -> list[str]:
    """Return how the run in a folder differs from the requested one, a line for each key."""
    described = describe_run(run.runner, range(run.n_items))
    outputs, ignored = (root, run.output_dir), not_results_of(run.runner)
    return changes(manifest, described, outputs=outputs, ignored=ignored)


def _is_complete(run: PlannedRun, manifest: Manifest) -> bool:
    success = read_success(manifest.layout(run.folder), manifest.run_id)
    if success is None or not has_outputs(success, run.output_dir):
        return False
    # With retry_failed, a complete run with failures still has something to do.
    return not (run.runner.retry_failed and success["n_failed"])


def describe_folder(run: PlannedRun, state: FolderState | None = None) -> str:
    """Return whether results are there, and what would become of them; empty if there are none."""
    state = state or look_at_folder(run)
    if state.manifest is None:
        return ""
    if state.refused:
        return f"would be refused, results of another run are there: {'; '.join(state.refused)}"
    n_shards = state.manifest.n_shards
    n_done = n_shards if state.is_complete else len(state.committed)
    text = f"there is a run already: {n_done} of {n_shards} shards are done"
    return text if run.runner.resume else f"{text}; they would be removed (resume: false)"


def plan_shards(run: PlannedRun, parallel: "ParallelConfig", n_workers: int | None = None) -> Plan:
    """Cut a run as it would be cut for the workers of a config, or for another number of them."""
    costs = run.durations
    if costs is None:
        costs = run.runner.costs_of(range(run.n_items))
    return make_plan(
        run.n_items,
        shards_to_aim_at(parallel, n_workers),
        batch_size=run.runner.batch_size,
        batch_seconds=run.runner.batch_seconds,
        costs=costs,
    )


def describe_items(run: PlannedRun) -> str:
    """Return how many items there are, how much audio, and where results go."""
    audio = "" if run.durations is None else f", {duration(sum(run.durations))} of audio"
    return f"{count(run.n_items, 'item')}{audio} -> {run.output_dir}"


def describe_batches(run: PlannedRun, plan: Plan) -> str:
    """Return how many batches there are, and how much of them is padding."""
    runner = run.runner
    if plan.batches is not None:
        costs = check_costs(run.durations, run.n_items)
        size = runner.batch_size or _COMPARED_SIZE
        return (
            f"batches: {len(plan.batches)} of up to {runner.batch_seconds:g} s, sorted by length; "
            f"{plan.batches.padded_share:.1%} padding (batch_size: {size} in dataset order: "
            f"{padding_in_order(costs, size):.1%})"
        )
    if runner.batch_size is None:
        return "batches: none, one item at a time"
    n_batches = -(-run.n_items // runner.batch_size)
    text = f"batches: {n_batches} of {runner.batch_size} items in dataset order"
    if run.durations is None:
        return text
    share = padding_in_order(check_costs(run.durations, run.n_items), runner.batch_size)
    # Statistics are taken in batches of a fixed size.
    advice = " (set batch_seconds for less)" if runner.config_block == "runner" else ""
    return f"{text}; {share:.1%} padding{advice}"


def describe_shards(plan: Plan) -> str:
    """Return how many shards there are, and how large they are."""
    sizes = [b - a for a, b in zip(plan.bounds, plan.bounds[1:], strict=False)]
    return f"shards: {plan.n_shards}, of {min(sizes)} to {max(sizes)} items; the costliest first"


def describe_files(plan: Plan, parallel: "ParallelConfig", root: Path) -> str:
    """Return how many files the run makes until it is tidied, and whether that is too many."""
    n_files = count_files(plan.n_shards, parallel.n_workers)
    text = f"files: about {n_files:,} in {root} until `espnet3 tidy` packs them"
    limit, reason = file_limit(root)
    if n_files <= limit:
        return text
    fewer = max(parallel.shards_per_worker * limit // (2 * n_files), 1)
    return f"{text}: too many, {reason}. Larger shards: parallel.shards_per_worker={fewer}"


def describe_load(
    runs: Sequence[PlannedRun], parallel: "ParallelConfig", exp_dir: str | None
) -> str:
    """Return what is asked of the file server, at the speed of earlier runs; empty if all is done.

    A config that was made in Python may have no `exp_dir`, below which those are looked for.
    """
    rates = (find_rate(r, StatedSpeed(), Path(exp_dir or r.output_dir.parent)) for r in runs)
    expected = [ExpectedRun(run, parallel, rate) for run, rate in zip(runs, rates, strict=True)]
    if not any(run.left().costs for run in expected):
        return ""
    if (forecast := forecast_all(expected, parallel.n_workers)) is not None:
        return describe_operations(forecast)
    n_shards = sum(len(run.left().costs) for run in expected)
    once = Forecast(parallel.n_workers, n_shards, 0.0, 0.0).operations
    return (
        f"files: {parallel.n_workers:,} workers: about {float(f'{once:.2g}'):,.0f} operations in "
        "all; how many a second: espnet3 plan ... --seconds-per-item 0.2"
    )


def describe_operations(expected: Forecast) -> str:
    """Return what a run asks of the file server, on average."""
    rate = expected.operations_per_second
    many = f"{float(f'{rate:.2g}'):,.0f}" if rate >= 1 else f"{rate:.1g}"
    text = f"files: {expected.n_workers:,} workers: about {many} operations a second"
    if rate <= SERVER_RATE * SERVER_SHARE:
        return text
    return (
        f"{text}, more than {SERVER_SHARE:.0%} of what a file server with {SERVER_RATE:,} can do; "
        "take fewer workers, or fewer and longer shards: parallel.shards_per_worker"
    )


def describe_job_script(parallel: "ParallelConfig", run_dirs: Sequence[Path] = ()) -> list[str]:
    """Return the script that each worker's job would run, and what it has by default.

    There are no lines without a scheduler.

    Args:
        parallel: where workers run.
        run_dirs: the run folders, which are arguments of detached workers.
    """
    try:
        script = _job_script(parallel, run_dirs)
    except MissingExtraError as error:  # of which the check has warned
        return [f"job script: {error}"]
    if script is None:
        return []
    head = f"job script of each of the {parallel.n_workers} workers:"
    notes = [f"note: {note}" for note in left_out(parallel)]
    return [*notes, head, *(f"  {line}" for line in script.strip().splitlines())]


def _job_script(parallel: "ParallelConfig", run_dirs: Sequence[Path]) -> str | None:
    if parallel.mode == "sync" or not run_dirs or parallel.env in ON_THIS_MACHINE:
        return render_job_script(parallel)
    from espnet3.parallel.detached.job_script import render_worker_script

    return render_worker_script(parallel, [Path(os.path.abspath(folder)) for folder in run_dirs])


@dataclass(frozen=True)
class StatedSpeed:
    """Speed that the user stated; None where nothing is said."""

    real_time_factor: float | None = None
    seconds_per_item: float | None = None
    load_seconds: float | None = None


@dataclass(frozen=True)
class KnownRate:
    """Expected speed of a run, and its source."""

    work_seconds: float
    """Of one worker for all items, done or not."""
    load_seconds: float
    source: str

    @classmethod
    def of(cls, run: PlannedRun, rate: Rate, source: str) -> "KnownRate":
        """Take a rate for the items of a run: by their durations where both know them."""
        seconds = rate.seconds_per_item * run.n_items
        if rate.real_time_factor is not None and run.durations is not None:
            seconds = rate.real_time_factor * float(sum(run.durations))
        return cls(seconds, rate.load_seconds or 0.0, source)


def find_rate(run: PlannedRun, stated: StatedSpeed, exp_dir: Path) -> KnownRate | None:
    """Return what is stated, or what the earlier run that is nearest to this one took.

    Nearest is the run in the same folder, then those beside it, such as other test sets of one
    config, then those of other experiments; of several the one that ended last.

    Raises:
        ConfigError: a real-time factor is stated for items whose durations are not known.
    """
    if stated.real_time_factor is not None or stated.seconds_per_item is not None:
        return _stated(run, stated)
    for folders in _places(run, exp_dir):
        found = [(rate, folder) for folder in folders if (rate := _rate_in(folder, run))]
        if found:
            rate, folder = max(found, key=lambda pair: pair[0].finished)
            if stated.load_seconds is not None:
                rate = Rate(**{**vars(rate), "load_seconds": stated.load_seconds})
            return KnownRate.of(run, rate, _measured(rate, folder, run))
    return None


def _stated(run: PlannedRun, stated: StatedSpeed) -> KnownRate:
    load = f", {stated.load_seconds:g} s to load" if stated.load_seconds else ""
    if stated.real_time_factor is None:
        assert stated.seconds_per_item is not None
        rate = Rate(stated.seconds_per_item, load_seconds=stated.load_seconds)
        return KnownRate.of(run, rate, f"{rate.seconds_per_item:g} s per item{load}, as stated")
    if run.durations is None:
        raise ConfigError(
            f"--rtf {stated.real_time_factor:g} needs durations, which {run.name!r} does not know.",
            fix="Write --seconds-per-item 0.2 instead, or durations(self) in its Dataset.",
        )
    rate = Rate(0.0, stated.real_time_factor, stated.load_seconds)
    text = f"real-time factor {stated.real_time_factor:g}{load}, as stated"
    return KnownRate.of(run, rate, text)


def _places(run: PlannedRun, exp_dir: Path) -> Iterator[Iterable[Path]]:
    yield [run.folder]
    yield _runs_below(run.output_dir.parent, 1)
    yield _runs_below(exp_dir.parent, _DEPTH)


def _runs_below(folder: Path, depth: int) -> list[Path]:
    patterns = ["/".join(["*"] * n + ["manifest.json"]) for n in range(1, depth + 1)]
    return [path.parent for pattern in patterns for path in sorted(folder.glob(pattern))]


def _rate_in(folder: Path, run: PlannedRun) -> Rate | None:
    """Return the rate of a run of the same kind; a damaged folder has none."""
    try:
        manifest = load_manifest(folder)
        # Another runner does other work, so its speed says nothing of this one.
        if manifest is None or manifest.name != type(run.runner).__name__:
            return None
        return read_rate(folder)
    except RunFolderError:
        return None


def _measured(rate: Rate, folder: Path, run: PlannedRun) -> str:
    if rate.real_time_factor is not None and run.durations is not None:
        speed = f"real-time factor {rate.real_time_factor:.3g}"
    else:
        speed = f"{rate.seconds_per_item:.3g} s per item"
    load = "" if rate.load_seconds is None else f", {rate.load_seconds:.1f} s to load"
    where = first_few(
        ["this machine" if h == socket.gethostname() else h for h in rate.hosts], _SHOWN
    )
    when = local_time(rate.finished)
    text = f"{speed}{load}; measured on {rate.n_items} items in {folder}, {when}, on {where}"
    other = _differences(folder, run)
    return f"{text}; but that run had another {first_few(other, _SHOWN)}" if other else text


def _differences(folder: Path, run: PlannedRun) -> list[str]:
    """Return which settings that matter for the speed an earlier run had otherwise."""
    manifest = load_manifest(folder)
    assert manifest is not None
    keys = [line.partition(":")[0] for line in _changed(run, manifest, folder)]
    # Changed code rarely changes the speed, and would be listed every time.
    mattering = [key for key in keys if key.startswith(_SPEED_KEYS) and ".code" not in key]
    return list(dict.fromkeys(".".join(key.split(".")[:4]) for key in mattering))


@dataclass(frozen=True)
class Left:
    """Shards that are not done, in run order."""

    costs: list[float]
    n_items: int
    share: float
    """Of the whole run's cost, from 0 to 1."""


class ExpectedRun:
    """A requested run, as it would resume from its folder.

    Args:
        run: of a stage.
        parallel: where it would run.
        rate: how fast, if that is known.
    """

    def __init__(self, run: PlannedRun, parallel: "ParallelConfig", rate: KnownRate | None) -> None:
        self.run = run
        self.parallel = parallel
        self.rate = rate

    @cached_property
    def state(self) -> FolderState:
        """State of the run folder."""
        return look_at_folder(self.run)

    @cached_property
    def plan(self) -> Plan:
        """Its plan if it started from scratch."""
        return plan_shards(self.run, self.parallel)

    @property
    def manifest(self) -> Manifest | None:
        """The plan that it would resume; None if it would start from scratch."""
        is_kept = self.run.runner.resume and not self.state.refused
        return self.state.manifest if is_kept else None

    def left(self, n_workers: int | None = None) -> Left:
        """Return what there is to do: all of a new plan, or what is missing of one begun."""
        manifest = self.manifest
        if manifest is None:
            is_own = n_workers in (None, self.parallel.n_workers)
            plan = self.plan if is_own else plan_shards(self.run, self.parallel, n_workers)
            return Left([plan.costs[shard] for shard in plan.order], self.run.n_items, 1.0)
        if self.state.is_complete:
            return Left([], 0, 0.0)
        todo = [shard for shard in run_order(manifest.costs) if self._is_to_run(shard)]
        costs = [manifest.costs[shard] for shard in todo]
        n_items = sum(manifest.bounds[shard + 1] - manifest.bounds[shard] for shard in todo)
        return Left(costs, n_items, sum(costs) / (sum(manifest.costs) or 1.0))

    def _is_to_run(self, shard: int) -> bool:
        done = self.state.committed.get(shard)
        return done is None or (self.run.runner.retry_failed and done.n_failed > 0)

    def shard_seconds(self, n_workers: int | None = None) -> list[float]:
        """Return what each shard that is left takes, in run order; needs a rate."""
        assert self.rate is not None
        left = self.left(n_workers)
        total = sum(left.costs)
        return [self.rate.work_seconds * left.share * cost / total for cost in left.costs]

    def forecast(self, n_workers: int) -> Forecast:
        """Return how long it takes on so many workers; needs a rate."""
        assert self.rate is not None
        seconds = self.shard_seconds(n_workers)
        return forecast(seconds, n_workers, load_seconds=self.rate.load_seconds)

    def balance(self) -> float:
        """Return which part of their time the workers would be busy, by the costs alone."""
        return forecast(self.left().costs, self.parallel.n_workers).efficiency


def forecast_all(runs: Sequence[ExpectedRun], n_workers: int) -> Forecast | None:
    """Return what runs one after the other take; None if a rate is not known, or nothing left."""
    left = [run for run in runs if run.left().costs]
    if not left or any(run.rate is None for run in left):
        return None
    return reduce(add, [run.forecast(n_workers) for run in left])


def describe_inference(loaded: "LoadedConfig", *, detach: bool = False) -> list[str]:
    """Return lines on test sets, batches, padding, shards, workers and the job script.

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
    load = describe_load(runs, parallel, context_value(loaded, "exp_dir"))
    lines += [load] if load else []
    return [*lines, *describe_job_script(parallel, [run.folder for run in runs])]


def _describe_fields(written: WrittenFields) -> str:
    if written.names is None:
        usual = f"; of a text, {', '.join(written.usual)}" if written.usual else ""
        return f"fields to write: known at the first item, {written.why}{usual}"
    return f"fields to write: {', '.join(written.names) or 'none'} ({written.why})"


def _describe_test_set(run: PlannedRun, parallel: "ParallelConfig") -> list[str]:
    plan = plan_shards(run, parallel)
    facts = [describe_batches(run, plan), describe_shards(plan)]
    facts += [describe_files(plan, parallel, run.folder), describe_folder(run)]
    lines = [f"test set {run.name}: {describe_items(run)}"]
    return lines + [f"  {fact}" for fact in facts if fact]
