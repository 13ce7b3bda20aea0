"""`espnet3 scaling CONFIG ...`: the same items on 1, 2, 4 ... workers, as a table."""

import argparse
import os
import platform
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from espnet3 import __version__
from espnet3.cli.console import UsageError, make_parser, seconds, whole_number
from espnet3.cli.recipe_configs import enter_recipe_of
from espnet3.cli.recipe_options import parse_line
from espnet3.errors import ConfigError
from espnet3.text import count

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig
    from espnet3.parallel.scaling import Scaling

_COLUMNS = (
    "environment", "workers", "items", "an item took (s)", "first item after (s)", "wall time (s)",
    "efficiency",
)  # fmt: skip
_EPILOG = (
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
    args, overrides = parse_line(_parser(), argv)
    start_dir = Path.cwd()
    config = _load(args.configs, overrides)
    _show(args, config, start_dir)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "scaling",
        "Measure how a parallel block scales, on this machine or on your cluster.",
        usage="espnet3 scaling CONFIG ... [parallel.KEY=VALUE ...] [--workers N ...] [--items N] "
        "[--seconds S] [--compute]",
        epilog=_EPILOG,
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


def _load(configs: Sequence[str], overrides: Sequence[str]) -> "ParallelConfig":
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
