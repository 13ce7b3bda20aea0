"""Follow runs: a live view on a terminal, single lines where output is piped."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from espnet3.cli.console import command, make_console, make_facts
from espnet3.cli.run_view import (
    crew_facts,
    items_text,
    next_steps,
    percent,
    run_bar,
    shards_text,
    speed_text,
    state_text,
    worker_table,
)
from espnet3.parallel.detached.overview import Observer, Overview
from espnet3.text import count, duration, on_one_line

if TYPE_CHECKING:
    from rich.console import Console, Group, RenderableType

_INTERVAL = 2.0
_LINE_INTERVAL = 60.0
_ASK_SECONDS = 30.0
_SURE_LOOKS = 3
_ROWS_BESIDE = 12
_LEAST_ROWS = 3


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
    """Tells when nothing more will happen; a run that merely stopped is looked at again."""

    def __init__(self) -> None:
        self._n_looks = 0

    @property
    def is_near(self) -> bool:
        """Whether it may have come."""
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
    n_pool = sum(worker.is_alive for worker in seen.crew.pool)
    if n_pool and not seen.is_over:
        parts.append(f"{count(n_pool, 'worker')} of a driver")
    if status.is_detached and not seen.is_over:
        parts.append(f"{len(seen.crew.living)} at work, {len(seen.crew.waiting)} in the queue")
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
    for name, text in crew_facts(seen):
        facts.add_row(name, text)
    parts: list[RenderableType] = [title, bar, facts]
    workers = worker_table(seen, rows) if status.is_detached else None
    if workers is not None:
        parts += [Text(""), workers]
    elif status.running:
        parts.append(Text(f"{count(len(status.running), 'shard')} running"))
    return parts
