"""The table at the end of a recipe's run."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from espnet3.cli.console import make_console, make_table
from espnet3.text import on_one_line

if TYPE_CHECKING:
    from espnet3.cli.stage_loop import Outcome

_STYLES = {"done": "green", "failed": "red", "interrupted": "yellow", "skipped": "dim"}


def print_summary(outcomes: Sequence["Outcome"]) -> None:
    """Print a line for each stage: how it ended, how long it took, and its log."""
    from rich.text import Text

    from espnet3.text import duration

    table = make_table("Stage", "State", "Time", "Log", right=["Time"])
    for outcome in outcomes:
        log = "" if outcome.log is None else on_one_line(outcome.log)
        table.add_row(
            str(outcome.stage),
            Text(outcome.state, style=_STYLES.get(outcome.state, "")),
            "" if outcome.seconds is None else duration(outcome.seconds),
            "; ".join(filter(None, [on_one_line(outcome.reason), log])),
        )
    console = make_console()
    console.print()
    console.print(table)
