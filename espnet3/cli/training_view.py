"""Trainings as tables and lines: epoch, loss, best checkpoint, time left, what to type next."""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from espnet3.cli.console import make_console, make_facts, make_table, shortened
from espnet3.cli.run_view import STYLES
from espnet3.systems.base.training_status import TrainingStatus, read_training
from espnet3.text import duration, on_one_line, value_text

if TYPE_CHECKING:
    from rich.table import Table

_INTERVAL = 2.0
_LINE_INTERVAL = 60.0
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
        for line in next_steps(training):
            console.print(line, soft_wrap=True)


def next_steps(training: TrainingStatus) -> Iterator[str]:
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
