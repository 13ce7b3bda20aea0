"""Show how far runs and trainings are: done, failed, speed, time left, workers and jobs.

Reads the folders, and asks the scheduler for jobs that have not begun; so it works anywhere, on
running, stopped and finished runs.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.cli.console import (
    command,
    make_console,
    make_facts,
    make_parser,
    make_table,
    print_error,
    print_json,
    seconds,
    shortened,
)
from espnet3.cli.run_view import (
    STYLES,
    add_costs,
    building_text,
    facts_of,
    find_runs,
    items_text,
    next_steps,
    node_costs,
    percent,
    rate_text,
    run_bar,
    running_table,
    shards_text,
    speed_text,
    state_text,
    worker_costs,
    worker_table,
    workforce_facts,
)
from espnet3.errors import EspnetError
from espnet3.parallel.detached.folder_access import in_words, reports_folder_errors
from espnet3.parallel.detached.overview import Observer, Overview, look
from espnet3.shards.manifest import require_manifest
from espnet3.shards.merge import read_accounting
from espnet3.systems.base.training_status import TrainingStatus, find_trainings, read_training
from espnet3.text import count, duration, on_one_line, value_text

if TYPE_CHECKING:
    from rich.console import Console, Group, RenderableType
    from rich.table import Table

    from espnet3.shards.accounting import Accounting


_FEW_WORKERS = 8
_INTERVAL = 2.0
_LINE_INTERVAL = 60.0
_ASK_SECONDS = 30.0  # between two questions to the scheduler, which others use as well
_SURE_LOOKS = 3
_ROWS_BESIDE = 12
_LEAST_ROWS = 3
_TRAINING_DEPTH = 3


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("status", __doc__ or "")
    parser.add_argument(
        "dirs",
        metavar="DIR",
        nargs="*",
        type=Path,
        default=[Path()],
        help="a run folder, an experiment, or a folder of such (default: this one)",
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
        "--workers", action="store_true", help="show what each worker did, however many there are"
    )
    return parser


@reports_folder_errors
def status(argv: Sequence[str]) -> int:
    """Print the status of all runs; 1 if some folder could not be read."""
    args = _parser().parse_args(argv)
    run_dirs, exp_dirs, errors = _find(args.dirs)
    if args.watch and exp_dirs and not run_dirs and not args.json:
        return watch_trainings(exp_dirs, args.interval)
    if args.watch and run_dirs and not args.json:
        for error in errors:
            print_error(error)
        return watch(run_dirs, args.interval)
    seen, unread = _look_at(run_dirs)
    errors += unread
    if args.json:
        trainings = [read_training(exp_dir).as_dict() for exp_dir in exp_dirs]
        print_json({"runs": [_as_dict(each) for each in seen], "trainings": trainings})
    else:
        show_trainings([read_training(exp_dir) for exp_dir in exp_dirs])
        if seen:
            _show(seen, all_workers=args.workers)
    for error in errors:
        print_error(error)
    return 1 if errors else 0


def _find(folders: Sequence[Path]) -> tuple[list[Path], list[Path], list[Exception]]:
    """Return the runs and the trainings that the folders stand for."""
    run_dirs: list[Path] = []
    exp_dirs: list[Path] = []
    errors: list[Exception] = []
    for folder in folders:
        exp_dirs += (found := find_trainings(folder, _TRAINING_DEPTH))
        try:
            run_dirs += find_runs(folder)
        except (EspnetError, OSError) as error:
            if not found:
                errors.append(in_words(error, folder))
    return run_dirs, exp_dirs, errors


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
        console.print(step, soft_wrap=True)  # a command that is broken over lines cannot be pasted


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
    has_workforce = any(seen.status.is_detached for seen in runs)
    workforce = ("Workers", "Queued") if has_workforce else ()
    titles = ("Run", "State", *numbers, *workforce)
    table = make_table(*titles, right=(*numbers, *workforce), short=("Run",))
    if base:
        table.title = f"Runs in {on_one_line(base)}"
        table.title_justify = "left"
    for seen in runs:
        status, eta = seen.status, seen.status.eta_seconds
        present = (
            [str(len(seen.workforce.living)), str(len(seen.workforce.waiting))]
            if has_workforce
            else []
        )
        table.add_row(
            shortened(
                on_one_line(os.path.relpath(status.run_dir, base) if base else status.run_dir)
            ),
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


def watch(run_dirs: Sequence[Path], interval: float | None = None) -> int:
    """Show runs until all are over, or until Ctrl-C, which ends the view and nothing else.

    Returns:
        0 if all are complete, or if the view was ended; 1 if an incomplete one has no workers.
    """
    observers = [Observer(run_dir, _ASK_SECONDS) for run_dir in run_dirs]
    try:
        if sys.stdout.isatty():
            seen = _watch_live(observers, interval or _INTERVAL)
        else:
            seen = _watch_lines(observers, interval or _LINE_INTERVAL)
    except KeyboardInterrupt:
        return 0
    return 0 if all(each.state == "complete" for each in seen) else 1


def _watch_live(observers: list[Observer], interval: float) -> list[Overview]:
    from rich.live import Live

    console = make_console()
    # Transient, as the last view is printed once more below, with what to do next.
    with Live(console=console, auto_refresh=False, transient=True) as live:
        end = _End()
        while True:
            seen = [observer.look() for observer in observers]
            live.update(render(seen, console), refresh=True)
            if end.has_come(seen):
                break
            time.sleep(interval)
    console.print(render(seen, console, is_last=True))
    return seen


def _watch_lines(observers: list[Observer], interval: float) -> list[Overview]:
    end = _End()
    while True:
        seen = [observer.look() for observer in observers]
        for each in seen:
            print(line(each, len(seen) > 1), flush=True)
        if end.has_come(seen):
            break
        time.sleep(min(interval, _INTERVAL) if end.is_near else interval)
    for step in (step for each in seen for step in next_steps(each)):
        print(step)
    return seen


class _End:
    """Decides when to stop watching; a run that merely stopped is looked at a few more times."""

    def __init__(self) -> None:
        self._n_looks = 0

    @property
    def is_near(self) -> bool:
        """Tell whether it may have come."""
        return self._n_looks > 0

    def has_come(self, seen: Sequence[Overview]) -> bool:
        """Tell whether all runs are over."""
        if not all(each.is_over for each in seen):
            self._n_looks = 0
            return False
        self._n_looks += 1
        is_sure = all(each.state in ("complete", "failed", "cancelled") for each in seen)
        return is_sure or self._n_looks >= _SURE_LOOKS


def line(seen: Overview, with_name: bool) -> str:
    """Return how a run stands, on one line."""
    status = seen.status
    parts = [time.strftime("%H:%M:%S"), seen.state, items_text(status)]
    if status.items_per_second is not None and not seen.is_over:
        parts.append(speed_text(status))
    n_pool = sum(worker.is_alive for worker in seen.workforce.pool)
    if n_pool and not seen.is_over:
        parts.append(f"{count(n_pool, 'worker')} of a driver")
    if status.is_detached and not seen.is_over:
        parts.append(
            f"{len(seen.workforce.living)} at work, {len(seen.workforce.waiting)} in the queue"
        )
    if not seen.is_over:
        parts += building_text(status)
    if seen.avoided:
        parts.append("avoids " + ", ".join(seen.avoided))
    name = f"{on_one_line(status.run_dir)}: " if with_name else ""
    first, *rest = parts
    return on_one_line(f"{first} {name}{'; '.join(rest)}")


def render(runs: Sequence[Overview], console: "Console", *, is_last: bool = False) -> "Group":
    """Return the view of runs; the last one says what to type next."""
    from rich.console import Group
    from rich.text import Text

    rows = max((console.height - _ROWS_BESIDE) // len(runs), _LEAST_ROWS)
    parts: list[RenderableType] = []
    for seen in runs:
        parts += [*_run(seen, console.width, rows), Text("")]
    if is_last:
        steps = [step for seen in runs for step in next_steps(seen)]
        return Group(*parts, *(Text(step, overflow="fold") for step in steps))
    first = runs[0].status.run_dir
    hint = f"Ctrl-C ends this view, not the run. Logs: {command('logs', first)} -f"
    return Group(*parts, Text(hint, style="dim"))


def _run(seen: Overview, width: int, rows: int) -> "list[RenderableType]":
    from rich.table import Table
    from rich.text import Text

    status = seen.status
    title = Text(on_one_line(status.run_dir), style="bold")
    title.append(f"  {on_one_line(status.name)}  ", style="dim")
    title.append_text(state_text(seen))
    bar = Table.grid(padding=(0, 1))
    left = status.eta_seconds
    share = percent(status) + ("" if left is None else f", {duration(left)} left")
    bar.add_row(run_bar(status, max(width - len(share) - 2, 10)), Text(share, style="bold"))
    facts = make_facts()
    facts.add_row("Items", items_text(status))
    facts.add_row("Shards", shards_text(status))
    if not seen.is_over and status.items_per_second is not None:
        facts.add_row("Speed", speed_text(status))
    if status.seconds is not None:
        facts.add_row("Elapsed", duration(status.seconds))
    for name, text in workforce_facts(seen):
        facts.add_row(name, text)
    parts: list[RenderableType] = [title, bar, facts]
    workers = worker_table(seen, rows) if status.is_detached else None
    if workers is not None:
        parts += [Text(""), workers]
    elif status.running:
        parts.append(Text(f"{count(len(status.running), 'shard')} running"))
    return parts


_STYLES = {**STYLES, "dead": "bold red", "interrupted": "yellow"}


def show_trainings(trainings: Sequence[TrainingStatus]) -> None:
    """Print one training as facts, several as a table, and how to resume those that are dead."""
    if not trainings:
        return
    console = make_console()
    if len(trainings) == 1:
        console.print(on_one_line(trainings[0].exp_dir), style="bold", soft_wrap=True)
        console.print()
        console.print(_facts(trainings[0]))
    else:
        console.print(_table(trainings))
    console.print()
    for training in trainings:
        for line in next_lines(training):
            console.print(line, soft_wrap=True)


def next_lines(training: TrainingStatus) -> Iterator[str]:
    """Yield what to type where a training does not continue by itself."""
    if training.state in ("dead", "failed", "interrupted") and training.command:
        where = on_one_line(training.exp_dir)
        yield f"{where} is {training.state}. To resume it: {on_one_line(training.command)}"


def watch_trainings(exp_dirs: Sequence[Path], interval: float | None = None) -> int:
    """Show trainings until none runs, or until Ctrl-C, which ends the view and nothing else.

    Returns:
        0 if all are complete, or if the view was ended; 1 otherwise.
    """
    try:
        while True:
            seen = [read_training(exp_dir) for exp_dir in exp_dirs]
            if all(training.state != "running" for training in seen):
                break
            for training in seen:
                print(_line(training), flush=True)
            time.sleep(interval or (_INTERVAL if sys.stdout.isatty() else _LINE_INTERVAL))
    except KeyboardInterrupt:
        return 0
    show_trainings(seen)
    return 0 if all(training.state == "complete" for training in seen) else 1


def _line(training: TrainingStatus) -> str:
    left = training.seconds_left
    parts = [training.state, training.progress, _values(training), _best(training)]
    parts += [f"{duration(left)} left"] if left is not None else []
    where = f"{time.strftime('%H:%M:%S')} {training.exp_dir}: "
    return on_one_line(where + "; ".join(part for part in parts if part))


def _facts(training: TrainingStatus) -> "Table":
    from rich.text import Text

    facts = make_facts()
    state = f"{training.state} on {training.host}" if training.host else training.state
    facts.add_row("Training", Text(on_one_line(state), style=_STYLES.get(training.state, "")))
    facts.add_row("Progress", training.progress)
    if values := _values(training):
        facts.add_row("Last", values)
    if training.best:
        facts.add_row("Best", on_one_line(training.best))
    if training.checkpoint:
        facts.add_row("Checkpoint", on_one_line(training.checkpoint))
    if training.seconds_left is not None:
        facts.add_row("Left", duration(training.seconds_left))
    if training.last_seen is not None and training.state != "complete":
        facts.add_row("Last seen", f"{duration(training.last_seen)} ago")
    return facts


def _table(trainings: Sequence[TrainingStatus]) -> "Table":
    from rich.text import Text

    titles = ("Training", "State", "Epoch", "Step", "Best", "Left")
    table = make_table(*titles, right=("Epoch", "Step", "Left"), short=("Training", "Best"))
    for training in trainings:
        end = f"/{training.n_epochs}" if training.n_epochs else ""
        left = training.seconds_left
        table.add_row(
            shortened(on_one_line(os.path.relpath(training.exp_dir))),
            Text(training.state, style=_STYLES.get(training.state, "")),
            f"{training.epoch}{end}",
            f"{training.step:,}",
            shortened(on_one_line(_best(training))),
            "" if left is None else duration(left),
        )
    return table


def _best(training: TrainingStatus) -> str:
    return training.best.partition(" at ")[0]


def _values(training: TrainingStatus) -> str:
    values = training.values or {}
    return ", ".join(f"{name} {value_text(value)}" for name, value in values.items())
