"""What `espnet3 plan` prints: each run of a stage, times for some numbers of workers, the job."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING

from espnet3.cli.console import make_console, make_table
from espnet3.parallel.clusters.requested import gpus_per_job, walltime_seconds
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.forecast import Forecast
from espnet3.parallel.parallel import as_parallel_config
from espnet3.systems.base.context import context_value
from espnet3.systems.base.known_rate import StatedRate, find_rate
from espnet3.systems.base.run_description import (
    describe_batches,
    describe_folder,
    describe_items,
    describe_job_script,
    describe_shards,
    run_folder,
)
from espnet3.systems.base.run_forecast import ExpectedRun
from espnet3.text import count, duration, on_one_line, printable

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

_HOUR = 3600.0


@dataclass(frozen=True)
class StagePlan:
    """The runs of a stage, one after the other on the same workers."""

    files: tuple[str, ...]
    parallel: ParallelConfig
    runs: list[ExpectedRun]
    exp_dir: Path

    @classmethod
    def of(cls, name: str, loaded: "LoadedConfig", stated: StatedRate) -> "StagePlan":
        """Build the datasets of a stage, and look at the folders of its runs."""
        from espnet3.systems.base.split_run import plan_statistics
        from espnet3.systems.base.test_set_run import plan_inference

        parallel = as_parallel_config(loaded)
        exp_dir = Path(context_value(loaded, "exp_dir"))
        planned = (
            plan_inference(loaded, runs_here=False)
            if name == "infer"
            else plan_statistics(loaded, runs_here=False)
        )
        runs = [ExpectedRun(run, parallel, find_rate(run, stated, exp_dir)) for run in planned]
        return cls(tuple(map(str, loaded.files)), parallel, runs, exp_dir)

    @property
    def unfinished(self) -> list[ExpectedRun]:
        """The runs of which something is left to do."""
        return [run for run in self.runs if run.left().costs]

    def forecast(self, n_workers: int) -> Forecast | None:
        """Return what all of it takes; None if a rate is not known."""
        runs = self.unfinished
        if not runs or any(run.rate is None for run in runs):
            return None
        return reduce(add, [run.forecast(n_workers) for run in runs])


def show(plan: StagePlan) -> None:
    """Print a stage: its runs, a table of workers, whether walltime suffices, the job script."""
    _print_lines(_head(plan))
    for run in plan.runs:
        _print_lines([f"{run.run.name}: {describe_items(run.run)}"])
        _print_lines([f"  {line}" for line in _facts(run, plan)])
    if not plan.unfinished:
        block = plan.runs[0].run.runner.config_block
        _print_lines([f"nothing is left to do; to have it all done anew: {block}.resume=false"])
    expected = plan.forecast(plan.parallel.n_workers)
    if expected is not None:
        print()
        _print_table(plan)
        print()
        _print_lines(_walltime(plan, expected))
    folders = [run_folder(run.run) for run in plan.runs]
    _print_lines(describe_job_script(plan.parallel, folders))


def _print_lines(lines: Iterator[str] | list[str]) -> None:
    for line in lines:
        print(f"  {printable(line)}")


def _head(plan: StagePlan) -> Iterator[str]:
    parallel = plan.parallel
    gpus = gpus_per_job(parallel)
    asked = f", {count(gpus, 'GPU')} each" if gpus else ""
    yield f"config: {' + '.join(map(on_one_line, plan.files))}"
    yield f"workers: {parallel.n_workers} on env: {parallel.env}{asked}"
    if parallel.env == "dask":
        yield "note: on env: dask as many workers run as are there; n_workers stands for them here"


def _facts(run: ExpectedRun, plan: StagePlan) -> Iterator[str]:
    yield describe_batches(run.run, run.plan)
    yield f"{describe_shards(run.plan)}, {_spread(run)}"
    if folder := describe_folder(run.run, run.state):
        yield folder
    left = run.left()
    if run.manifest is not None and left.costs:
        yield f"left: {count(left.n_items, 'item')} in {count(len(left.costs), 'shard')}"
    if run.rate is None and left.costs:
        example = "--rtf 0.05 or --seconds-per-item 0.2"
        if run.run.durations is None:
            example = "--seconds-per-item 0.2"
        yield (
            f"rate: not known, {plan.exp_dir.parent} holds no earlier run of "
            f"{type(run.run.runner).__name__}. State one: {example}"
        )
    if run.rate is not None:
        yield f"rate: {run.rate.source}"
    if run.rate is not None and left.costs:
        yield f"work: {duration(run.rate.work_seconds * left.share)} of one worker"


def _spread(run: ExpectedRun) -> str:
    costs = run.plan.costs
    most, least = (f(costs) * len(costs) / sum(costs) for f in (max, min))
    busy = f"; {run.parallel.n_workers} workers busy {run.balance():.0%} of the time"
    return f"{least:.2g} to {most:.2g} times the mean{busy if run.left().costs else ''}"


def _print_table(plan: StagePlan) -> None:
    gpus = gpus_per_job(plan.parallel)
    columns = ["Workers", "Shards", "Time", "Efficiency", "Worker-hours"]
    columns += ["GPU-hours"] if gpus else []
    table = make_table(*columns, right=columns)
    for n_workers in _numbers(plan.parallel.n_workers):
        found = plan.forecast(n_workers)
        assert found is not None
        hours = found.worker_seconds / _HOUR
        cells = [
            str(n_workers),
            str(found.n_shards),
            duration(found.wall_seconds),
            f"{found.efficiency:.0%}",
            _hours(hours),
        ]
        is_asked = n_workers == plan.parallel.n_workers
        table.add_row(
            *cells, *([_hours(hours * gpus)] if gpus else []), style="bold" if is_asked else None
        )
    make_console().print(table)


def _hours(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _numbers(n_workers: int) -> list[int]:
    """Return 1, 2, 4 and so on, the number that is asked for, and twice that."""
    powers = [2**k for k in range(n_workers.bit_length()) if 2**k < n_workers]
    return [*powers, n_workers, 2 * n_workers]


def _walltime(plan: StagePlan, expected: Forecast) -> Iterator[str]:
    yield (
        f"time: {duration(expected.wall_seconds)} on {count(expected.n_workers, 'worker')}, from "
        "when they are up; waiting in the queue and starting Python come before"
    )
    limit = walltime_seconds(plan.parallel)
    if limit is None:
        return
    longest = max(max(run.shard_seconds()) + _load(run) for run in plan.unfinished)
    whole = expected.wall_seconds
    text = f"walltime: {duration(limit)}; the longest shard takes {duration(longest)}"
    if longest > limit:
        more = plan.parallel.shards_per_worker * (int(longest / limit) + 1)
        yield (
            f"{text} with loading, so it could never end. Cut it finer, parallel."
            f"shards_per_worker={more}, or raise parallel.options.walltime"
        )
    elif whole > limit:
        yield (
            f"{text} and fits, but the run does not: jobs whose time is up are replaced, and what "
            "they were at runs again. To avoid that, raise parallel.options.walltime"
        )
    else:
        yield f"{text}, so it fits, and so does the run"


def _load(run: ExpectedRun) -> float:
    return run.rate.load_seconds if run.rate else 0.0
