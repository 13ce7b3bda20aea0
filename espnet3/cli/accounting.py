"""Tables of what a run cost, per node and per worker."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from espnet3.cli.console import make_table
from espnet3.parallel.end_of_run import cost_facts, time_parts
from espnet3.shards.usage import Accounting, Usage
from espnet3.text import duration, on_one_line

if TYPE_CHECKING:
    from rich.table import Table

_SHOWN = 20


def add_cost(facts: "Table", accounting: Accounting) -> None:
    """Add what a run cost in all to a grid of names and values."""
    for name, fact in cost_facts(accounting):
        facts.add_row(name, fact)


def node_table(accounting: Accounting) -> "Table":
    """Return a row per node: where the time of its workers went."""
    return _table("Node", accounting.nodes)


def worker_table(accounting: Accounting) -> "Table":
    """Return a row per worker, in the order in which they began."""
    return _table("Worker", accounting.workers)


def _table(title: str, usages: Sequence[Usage]) -> "Table":
    has_queue = any(usage.queue_seconds is not None for usage in usages)
    has_audio = any(usage.real_time_factor is not None for usage in usages)
    parts = [part for part in time_parts(Usage("")) if part != "running" or _is_running(usages)]
    titles = [part.capitalize() for part in parts]
    numbers = ["Shards", "Time", *(["Queue"] if has_queue else []), *titles]
    numbers += ["RTF"] if has_audio else []
    table = make_table(title, *numbers, right=numbers)
    for usage in usages[:_SHOWN]:
        row = [_name(usage), f"{usage.n_shards:,}", duration(usage.seconds)]
        if has_queue:
            wait = usage.queue_seconds
            row.append("" if wait is None else duration(wait / max(usage.n_workers, 1)))
        shares = time_parts(usage)
        row += [f"{shares[part]:.0%}" for part in parts]
        factor = usage.real_time_factor
        row += ["" if factor is None else f"{factor:.3g}"] if has_audio else []
        table.add_row(*row)
    if len(usages) > _SHOWN:
        table.add_row(f"and {len(usages) - _SHOWN} more")
    return table


def _is_running(usages: Sequence[Usage]) -> bool:
    return any(usage.running_seconds for usage in usages)


def _name(usage: Usage) -> str:
    job = f" (job {usage.job_id})" if usage.job_id else ""
    workers = f" ({usage.n_workers} workers)" if usage.n_workers > 1 else ""
    return on_one_line(f"{usage.name}{job}{workers}")
