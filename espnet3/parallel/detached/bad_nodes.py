"""Find nodes on which attempts keep failing; workers and jobs avoid them."""

import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from espnet3.shards.commit import Done
from espnet3.shards.manifest import Manifest
from espnet3.shards.merge import read_coverage
from espnet3.shards.records import DeathNote, RecordPaths, read_deaths

MIN_SHARDS = 3
"""Different shards that must have died on a node."""
MEMORY_SECONDS = 3600.0
"""For how long a node is held to what happened there: it may have been mended."""


def bad_nodes(root: Path, manifest: Manifest, host: str | None = None) -> dict[str, str]:
    """Return the nodes to avoid, each with the reason; with `host`, as far as it is this one."""
    now = time.time()
    notes = [
        note
        for note in read_deaths(RecordPaths(root))
        if note.time > now - MEMORY_SECONDS and host in (None, note.host)
    ]
    died = {(note.host, note.shard) for note in notes if note.kind != "walltime"}
    n_shards = Counter(name for name, _ in died)
    if max(n_shards.values(), default=0) < MIN_SHARDS:
        return {}  # nearly always; and then no shard need be looked at
    return judge_nodes(notes, read_coverage(root, manifest).committed.values(), now)


def judge_nodes(
    notes: Iterable[DeathNote], committed: Iterable[Done], now: float
) -> dict[str, str]:
    """Return the nodes where several shards died and none was done since, but was elsewhere.

    If all nodes fail, the node is not to blame.
    """
    last: dict[str, float] = {}
    for done in committed:
        last[done.host] = max(last.get(done.host, 0.0), done.finished)
    by_host: dict[str, list[DeathNote]] = {}
    for note in notes:
        is_recent = note.time > max(now - MEMORY_SECONDS, last.get(note.host, 0.0))
        if note.kind != "walltime" and is_recent and note.host:
            by_host.setdefault(note.host, []).append(note)
    bad = {}
    for host, found in by_host.items():
        shards = sorted({note.shard for note in found})
        since = min(note.time for note in found)
        others = [finished for other, finished in last.items() if other != host]
        if len(shards) >= MIN_SHARDS and max(others, default=0.0) > since:
            bad[host] = _why(found, shards)
    return bad


def _why(notes: list[DeathNote], shards: list[int]) -> str:
    shown = ", ".join(map(str, shards[:5])) + (", ..." if len(shards) > 5 else "")
    latest = max(notes, key=lambda note: note.time)
    return (
        f"attempts at {len(shards)} shards ({shown}) ended there without a result, and none was "
        f"finished since; the last one: {latest.reason}"
    )
