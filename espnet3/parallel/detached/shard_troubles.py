"""Find shards that stall a run: repeated deaths, or far too slow."""

import statistics
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from espnet3.findings import Finding
from espnet3.shards.commit import Done
from espnet3.shards.records import DeathNote, RecordPaths, read_deaths
from espnet3.shards.status import RunningShard
from espnet3.text import count, duration

_MOST = 5
_LONG_SECONDS = 120.0
_LONG_TIMES = 5.0


def explain_deaths(run_dir: Path, committed: Collection[int], quoted: str) -> Iterator[Finding]:
    """Yield what happened at shards that are not done yet, and how many were made up for."""
    by_shard: dict[int, list[DeathNote]] = {}
    for note in read_deaths(RecordPaths(run_dir)):
        by_shard.setdefault(note.shard, []).append(note)
    open_shards = {shard: notes for shard, notes in by_shard.items() if shard not in committed}
    worst = sorted(open_shards.items(), key=lambda entry: -len(entry[1]))
    for shard, notes in worst[:_MOST]:
        yield _shard_deaths(shard, notes, quoted)
    if len(worst) > _MOST:
        told = f"attempts at {len(worst) - _MOST} more shards came to nothing"
        yield Finding("warning", "deaths", told, f"espnet3 logs {quoted} --failed")
    n_done = len(by_shard) - len(open_shards)
    if n_done:
        told = (
            f"attempts at {count(n_done, 'shard')} came to nothing, but others have done them since"
        )
        yield Finding("ok", "deaths", told)


def _shard_deaths(shard: int, notes: list[DeathNote], quoted: str) -> Finding:
    last = notes[-1]
    times = "once" if len(notes) == 1 else f"{len(notes)} times"
    if last.kind == "walltime":
        spent = duration(last.seconds)
        told = f"shard {shard} was cut off by the walltime {times}, after {spent}"
        fix = f"If it does not fit at all: espnet3 resume {quoted} options.walltime='...'"
        return Finding("warning", "walltime", told, fix)
    what = "its machine was at fault" if last.kind == "machine" else "its worker died"
    where = "" if last.start is None else f" at {_items(last.start, last.stop)}"
    told = f"shard {shard} came to nothing {times}: {what}{where} on {last.host}: {last.reason}"
    return Finding("warning", "deaths", told, f"espnet3 logs {quoted} --shard {shard}")


def _items(start: int, stop: int | None) -> str:
    if stop is None or stop - start <= 1:
        return f"position {start}"
    return f"positions {start} to {stop - 1}"


def explain_slow(
    running: Sequence[RunningShard], done: Collection[Done], quoted: str
) -> Iterator[Finding]:
    """Yield shards that take much longer than others did."""
    if not done:
        return
    usual = statistics.median(shard.seconds for shard in done)
    for shard in sorted(running, key=lambda shard: -shard.seconds)[:_MOST]:
        if shard.seconds < max(_LONG_SECONDS, _LONG_TIMES * usual):
            continue
        told = (
            f"shard {shard.shard} runs for {duration(shard.seconds)} on {shard.owner}, others took "
            f"{duration(usual)}; it is at item {shard.n_done:,} of {shard.n_items:,}"
        )
        fix = (
            f"espnet3 logs {quoted} --shard {shard.shard} ; if an item hangs, set "
            "parallel.item_timeout"
        )
        yield Finding("warning", "shard", told, fix)
