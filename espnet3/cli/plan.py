"""Tell how long runs take: estimated by `espnet3 plan`, measured by `espnet3 scaling`.

`plan CONFIG ...` starts nothing. `scaling CONFIG ...` computes the same items on 1, 2, 4 ...
workers, as a table.
"""

import argparse
import os
import platform
import runpy
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from espnet3 import __version__
from espnet3.cli.console import (
    UsageError,
    make_console,
    make_parser,
    make_table,
    print_error,
    seconds,
    whole_number,
)
from espnet3.cli.recipe import set_up
from espnet3.cli.recipe_configs import SCRIPT, enter_recipe_of, find_files, recipe_of
from espnet3.cli.recipe_options import Options, parse_line, select_stages
from espnet3.errors import ConfigError, EspnetError, suggest
from espnet3.parallel.clusters.registry import gpus_per_job, walltime_seconds
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.parallel import as_parallel_config
from espnet3.shards.plan import Forecast
from espnet3.systems.base.context import context_value
from espnet3.systems.base.run_description import (
    ExpectedRun,
    StatedSpeed,
    describe_batches,
    describe_files,
    describe_folder,
    describe_items,
    describe_job_script,
    describe_operations,
    describe_shards,
    find_rate,
    forecast_all,
)
from espnet3.systems.base.stages import find_stage, stages_of
from espnet3.systems.base.system import BaseSystem
from espnet3.text import count, duration, on_one_line, printable

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig
    from espnet3.parallel.config import ParallelConfig
    from espnet3.parallel.scaling import Scaling


_STAGES = {"collect_stats": "training", "infer": "inference"}
"""Stages whose runs can be estimated, and the kind of their configs."""
_HOUR = 3600.0
_EPILOG = (
    "The files are merged left to right, as for `espnet3 run --config`. KEY.PATH=VALUE changes a "
    "value, such as parallel.n_workers=32. Without --rtf or --seconds-per-item, the speed is that "
    "of the nearest earlier run of the recipe."
)


def plan(argv: Sequence[str]) -> int:
    """Print shards, batches, expected time and cost of each run, and the job script.

    Returns:
        0 if all stages could be estimated, else 1.

    Raises:
        UsageError: the line is wrong, or the files belong to no recipe.
        ConfigError: the config is wrong.
    """
    args, overrides = parse_line(_parser(), argv)
    recipe_dir, files = _find_recipe(args)
    own_system = _system_of(recipe_dir / SCRIPT)
    sys.dont_write_bytecode = True
    configs = {"training": tuple(args.training_config), "inference": tuple(args.inference_config)}
    for kind in _kinds_of(files, recipe_dir):
        configs[kind] = configs[kind] or files
    names = _choose_stages(args.stages, [kind for kind, given in configs.items() if given])
    options = Options(
        stages=tuple(names),
        configs={kind: given for kind, given in configs.items() if given},
        overrides=overrides,
        dry_run=True,
    )
    selected = select_stages(names, stages_of(BaseSystem), system=own_system.__name__)
    system, _ = set_up(BaseSystem, options, selected, recipe_dir)
    stated = StatedSpeed(args.rtf, args.seconds_per_item, args.load_seconds)
    return max(_show_stage(name, system, own_system, stated) for name in names)


def _show_stage(
    name: str, system: BaseSystem, own_system: type[BaseSystem], stated: StatedSpeed
) -> int:
    stage = find_stage(stages_of(own_system), name)
    print(f"Stage {stage}: {stage.help}")
    method = getattr(own_system, name)
    if not method.__module__.startswith("espnet3."):
        print(
            f"  note: {method.__qualname__}() is the recipe's own; this is what that of BaseSystem "
            "would do. For what the recipe itself says: --dry-run"
        )
    try:
        show(StagePlan.of(name, system.config_for(name), stated))
    except (EspnetError, OSError) as error:
        print_error(error)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "plan",
        "Estimate how long the runs of a config would take; nothing is started or written.",
        usage="espnet3 plan [RECIPE_DIR] CONFIG ... [KEY.PATH=VALUE ...] [--rtf X]",
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add("words", nargs="*", metavar="CONFIG",
        help="such as conf/inference.yaml conf/parallel_slurm.yaml")  # fmt: skip
    add("--recipe", metavar="DIR", help="the folder of the recipe, if it is not this one")
    for kind in _STAGES.values():
        add(f"--{kind}_config", f"--{kind}-config", nargs="+", action="extend", default=[],
            metavar="FILE", help=f"the {kind} config, merged left to right")  # fmt: skip
    add("--stages", "--stage", nargs="+", action="extend", default=[], metavar="STAGE",
        help=f"only these, of {', '.join(_STAGES)}")  # fmt: skip
    rates = parser.add_mutually_exclusive_group()
    rates.add_argument("--rtf", type=_positive, metavar="X",
        help="seconds of a worker for a second of audio")  # fmt: skip
    rates.add_argument("--seconds-per-item", "--seconds_per_item", type=_positive, metavar="S",
        help="seconds of a worker for an item")  # fmt: skip
    add("--load-seconds", "--load_seconds", type=_positive, metavar="S",
        help="what a worker takes to load its model")  # fmt: skip
    return parser


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def _find_recipe(args: argparse.Namespace) -> tuple[Path, tuple[str, ...]]:
    """Return the folder of the recipe, and the config files that are not of a named kind."""
    words = list(args.words)
    folder = args.recipe
    if folder is None and words and Path(words[0]).is_dir():
        folder = words.pop(0)
    first = next(iter([*words, *args.inference_config, *args.training_config]), None)
    if first is None:
        raise UsageError(
            "no config is given.",
            fix="Write: espnet3 plan conf/inference.yaml conf/parallel_slurm.yaml",
        )
    if folder is None:
        return recipe_of(first), tuple(words)
    if not (Path(folder) / SCRIPT).is_file():
        raise UsageError(f"{on_one_line(folder)} holds no {SCRIPT}, so it is no recipe's folder.")
    return Path(folder).absolute(), tuple(words)


def _kinds_of(files: tuple[str, ...], recipe_dir: Path) -> list[str]:
    """Return what kinds of config the files are: training, inference, or one file for both."""
    if not files:
        return []
    from espnet3.config.load import load_config

    found = find_files(files, Path.cwd(), recipe_dir)
    paths = [str(recipe_dir / file) for file in found]
    loaded = load_config(paths, [], recipe_dir=recipe_dir)
    trains = any(loaded.has(key) for key in ("trainer", "optimizer", "optimizers"))
    infers = loaded.has("dataset.test") or loaded.has("provider") or not trains
    return [kind for kind, is_it in (("training", trains), ("inference", infers)) if is_it]


def _choose_stages(asked: Sequence[str], kinds: Sequence[str]) -> list[str]:
    for name in asked:
        if name not in _STAGES:
            raise UsageError(
                f"espnet3 plan knows nothing of the stage {name!r}.{suggest(name, _STAGES)} It "
                f"plans {' and '.join(_STAGES)}; of others, see run.py --dry-run."
            )
    names = [name for name, kind in _STAGES.items() if kind in kinds and name in (asked or _STAGES)]
    if not names:
        raise UsageError(f"--stages {shlex.join(asked)} needs --{_STAGES[asked[0]]}_config FILE.")
    return names


def _system_of(script: Path) -> type[BaseSystem]:
    """Return the system of a recipe: the most special class of it that its script knows."""
    argv = sys.argv
    sys.path.insert(0, str(script.parent))
    sys.dont_write_bytecode = True
    sys.argv = [str(script)]  # a script without a __main__ guard then only shows its usage
    try:
        # Not as __main__, so that the guard of the script keeps the stages from running.
        names = runpy.run_path(str(script), run_name="espnet3_recipe")
    except SystemExit:
        return BaseSystem
    finally:
        sys.argv = argv
    systems = [v for v in names.values() if isinstance(v, type) and issubclass(v, BaseSystem)]
    return max(systems, key=lambda cls: len(cls.__mro__), default=BaseSystem)


@dataclass(frozen=True)
class StagePlan:
    """The runs of a stage, one after the other on the same workers."""

    files: tuple[str, ...]
    parallel: ParallelConfig
    runs: list[ExpectedRun]
    exp_dir: Path

    @classmethod
    def of(cls, name: str, loaded: "LoadedConfig", stated: StatedSpeed) -> "StagePlan":
        """Build the datasets of a stage, and look at the folders of its runs."""
        from espnet3.systems.base.inference import plan_inference
        from espnet3.systems.base.statistics import plan_statistics

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
        return forecast_all(self.runs, n_workers)


def show(plan: StagePlan) -> None:
    """Print a stage: its runs, a table of workers, whether walltime suffices, the job script."""
    _print_lines(_head(plan))
    for run in plan.runs:
        _print_lines([f"{run.run.name}: {describe_items(run.run)}"])
        _print_lines([f"  {line}" for line in _facts(run, plan)])
    if not plan.unfinished:
        block = plan.runs[0].run.runner.config_block
        _print_lines([f"nothing is left to do; to do all of it again: {block}.resume=false"])
    expected = plan.forecast(plan.parallel.n_workers)
    if expected is not None:
        print()
        _print_table(plan)
        print()
        _print_lines([*_walltime(plan, expected), describe_operations(expected)])
    folders = [run.run.folder for run in plan.runs]
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
    yield describe_files(run.plan, plan.parallel, run.run.folder)
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


_COLUMNS = (
    "environment", "workers", "items", "an item took (s)", "first item after (s)", "wall time (s)",
    "efficiency",
)  # fmt: skip
_SCALING_EPILOG = (
    "Wall time is from the call until the results are merged, the start of the workers included; "
    "efficiency is against the first row. Items are made up and use no GPU. The runs are in a "
    "folder below this one, which all workers must see, and which is removed at the end."
)


def scaling(argv: Sequence[str]) -> int:
    """Run the items on each number of workers, and print a table in Markdown.

    Raises:
        UsageError: the line is wrong.
        ConfigError: the `parallel` block is missing or wrong.
    """
    args, overrides = parse_line(_scaling_parser(), argv)
    start_dir = Path.cwd()
    config = _load_counts(args.configs, overrides)
    _show(args, config, start_dir)
    return 0


def _scaling_parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "scaling",
        "Measure how a parallel block scales, on this machine or on your cluster.",
        usage="espnet3 scaling CONFIG ... [parallel.KEY=VALUE ...] [--workers N ...] [--items N] "
        "[--seconds S] [--compute]",
        epilog=_SCALING_EPILOG,
    )
    add = parser.add_argument
    add("configs", nargs="+", metavar="CONFIG", help="such as conf/parallel_slurm.yaml")
    add("--workers", nargs="+", type=whole_number, default=[1, 2], metavar="N",
        help="numbers of workers, each for a row of the table (default: 1 2)")  # fmt: skip
    add("--items", type=whole_number, default=200, metavar="N",
        help="in each run (default: 200)")  # fmt: skip
    add("--seconds", type=lambda text: seconds(text, 0.001), default=0.5, metavar="S",
        help="that an item takes (default: 0.5)")  # fmt: skip
    add("--compute", action="store_true",
        help="items keep a core busy instead of sleeping: shows cores that are shared")  # fmt: skip
    return parser


def _load_counts(configs: Sequence[str], overrides: Sequence[str]) -> "ParallelConfig":
    from espnet3.config.load import load_config
    from espnet3.parallel.parallel import as_parallel_config
    from espnet3.systems.base.context import DEFAULTS

    _check_overrides(overrides)
    recipe_dir, files = None, tuple(configs)
    with suppress(UsageError):  # a config may stand alone
        recipe_dir, files = enter_recipe_of(configs)
    loaded = load_config(files, overrides, below=DEFAULTS, recipe_dir=recipe_dir)
    if not loaded.has("parallel"):
        raise ConfigError(
            f"{shlex.join(configs)} has no parallel block, which says where workers run.",
            fix="Write: parallel: {env: slurm, options: {queue: cpu, cores: 1, memory: 4GB}}",
        )
    return as_parallel_config(loaded)


def _check_overrides(overrides: Sequence[str]) -> None:
    for word in overrides:
        key, _, value = word.partition("=")
        if key.lstrip("+~") == "parallel.n_workers":
            raise UsageError(f"{word}: the numbers of workers are an option: --workers {value}")
        if not key.lstrip("+~").startswith("parallel."):
            raise UsageError(
                f"{word} has no effect here: only the parallel block is read. Leave it out."
            )


def _show(args: argparse.Namespace, config: "ParallelConfig", start_dir: Path) -> None:
    """Print each row as soon as it is known: the later ones may wait in a queue."""
    from espnet3.parallel.scaling import measure_scaling

    with tempfile.TemporaryDirectory(
        prefix="scaling-", dir=start_dir, ignore_cleanup_errors=True
    ) as folder:
        rows = measure_scaling(
            config, args.workers, Path(folder),
            n_items=args.items, seconds=args.seconds, compute=args.compute,
        )  # fmt: skip
        first = None
        for row in rows:
            if first is None:
                first = row
                print(_line(_COLUMNS))
                print("|---|" + "--:|" * (len(_COLUMNS) - 1))
            print(_line(_cells(row, first)), flush=True)
    print(f"\n{_describe(args)}")
    sys.stdout.flush()


def _cells(row: "Scaling", first: "Scaling") -> list[str]:
    environment = (
        row.env if row.env == "local" and row.mode == "sync" else f"{row.env} / {row.mode}"
    )
    workers = str(row.n_workers)
    if row.n_used < row.n_workers:
        workers = f"{row.n_workers} ({row.n_used} got work)"
    return [
        environment,
        workers,
        str(row.n_items),
        f"{row.item_seconds:.2f}",
        f"{row.start_seconds:.1f}",
        f"{row.wall_seconds:.1f}",
        f"{100 * row.efficiency(first):.0f}%",
    ]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _describe(args: argparse.Namespace) -> str:
    """Say what a number depends on, without which it means nothing to others."""
    kind = "of computing" if args.compute else "of sleep"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return (
        f"{count(args.items, 'item')} of {args.seconds:g} s {kind}; {time.strftime('%Y-%m-%d')}, "
        f"espnet3 {__version__}, Python {platform.python_version()}, {cores} cores here, load "
        f"{os.getloadavg()[0]:.1f} at the end."
    )
