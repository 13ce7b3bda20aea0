"""Show how far runs are: done, running and failed, speed and time left, workers and jobs.

Reads the folders, and asks the scheduler for jobs that have not begun; so it works anywhere, on
running, stopped and finished runs.
"""

import argparse
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.cli.console import make_console, make_table, print_error, print_json, seconds
from espnet3.cli.run_folders import find_runs
from espnet3.cli.run_view import (
    STYLES,
    add_costs,
    facts_of,
    next_steps,
    node_costs,
    percent,
    rate_text,
    running_table,
    worker_costs,
    worker_table,
)
from espnet3.errors import EspnetError
from espnet3.parallel.detached.folder_access import in_words, told_in_words
from espnet3.parallel.detached.overview import Overview, look
from espnet3.shards.status import require_manifest
from espnet3.shards.success import read_accounting
from espnet3.text import duration, on_one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from espnet3.shards.usage import Accounting

_FEW_WORKERS = 8
_INTERVAL = 2.0


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
    parser.add_argument(
        "--watch", action="store_true", help="show it live until the run ends; Ctrl-C ends the view"
    )
    parser.add_argument(
        "--interval",
        metavar="SECONDS",
        type=partial(seconds, least=0.1),
        help=f"with --watch: how often to look (default: {_INTERVAL:g}; 60 where output is piped)",
    )
    parser.add_argument(
        "--workers", action="store_true", help="tell what each worker did, however many there are"
    )


@told_in_words
def run(args: argparse.Namespace) -> int:
    """Print the status of all runs; 1 if some folder could not be read."""
    run_dirs, errors = _find(args.dirs)
    if args.watch and run_dirs and not args.json:
        from espnet3.cli.watch import watch

        for error in errors:
            print_error(error)
        return watch(run_dirs, args.interval)
    seen, unread = _look_at(run_dirs)
    errors += unread
    if args.json:
        print_json({"runs": [_as_dict(each) for each in seen]})
    elif seen:
        _show(seen, all_workers=args.workers)
    for error in errors:
        print_error(error)
    return 1 if errors else 0


def _find(folders: Sequence[Path]) -> tuple[list[Path], list[Exception]]:
    run_dirs: list[Path] = []
    errors: list[Exception] = []
    for folder in folders:
        try:
            run_dirs += find_runs(folder)
        except (EspnetError, OSError) as error:
            errors.append(in_words(error, folder))
    return run_dirs, errors


def _look_at(run_dirs: Sequence[Path]) -> tuple[list[Overview], list[Exception]]:
    seen: list[Overview] = []
    errors: list[Exception] = []
    for run_dir in run_dirs:
        try:
            seen.append(look(run_dir))
        except (EspnetError, OSError) as error:  # one damaged run must not hide the others
            errors.append(in_words(error, run_dir))
    return seen, errors


def _as_dict(seen: Overview) -> dict[str, Any]:
    return {**seen.as_dict(), "accounting": _accounting(seen).as_dict()}


def _accounting(seen: Overview) -> "Accounting":
    run_dir = Path(seen.status.run_dir)
    return read_accounting(run_dir, require_manifest(run_dir), seen.committed.values())


def _show(seen: list[Overview], *, all_workers: bool) -> None:
    console = make_console()
    if len(seen) == 1:
        _show_one(seen[0], console, all_workers=all_workers)
    else:
        console.print(_summary(seen))
    steps = [step for each in seen for step in next_steps(each)]
    if steps:
        console.print()
    for step in steps:
        console.print(step, soft_wrap=True)


def _show_one(seen: Overview, console: "Console", *, all_workers: bool) -> None:
    status = seen.status
    name = f" ({on_one_line(status.name)})" if status.name else ""
    console.print(on_one_line(status.run_dir) + name, style="bold", soft_wrap=True)
    console.print()
    facts = facts_of(seen)
    accounting = _accounting(seen)
    add_costs(facts, accounting)
    console.print(facts)
    workers = worker_table(seen) if status.is_detached else None
    tables = [workers] if workers else [running_table(status)] if status.running else []
    if len(accounting.nodes) > 1:
        tables.append(node_costs(accounting))
    is_short = seen.is_over and 1 < len(accounting.workers) <= _FEW_WORKERS
    if accounting.workers and (all_workers or is_short):
        tables.append(worker_costs(accounting))
    for table in tables:
        console.print()
        console.print(table)


def _summary(runs: list[Overview]) -> "Table":
    from rich.text import Text

    base = _common_folder(runs)
    numbers = ("Done", "Items", "Failed", "Items/s", "Left")
    has_crew = any(seen.status.is_detached for seen in runs)
    crew = ("Workers", "Queued") if has_crew else ()
    table = make_table("Run", "State", *numbers, *crew, right=(*numbers, *crew))
    if base:
        table.title = f"Runs in {on_one_line(base)}"
        table.title_justify = "left"
    for seen in runs:
        status, eta = seen.status, seen.status.eta_seconds
        present = [str(len(seen.crew.living)), str(len(seen.crew.waiting))] if has_crew else []
        table.add_row(
            on_one_line(os.path.relpath(status.run_dir, base) if base else status.run_dir),
            Text(seen.state, style=STYLES.get(seen.state, "")),
            percent(status),
            f"{status.n_items:,}",
            f"{status.n_failed:,}",
            rate_text(status),
            "" if eta is None else duration(eta),
            *present,
        )
    return table


def _common_folder(runs: list[Overview]) -> str:
    """Return the folder that all runs are in: names below it leave room for the numbers."""
    try:
        return os.path.commonpath([os.path.dirname(seen.status.run_dir) for seen in runs])
    except ValueError:  # some are absolute, some are not
        return ""
