"""Count what a process asks of the file system about one folder; and what whole runs ask.

The workers of these runs are processes that do all that a detached worker does, except that they
run the items, which do nothing, themselves and not in a child process.
"""

import builtins
import io
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure
from espnet3.shards.plan import OPERATIONS_PER_SHARD, OPERATIONS_PER_WORKER

WORKERS, SHARDS = (1, 4, 16, 64), (64, 512, 4096)
LONG = 16
"""Shards per worker, as plans have them; where there are fewer, start and end weigh more."""
LIMIT_LOST = 0.5

_BY_PATH = {
    "open": "open", "stat": "stat", "lstat": "stat", "access": "stat", "scandir": "list",
    "listdir": "list", "mkdir": "mkdir", "rmdir": "rmdir", "unlink": "unlink", "remove": "unlink",
    "rename": "rename", "replace": "rename", "link": "link", "utime": "utime", "chmod": "chmod",
}  # fmt: skip
"""Functions of `os`, and what they ask for. Reading, writing and closing belong to the open."""


class FileOperations:
    """Counts operations by kind inside its `with` block, of all threads of this process.

    A large listing is one operation here, though a network file system needs several requests.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._real: list[tuple[Any, str, Callable[..., Any]]] = []
        self.counts: Counter[str] = Counter()

    def __enter__(self) -> "FileOperations":
        for name, kind in _BY_PATH.items():
            self._replace(os, name, kind)
        self._replace(os, "fsync", "fsync")
        self._replace(io, "open", "open")
        self._replace(builtins, "open", "open")
        return self

    def __exit__(self, *exc_info: object) -> None:
        for module, name, real in self._real:
            setattr(module, name, real)

    def _replace(self, module: Any, name: str, kind: str) -> None:
        real = getattr(module, name)
        self._real.append((module, name, real))
        setattr(module, name, self._counting(kind, real))

    def _counting(self, kind: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **values: Any) -> Any:
            if self._is_inside(args, values):
                self.counts[kind] += 1
            return real(*args, **values)

        return call

    def _is_inside(self, args: tuple[Any, ...], values: dict[str, Any]) -> bool:
        """Tell whether a call is about the folder; of a descriptor one cannot tell, so it is."""
        path = args[0] if args else values.get("path", values.get("file", "."))
        if isinstance(path, int) or values.get("dir_fd") is not None:
            return True
        return os.path.abspath(os.fsdecode(path)).startswith(self._folder)


@dataclass(frozen=True)
class Row:
    """What one run of `n_workers` workers over `n_shards` shards asked, on average."""

    n_workers: int
    n_shards: int
    start: float
    """Of a worker, until its first attempt."""
    take: float
    """From the end of an attempt to the begin of the next."""
    attempt: float
    """Folder, position, output file and commit of a shard."""
    rest: float
    """Per shard: waiting, the merge, and the end of workers."""
    lost: float
    """Claims per shard that others were quicker to make."""
    listings: float
    """Of the run folder and of `leases`, per take."""

    @property
    def shard(self) -> float:
        """What a shard takes, without its share of starts."""
        return self.take + self.attempt + self.rest


def run_and_count(n_workers: int, n_shards: int, item_seconds: float = 0.0) -> Row:
    """Run workers, each a process, to the end of a run with trivial items."""
    from benchmarks.many_workers import plan, run_workers  # which counts by this module

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        (folder / "diaries").mkdir()
        plan(folder / "run", n_shards, item_seconds, 1)
        found = run_workers(folder / "run", folder / "diaries", n_workers, lambda: time.sleep(0.1))

    def total(part: str) -> Counter[str]:
        return sum((Counter(getattr(diary, part)) for diary in found), Counter())

    start, takes, attempts = total("start"), total("takes"), total("attempts")
    # Of the other parts: what a worker does that comes when nothing is left belongs there, too.
    rest = total("operations").total() - start.total() - takes.total() - attempts.total()
    began = sum(bool(diary.n_attempts) for diary in found)
    n_takes = max(n_shards - began, 1)
    return Row(
        n_workers,
        n_shards,
        start.total() / began,
        takes.total() / n_takes,
        attempts.total() / n_shards,
        rest / n_shards,
        # The owner file of each worker that began is a link as well.
        (takes["link"] + start["link"] - began - n_shards) / n_shards,
        # One listing per take is that of crash notes.
        max(takes["list"] / n_takes - 1, 0.0),
    )


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table of docs/file-systems.md."""
    yield (
        "| workers | shards | start | take | attempt, commit | wait, merge, end | lost claims | "
        "listings |"
    )
    yield "|--:|--:|--:|--:|--:|--:|--:|--:|"
    for row in rows:
        yield (
            f"| {row.n_workers} | {row.n_shards:,} | {row.start:.0f} | {row.take:.1f} | "
            f"{row.attempt:.1f} | {row.rest:.1f} | {row.lost:.2f} | {row.listings:.2f} |"
        )


def measure() -> Iterator[Figure]:
    """Run it all, print the table, and compare it with what plans assume; some ten minutes."""
    rows = [run_and_count(w, s) for s in SHARDS for w in WORKERS]
    print("\n".join(table(rows)))
    for row in rows:
        run = f"{row.n_workers} workers, {row.n_shards:,} shards"
        yield Figure(f"{run}: operations to start", row.start, "", limit=OPERATIONS_PER_WORKER)
        is_long = row.n_shards >= LONG * row.n_workers
        limit = OPERATIONS_PER_SHARD if is_long else None
        yield Figure(f"{run}: operations per shard", row.shard, "", limit=limit)
        limit = LIMIT_LOST if is_long else None
        yield Figure(f"{run}: lost claims per shard", row.lost, "", limit=limit)
