"""Describe a run on workers for `--dry-run` and `espnet3 plan`."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from espnet3.errors import MissingExtraError
from espnet3.parallel.clusters.table import ON_THIS_MACHINE, left_out, render_job_script
from espnet3.parallel.identity import changes, describe_run, is_below, not_results_of
from espnet3.shards.batches import check_costs, padding_in_order
from espnet3.shards.commit import Done
from espnet3.shards.manifest import Manifest, load_manifest
from espnet3.shards.merge import read_coverage
from espnet3.shards.plan import Plan, make_plan
from espnet3.shards.success import has_outputs, read_success
from espnet3.text import duration

if TYPE_CHECKING:
    from espnet3.parallel.base_runner import BaseRunner
    from espnet3.parallel.config import ParallelConfig

_COMPARED_SIZE = 16


class PlannedRun(Protocol):
    """One run of a stage: a test set, or a split."""

    @property
    def name(self) -> str:
        """What it runs over."""

    @property
    def runner(self) -> "BaseRunner":
        """What it runs."""

    @property
    def n_items(self) -> int:
        """How many items it has."""

    @property
    def durations(self) -> Any:
        """Seconds of each item, if the dataset knows them."""

    @property
    def output_dir(self) -> Path:
        """The folder of the results."""


@dataclass(frozen=True)
class FolderState:
    """What the folder of a run holds already."""

    manifest: Manifest | None = None
    refused: list[str] = field(default_factory=list)
    """How the existing run differs from the requested one, which cannot resume it."""
    committed: dict[int, Done] = field(default_factory=dict)
    is_complete: bool = False
    """Whether it would be answered at once."""


def look_at_folder(run: PlannedRun) -> FolderState:
    """Return what the folder holds, and whether the requested run would resume it."""
    root = run_folder(run)
    manifest = load_manifest(root)
    if manifest is None:
        return FolderState()
    committed = read_coverage(root, manifest).committed
    if not run.runner.resume:
        return FolderState(manifest, committed=committed)
    described = describe_run(run.runner, range(run.n_items))
    outputs, ignored = (root, run.output_dir), not_results_of(run.runner)
    changed = changes(manifest, described, outputs=outputs, ignored=ignored)
    accepted = run.runner.accept_changes
    refused = [line for line in changed if not is_below(line.partition(":")[0], accepted)]
    return FolderState(manifest, refused, committed, not refused and _is_complete(run, manifest))


def _is_complete(run: PlannedRun, manifest: Manifest) -> bool:
    success = read_success(manifest.layout(run_folder(run)), manifest.run_id)
    if success is None or not has_outputs(success, run.output_dir):
        return False
    return not (run.runner.retry_failed and success["n_failed"])


def run_folder(run: PlannedRun) -> Path:
    """Return the folder of the plan and the shards."""
    return run.output_dir / run.runner.shard_subdir


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
        (n_workers or parallel.n_workers) * parallel.shards_per_worker,
        batch_size=run.runner.batch_size,
        batch_seconds=run.runner.batch_seconds,
        costs=costs,
    )


def describe_items(run: PlannedRun) -> str:
    """Return how many items there are, how much audio, and where results go."""
    audio = "" if run.durations is None else f", {duration(sum(run.durations))} of audio"
    return f"{run.n_items} items{audio} -> {run.output_dir}"


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


def describe_job_script(parallel: "ParallelConfig", run_dirs: Sequence[Path] = ()) -> list[str]:
    """Return the script that each worker's job would run, and what it has by default.

    There are no lines without a scheduler.

    Args:
        parallel: where workers run.
        run_dirs: the run folders, which workers that go on alone are told.
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
