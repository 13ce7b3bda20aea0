"""Show how far runs are: done, running and failed, speed and time left.

Reads the folders alone, so it works anywhere, on running, stopped and finished runs.
"""

import argparse
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from espnet3.cli.plain import command, count, on_one_line, print_error, print_json
from espnet3.cli.run_folders import find_runs
from espnet3.errors import EspnetError
from espnet3.parallel.progress import duration
from espnet3.shards.layout import FAILED
from espnet3.shards.status import RunStatus, read_status

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_SHOWN = 20
_STYLES = {"complete": "green", "running": "cyan", "stopped": "yellow", "not merged": "yellow"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `espnet3 status`."""
    parser.add_argument(
        "dirs",
        metavar="DIR",
        nargs="*",
        type=Path,
        default=[Path()],
        help="a run folder, or a folder of such (default: this one)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document for scripts")


def run(args: argparse.Namespace) -> int:
    """Print the status of all runs; 1 if some folder could not be read."""
    statuses, errors = _read_all(args.dirs)
    if args.json:
        print_json({"runs": [status.as_dict() for status in statuses]})
    elif statuses:
        _show(statuses)
    for error in errors:
        print_error(error)
    return 1 if errors else 0


def _read_all(folders: Sequence[Path]) -> tuple[list[RunStatus], list[EspnetError]]:
    statuses: list[RunStatus] = []
    errors: list[EspnetError] = []
    for folder in folders:
        try:
            runs = find_runs(folder)
        except EspnetError as error:
            errors.append(error)
            continue
        for run_dir in runs:
            try:
                statuses.append(read_status(run_dir))
            except EspnetError as error:  # one damaged run must not hide the others
                errors.append(error)
    return statuses, errors


def _show(statuses: list[RunStatus]) -> None:
    from espnet3.cli.console import make_console

    console = make_console()
    if len(statuses) == 1:
        _show_one(statuses[0], console)
    else:
        console.print(_summary(statuses))
    steps = [step for status in statuses for step in _next_steps(status)]
    if steps:
        console.print()
    for step in steps:
        console.print(step, soft_wrap=True)


def _show_one(status: RunStatus, console: "Console") -> None:
    from rich.text import Text

    from espnet3.cli.console import make_facts, make_table

    name = f" ({on_one_line(status.name)})" if status.name else ""
    console.print(on_one_line(status.run_dir) + name, style="bold", soft_wrap=True)
    console.print()
    facts = make_facts()
    facts.add_row("State", Text(_state(status), style=_STYLES.get(status.state, "")))
    facts.add_row("Shards", _shards(status))
    facts.add_row("Items", _items(status))
    if status.items_per_second is not None:
        facts.add_row("Speed", _speed(status))
    if status.seconds is not None:
        facts.add_row("Elapsed", duration(status.seconds))
    console.print(facts)
    if status.running:
        table = make_table("Running shard", "Items", "Owner", right=("Running shard", "Items"))
        _add_running(table, status)
        console.print()
        console.print(table)


def _add_running(table: "Table", status: RunStatus) -> None:
    for shard in status.running[:_SHOWN]:
        done = f"{shard.n_done:,} of {shard.n_items:,}"
        table.add_row(str(shard.shard), done, on_one_line(shard.owner))
    if len(status.running) > _SHOWN:
        table.add_row("...", "", f"and {len(status.running) - _SHOWN} more")


def _state(status: RunStatus) -> str:
    if status.state == "running" and status.n_shards_done == status.n_shards:
        return "running: all shards are done, they are being merged"
    return status.state


def _shards(status: RunStatus) -> str:
    running = f", {len(status.running):,} running" if status.running else ""
    return f"{status.n_shards_done:,} of {status.n_shards:,} done{running}"


def _items(status: RunStatus) -> str:
    failed = f", {status.n_failed:,} failed" if status.n_failed else ""
    return f"{_n_done(status):,} of {status.n_items:,} done ({_percent(status)}){failed}"


def _n_done(status: RunStatus) -> int:
    return status.n_done + sum(shard.n_done for shard in status.running)


def _percent(status: RunStatus) -> str:
    share = _n_done(status) / status.n_items if status.n_items else 1.0
    return f"{math.floor(share * 1000) / 10:.1f} %"  # rounded down: 100 % means all


def _speed(status: RunStatus) -> str:
    left = f", about {duration(status.eta_seconds)} left" if status.eta_seconds is not None else ""
    return f"{_rate(status)} items/s{left}"


def _rate(status: RunStatus) -> str:
    rate = status.items_per_second
    return "" if rate is None else f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _summary(statuses: list[RunStatus]) -> "Table":
    from rich.text import Text

    from espnet3.cli.console import make_table

    base = _common_folder(statuses)
    numbers = ("Done", "Items", "Failed", "Items/s", "Left")
    table = make_table("Run", "State", *numbers, right=numbers)
    if base:
        table.title = f"Runs in {on_one_line(base)}"
        table.title_justify = "left"
    for status in statuses:
        eta = status.eta_seconds
        table.add_row(
            on_one_line(os.path.relpath(status.run_dir, base) if base else status.run_dir),
            Text(status.state, style=_STYLES.get(status.state, "")),
            _percent(status),
            f"{status.n_items:,}",
            f"{status.n_failed:,}",
            _rate(status),
            "" if eta is None else duration(eta),
        )
    return table


def _common_folder(statuses: list[RunStatus]) -> str:
    """Return the folder that all runs are in: names below it leave room for the numbers."""
    try:
        return os.path.commonpath([os.path.dirname(status.run_dir) for status in statuses])
    except ValueError:  # some are absolute, some are not
        return ""


def _next_steps(status: RunStatus) -> list[str]:
    steps = []
    where = on_one_line(status.run_dir)
    if status.state == "stopped":
        steps.append(f"{where} is stopped: run the same command again to resume it.")
    if status.state == "not merged":
        steps.append(f"{where} is done but not merged: {command('merge', status.run_dir)}")
    if status.n_failed:
        failed = count(status.n_failed, "item")
        steps.append(f"{failed} failed: {command('failed', status.run_dir)}")
    elif status.state == "stopped" and (Path(status.run_dir) / FAILED).exists():
        steps.append(f"See what stopped it: {command('failed', status.run_dir)}")
    return steps
