"""Find the runs that a folder on the command line stands for, and show them as tables and lines."""

import argparse
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from espnet3.cli.console import command, make_facts, make_table
from espnet3.errors import RunFolderError, closest
from espnet3.parallel.detached.overview import Overview
from espnet3.parallel.detached.workforce import Job, Worker
from espnet3.schedulers import scheduler_of
from espnet3.shards.accounting import Accounting, Usage, cost_facts, time_parts
from espnet3.shards.layout import FAILED, leases_folder, manifest_path
from espnet3.shards.lease import living_owners
from espnet3.shards.manifest import require_manifest
from espnet3.shards.records import RecordPaths, read_stop
from espnet3.shards.status import RunStatus
from espnet3.text import count, duration, first_line, on_one_line

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text


_SHOWN = 20
_BAR_WIDTH = 20
_MOST_REASONS = 3
_MOST_LETTERS = 300
STYLES = {
    "complete": "green",
    "running": "cyan",
    "queued": "blue",
    "starting": "blue",
    "unknown": "yellow",
    "failed": "bold red",
    "cancelled": "yellow",
    "stopping": "yellow",
    "stopped": "yellow",
    "not merged": "yellow",
}


def state_text(seen: Overview) -> "Text":
    """Return the state in its colour, with what explains it."""
    from rich.text import Text

    return Text(_state(seen), style=STYLES.get(seen.state, ""))


def _state(seen: Overview) -> str:
    status = seen.status
    if seen.state == "running" and status.n_shards_done == status.n_shards:
        return "running: all shards are done, they are being merged"
    if seen.behind:
        first = ", ".join(Path(folder).name for folder in seen.behind)
        return on_one_line(f"queued: its workers are at {first} first")
    if seen.state == "queued":
        return "queued: jobs wait, no worker has started"
    if seen.state == "starting":
        return "starting: workers were started and have not signed in yet"
    if seen.state == "unknown":
        return "unknown: no active worker, and this machine cannot see whether jobs wait"
    if seen.state == "stopping":
        return "stopping: workers hand back what they were doing"
    if seen.state == "cancelled" and status.stop is not None:
        return f"cancelled by {on_one_line(status.stop.by or 'an unknown user')}"
    if seen.state == "failed" and status.stop is not None:
        return f"failed: {on_one_line(_first_sentence(status.stop.reason))}"
    return seen.state


def _first_sentence(text: str) -> str:
    """Return how a message begins: `explain` shows all of it."""
    first = first_line(text)
    return first.partition(". ")[0].rstrip(".")[:_MOST_LETTERS]


def facts_of(seen: Overview) -> "Table":
    """Return a grid of what is known of a run."""
    status = seen.status
    facts = make_facts()
    facts.add_row("State", state_text(seen))
    facts.add_row("Shards", shards_text(status))
    facts.add_row("Items", items_text(status))
    if status.items_per_second is not None:
        facts.add_row("Speed", speed_text(status))
    if status.seconds is not None:
        facts.add_row("Elapsed", duration(status.seconds))
    for name, text in workforce_facts(seen):
        facts.add_row(name, text)
    return facts


def workforce_facts(seen: Overview) -> Iterator[tuple[str, str]]:
    """Yield active workers, waiting jobs with reasons, and avoided nodes."""
    workforce = seen.workforce
    if seen.state == "complete":
        return
    if seen.status.is_detached:
        building = {shard.owner_id for shard in seen.status.building}
        idle = [w for w in workforce.living if seen.shard_of(w) is None]
        n_idle = sum(worker.record.owner_id not in building for worker in idle)
        parts = [f"{len(workforce.living)} at work"]
        parts += [f"{n_idle} of them without a shard just now"] if n_idle else []
        yield "Workers", ", ".join([*parts, *building_text(seen.status)])
    elif seen.status.building:
        yield "Workers", ", ".join(building_text(seen.status))
    for driver in workforce.living:
        if driver.record.driver:
            yield "Driver", on_one_line(_driver_text(seen, driver))
    if workforce.waiting or (workforce.starting and not seen.behind):
        yield "Jobs", jobs_text(workforce.waiting, len(workforce.starting))
    n_odd = sum(job.record.is_submitting and not job.is_new for job in workforce.jobs)
    if n_odd:
        see = command("explain", seen.status.run_dir)
        yield "Jobs", f"{count(n_odd, 'job')} may exist whose number was not noted; see: {see}"
    for node, why in seen.avoided.items():
        yield "Avoided", on_one_line(f"{node}: {why}")


def building_text(status: RunStatus) -> list[str]:
    """Return how many workers load the model, and for how long, as a list of one; else empty."""
    if not status.building:
        return []
    n_workers = len(status.building)
    are = "is" if n_workers == 1 else "are"
    longest = duration(max(shard.seconds for shard in status.building))
    return [f"{count(n_workers, 'worker')} {are} building the environment (model, data), {longest}"]


def _driver_text(seen: Overview, driver: Worker) -> str:
    own = [
        w for w in seen.workforce.pool if w.is_alive and w.record.driver == driver.record.owner_id
    ]
    workers = f", with {count(len(own), 'worker')}" if own else ""
    waiting = f". {driver.record.waiting}" if driver.record.waiting else ""
    return f"{driver.name}{workers}{waiting}"


def jobs_text(waiting: list[Job], n_starting: int) -> str:
    """Return how many jobs are not there yet, why, and what to try."""
    parts = [f"{count(n_starting, 'worker')} about to begin"] if n_starting else []
    if waiting:
        reasons = Counter(job.state.reason or job.state.word for job in waiting)
        told = ", ".join(
            f"{reason} ({n})" if len(reasons) > 1 else reason
            for reason, n in reasons.most_common(_MOST_REASONS)
        )
        scheduler = scheduler_of(waiting[0].record.env)
        advice = scheduler.advice(reasons.most_common(1)[0][0]) if scheduler else ""
        text = f"{count(len(waiting), 'job')} in the queue: {told}"
        parts.append(on_one_line(f"{text}. {advice}." if advice else f"{text}."))
    return "; ".join(parts)


def worker_table(seen: Overview, limit: int = _SHOWN) -> "Table | None":
    """Return a row per living worker and shard, with a bar; None if there is no worker."""
    living = seen.workforce.living
    if not living or seen.is_over:  # one that finds nothing to do may need a moment to leave
        return None
    table = make_table(
        "Worker", "Shard", "", "Items", "For", "Done", right=("Shard", "Items", "For", "Done")
    )
    if len(living) > limit:  # else each keeps its place, so that eyes can follow it
        living = sorted(living, key=lambda worker: seen.shard_of(worker) is None)
    for worker in living[:limit]:
        for row in _worker_rows(seen, worker):
            table.add_row(*row)
    if len(living) > limit:
        table.add_row(f"and {len(living) - limit} more")
    return table


def _worker_rows(seen: Overview, worker: Worker) -> "Iterator[list[RenderableType]]":
    record, shards = worker.record, seen.shards_of(worker)
    name = on_one_line(f"{record.host} (job {record.job_id})" if record.job_id else worker.name)
    if worker.is_silent:
        name += f", silent for {duration(worker.silent_seconds)}"
    done = f"{seen.n_shards_of(worker):,}"
    building = [s for s in seen.status.building if s.owner_id == record.owner_id]
    if building:
        longest = max(shard.seconds for shard in building)
        yield [name, str(building[0].shard), "", "building", duration(longest), done]
    elif not shards:
        yield [name, "", "", "no shard", "", done]
    for number, shard in enumerate(shards[:_SHOWN]):
        mark = f"{shard.shard}*" if shard.is_twin else str(shard.shard)
        items = f"{shard.n_done:,} of {shard.n_items:,}"
        bar = _bar(shard.n_items, shard.n_done, _BAR_WIDTH)
        # A driver has a shard for each worker of its pool.
        first = [name, done] if number == 0 else ["", ""]
        yield [first[0], mark, bar, items, duration(shard.seconds), first[1]]


def _bar(total: float, done: float, width: int | None = None) -> "RenderableType":
    from rich.progress_bar import ProgressBar

    return ProgressBar(total=max(total, 1), completed=done, width=width)


def run_bar(status: RunStatus, width: int) -> "RenderableType":
    """Return a bar for all items of a run."""
    return _bar(status.n_items, status.n_done_so_far, width)


def running_table(status: RunStatus) -> "Table":
    """Return a row per running shard, for runs with a driver."""
    table = make_table("Running shard", "Items", "Owner", right=("Running shard", "Items"))
    for shard in status.running[:_SHOWN]:
        done = f"{shard.n_done:,} of {shard.n_items:,}"
        table.add_row(str(shard.shard), done, on_one_line(shard.owner))
    if len(status.running) > _SHOWN:
        table.add_row("...", "", f"and {len(status.running) - _SHOWN} more")
    return table


def shards_text(status: RunStatus) -> str:
    """Return how many shards are done and running."""
    n_running = sum(not shard.is_twin for shard in status.running)
    running = f", {n_running:,} running" if n_running else ""
    n_backups = len(status.running) - n_running
    backups = f" ({n_backups:,} of them twice: the first to finish wins)" if n_backups else ""
    return f"{status.n_shards_done:,} of {status.n_shards:,} done{running}{backups}"


def items_text(status: RunStatus) -> str:
    """Return how many items are done and failed."""
    failed = f", {status.n_failed:,} failed" if status.n_failed else ""
    return f"{status.n_done_so_far:,} of {status.n_items:,} done ({percent(status)}){failed}"


def percent(status: RunStatus) -> str:
    """Return the share that is done, rounded down: 100 % means all."""
    share = status.n_done_so_far / status.n_items if status.n_items else 1.0
    return f"{math.floor(share * 1000) / 10:.1f} %"


def speed_text(status: RunStatus) -> str:
    """Return the speed, and the time left."""
    left = f", about {duration(status.eta_seconds)} left" if status.eta_seconds is not None else ""
    return f"{rate_text(status)} items/s{left}"


def rate_text(status: RunStatus) -> str:
    """Return items per second; empty if not known."""
    rate = status.items_per_second
    return "" if rate is None else f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def next_steps(seen: Overview) -> list[str]:
    """Return what to type now, a sentence each."""
    status = seen.status
    where, state = on_one_line(status.run_dir), seen.state
    steps = []
    if state == "cancelled" and not status.is_detached:
        again = f"{command('resume', status.run_dir)} , then run the same command again"
        steps.append(f"{where} is cancelled. To continue: {again}")
    elif state in ("stopped", "cancelled", "failed") and status.is_detached:
        steps.append(f"Why: {command('explain', status.run_dir)}")
        when = ", once it is fixed" if state == "failed" else ""
        steps.append(f"To continue{when}: {command('resume', status.run_dir)}")
        if state == "failed":
            steps.append("If it was your code: run the command that began it again instead.")
    elif state == "stopped":
        steps.append(f"{where} is stopped: run the same command again to resume it.")
    if state == "not merged":
        steps.append(f"{where} is done but not merged: {command('merge', status.run_dir)}")
    if state in ("queued", "starting", "unknown") and not seen.behind:
        steps.append(f"Why it waits: {command('explain', status.run_dir)}")
    if status.n_failed:
        failed = count(status.n_failed, "item")
        steps.append(f"{failed} failed: {command('failed', status.run_dir)}")
    elif state in ("stopped", "failed") and (Path(status.run_dir) / FAILED).exists():
        steps.append(f"See what stopped it: {command('failed', status.run_dir)}")
    return steps


def add_costs(facts: "Table", accounting: Accounting) -> None:
    """Add what a run cost in all to a grid of names and values."""
    for name, fact in cost_facts(accounting):
        facts.add_row(name, fact)


def node_costs(accounting: Accounting) -> "Table":
    """Return a row per node: where the time of its workers went."""
    return _cost_table("Node", accounting.nodes)


def worker_costs(accounting: Accounting) -> "Table":
    """Return a row per worker, in the order in which they began."""
    return _cost_table("Worker", accounting.workers)


def _cost_table(title: str, usages: Sequence[Usage]) -> "Table":
    has_queue = any(usage.queue_seconds is not None for usage in usages)
    has_audio = any(usage.real_time_factor is not None for usage in usages)
    parts = [part for part in time_parts(Usage("")) if part != "running" or _is_running(usages)]
    titles = [part.capitalize() for part in parts]
    numbers = ["Shards", "Time", *(["Queue"] if has_queue else []), *titles]
    numbers += ["RTF"] if has_audio else []
    table = make_table(title, *numbers, right=numbers)
    for usage in usages[:_SHOWN]:
        row = [_usage_name(usage), f"{usage.n_shards:,}", duration(usage.seconds)]
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


def _usage_name(usage: Usage) -> str:
    job = f" (job {usage.job_id})" if usage.job_id else ""
    workers = f" ({usage.n_workers} workers)" if usage.n_workers > 1 else ""
    return on_one_line(f"{usage.name}{job}{workers}")


_DEPTH = 6  # exp/TAG/inference/sweep/VALUES/TEST_SET, from the folder above exp
_MOST_NAMED = 5


def add_dirs(parser: argparse.ArgumentParser) -> None:
    """Declare the folders of a verb that takes several."""
    parser.add_argument(
        "dirs", metavar="DIR", nargs="+", type=Path, help="a run folder, or a folder of such"
    )


def find_runs(folder: Path) -> list[Path]:
    """Return the folder itself if it holds a run, else the run folders below it, not too deep.

    Raises:
        RunFolderError: if there is none.
    """
    if not folder.exists():
        raise RunFolderError(f"{on_one_line(folder)} does not exist.{_similar(folder)}")
    runs = _search(folder, _DEPTH) if folder.is_dir() else []
    if not runs:
        require_manifest(folder)  # says what is wrong with the folder
    return runs


def find_all_runs(folders: Sequence[Path]) -> list[Path]:
    """Return the runs that some folders stand for, each once.

    Raises:
        RunFolderError: if one of them has none.
    """
    return list(dict.fromkeys(run for folder in folders for run in find_runs(folder)))


def find_detached_runs(
    folders: Sequence[Path], also: Callable[[Path], object] = lambda run: False
) -> list[Path]:
    """Return the same, without runs of drivers that merely lie in one of the folders.

    Such a run that is named itself is returned, for an error that says what is wrong with it; a
    folder above it stands for the others, and for those of drivers that `also` finds.
    """
    chosen: dict[Path, None] = {}
    for folder in folders:
        runs = find_runs(folder)
        meant = [run for run in runs if RecordPaths(run).run.exists() or also(run)]
        for run in runs if meant else ():
            if run not in meant:
                print(f"{on_one_line(run)} was not detached, and is left alone.")
        chosen |= dict.fromkeys(meant or runs)
    return list(chosen)


def has_owner(run_dir: Path) -> bool:
    """Tell whether a driver or worker is at work in a run folder."""
    return bool(living_owners(leases_folder(run_dir)))


def is_stopped(run_dir: Path) -> bool:
    """Tell whether a run has a stop mark."""
    return read_stop(RecordPaths(run_dir)) is not None


def find_run(folder: Path) -> Path:
    """Return the one run that a folder stands for.

    Raises:
        RunFolderError: if there is none, or if there are several.
    """
    runs = find_runs(folder)
    if len(runs) == 1:
        return runs[0]
    listed = "".join(f"\n  {on_one_line(run)}" for run in runs[:_MOST_NAMED])
    rest = f"\n  and {len(runs) - _MOST_NAMED} more" if len(runs) > _MOST_NAMED else ""
    raise RunFolderError(f"{on_one_line(folder)} holds {len(runs)} runs; name one:{listed}{rest}")


def _search(folder: Path, depth: int) -> list[Path]:
    if manifest_path(folder).exists():
        return [folder]
    if depth == 0:
        return []
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    # A folder of another user must not hide the runs beside it.
    except PermissionError:
        return []
    return [run for name in names for run in _search(folder / name, depth - 1)]


def _similar(folder: Path) -> str:
    try:
        close = closest(folder.name, os.listdir(folder.parent))
    except OSError:
        return ""
    return f" Did you mean {str(folder.parent / close)!r}?" if close else ""
