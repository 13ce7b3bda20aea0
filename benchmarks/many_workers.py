"""Leases and status of a run with 2,000 shards and 64 workers, in one folder of this machine.

The items sleep, so that 64 workers fit onto any number of cores. Each is a process that does all
that a detached worker does, except that it runs the items itself and not in a child process. Time
in which it waits for a core does not count: real workers do not share two of them.
"""

import json
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle

from benchmarks.figures import Figure
from benchmarks.file_operations import FileOperations
from espnet3.parallel import BaseRunner, use_parallel
from espnet3.parallel.detached.control import SharedWorkers
from espnet3.parallel.detached.worker import DetachedWorker
from espnet3.parallel.open_pool import InlinePool
from espnet3.parallel.signals import EndSignals
from espnet3.parallel.tasks import Event
from espnet3.shards.commit import Done
from espnet3.shards.manifest import load_manifest
from espnet3.shards.merge import check_complete, concat_files, read_success
from espnet3.shards.records import Identity

N_SHARDS = 2_000
N_WORKERS = 64
ITEMS_PER_SHARD = 4
ITEM_SECONDS = 1.0
STATUS_SECONDS = 5.0
LIMIT_SHARE = 0.03
LIMIT_OPERATIONS = 100


class Nap:
    """A provider of how long an item takes."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def build_env_local(self) -> dict[str, Any]:
        """Return it."""
        return {"seconds": self.seconds}

    def build_worker_setup_fn(self) -> Callable[[], dict[str, Any]]:
        """Return the same for workers."""
        return self.build_env_local


class Sleeper(BaseRunner):
    """Sleeps, and writes a line."""

    @staticmethod
    def forward(idx, seconds):
        """Work on one item."""
        time.sleep(seconds)
        return f"utt{idx} slept\n"

    @staticmethod
    def open_writers(shard_dir):
        """Open a text file."""
        return (shard_dir / "text").open("w")

    @staticmethod
    def write_record(writers, result, state):
        """Write a line."""
        writers.write(result)

    @staticmethod
    def close_writers(writers, state):
        """Close the file."""
        writers.close()

    def merge(self, shard_dirs):
        """Join the lines."""
        concat_files(shard_dirs, "text", self.output_dir / "text")


@dataclass
class Diary:
    """What one worker did with its time."""

    n_attempts: int = 0
    work_seconds: float = 0.0
    """In `forward`."""
    commit_seconds: float = 0.0
    """Beside it in attempts: folders, files, the commit."""
    lease_seconds: float = 0.0
    """Between two attempts: all that it takes to come from one shard to the next."""
    queue_seconds: float = 0.0
    """Between two attempts as well, but in wait for a core of this machine, which it shares."""
    operations: dict[str, int] = field(default_factory=dict)
    start: dict[str, int] = field(default_factory=dict)
    """Operations before the first attempt, the first shard's claim included."""
    takes: dict[str, int] = field(default_factory=dict)
    """Operations between two attempts."""
    attempts: dict[str, int] = field(default_factory=dict)
    """Operations of attempts, commits included."""


class DiaryPool(InlinePool):
    """Runs attempts in this process, and notes the time in and between them."""

    def __init__(self, packed: bytes, diary: Diary, counts: Counter[str]) -> None:
        super().__init__(cloudpickle.loads(packed))
        self._diary, self._counts = diary, counts
        self._counted: Counter[str] = Counter()
        self._last_end: float | None = None
        self._last_queued = 0.0

    def poll(self, timeout: float) -> list[Event]:
        """Run the attempt that was submitted, if any."""
        if self._task is None:
            self._last_end = None  # nothing to do: this is no price of leases
            return super().poll(timeout)
        begin, queued = time.monotonic(), _queued()
        self._count(self._diary.takes if self._diary.n_attempts else self._diary.start)
        if self._last_end is not None:
            waited = queued - self._last_queued
            self._diary.lease_seconds += begin - self._last_end - waited
            self._diary.queue_seconds += waited
        events = super().poll(timeout)
        self._count(self._diary.attempts)
        self._last_end, self._last_queued = time.monotonic(), _queued()
        self._note(events[0].result.done, self._last_end - begin)
        return events

    def _count(self, part: dict[str, int]) -> None:
        """Add what was asked since the last call to one part of the diary."""
        now = Counter(self._counts)
        for kind, n in (now - self._counted).items():
            part[kind] = part.get(kind, 0) + n
        self._counted = now

    def _note(self, done: Done, seconds: float) -> None:
        self._diary.n_attempts += 1
        self._diary.work_seconds += done.seconds
        self._diary.commit_seconds += seconds - done.seconds


def _queued() -> float:
    """Return for how many seconds this thread could have run, had there been a core for it."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


def plan(
    root: Path, n_shards: int, item_seconds: float, items_per_shard: int = ITEMS_PER_SHARD
) -> None:
    """Lay out a detached run, and start no workers for it."""
    runner = Sleeper(Nap(item_seconds), output_dir=root)
    values = {"env": "local", "mode": "async", "shards_per_worker": n_shards}
    with use_parallel(values) as config:
        runner(range(n_shards * items_per_shard), client=SharedWorkers(config))


def work(root: Path, diaries: Path) -> None:
    """Be one worker, and leave a diary."""
    diary = Diary()
    operations = FileOperations(root)

    def open_pool(packed: bytes) -> DiaryPool:
        return DiaryPool(packed, diary, operations.counts)

    with operations:
        DetachedWorker(root, Identity(), EndSignals(), open_pool=open_pool).work()
    diary.operations = dict(operations.counts)
    (diaries / f"{os.getpid()}.json").write_text(json.dumps(asdict(diary)))


def run_workers(
    root: Path, diaries: Path, n_workers: int, on_wait: Callable[[], object] = bool
) -> list[Diary]:
    """Let as many processes work on a run to its end, and return their diaries.

    They are forks of this process: 64 that each import everything would wait for the cores.
    """
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=work, args=(root, diaries)) for _ in range(n_workers)]
    for process in processes:
        process.start()
    while any(process.is_alive() for process in processes):
        on_wait()
    assert all(process.exitcode == 0 for process in processes)
    return [Diary(**json.loads(path.read_text())) for path in diaries.glob("*.json")]


class StatusWatch:
    """Asks for the status every few seconds, as a user who watches does."""

    def __init__(self, root: Path) -> None:
        self._command = [sys.executable, "-m", "espnet3.cli", "status", str(root)]
        self._next = time.monotonic()
        self.cpu_seconds: list[float] = []

    def look(self) -> None:
        """Ask if it is time, or wait a little."""
        time.sleep(0.2)
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + STATUS_SECONDS
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(self._command, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.cpu_seconds.append(_cpu(after) - _cpu(before))


def _cpu(usage: resource.struct_rusage) -> float:
    return usage.ru_utime + usage.ru_stime


def measure() -> Iterator[Figure]:
    """Run it all; about three minutes."""
    with tempfile.TemporaryDirectory() as folder:
        root, diaries = Path(folder).resolve() / "run", Path(folder) / "diaries"
        diaries.mkdir()
        plan(root, N_SHARDS, ITEM_SECONDS)
        watch = StatusWatch(root)
        begin = time.monotonic()
        found = run_workers(root, diaries, N_WORKERS, watch.look)
        elapsed = time.monotonic() - begin
        manifest = load_manifest(root)
        assert manifest is not None
        assert len(check_complete(root, manifest).committed) == N_SHARDS
        assert read_success(manifest.layout(root), manifest.run_id) is not None
    yield from _figures(found, watch, elapsed)


def _figures(diaries: list[Diary], watch: StatusWatch, elapsed: float) -> Iterator[Figure]:
    run = f"{N_SHARDS:,} shards, {N_WORKERS} workers"
    work_seconds = sum(diary.work_seconds for diary in diaries)
    lease_seconds = sum(diary.lease_seconds for diary in diaries)
    n_attempts = sum(diary.n_attempts for diary in diaries)
    spent = lease_seconds + sum(watch.cpu_seconds)
    yield Figure(
        f"{run}: leases and status, share of the work", 100 * spent / work_seconds, "%",
        limit=100 * LIMIT_SHARE,
    )  # fmt: skip
    operations: Counter[str] = Counter()
    for diary in diaries:
        operations.update(diary.operations)
    yield Figure(
        "the same: file-system operations per shard", operations.total() / N_SHARDS, "",
        limit=LIMIT_OPERATIONS,
    )  # fmt: skip
    kinds = ", ".join(f"{kind} {n / N_SHARDS:.1f}" for kind, n in operations.most_common())
    yield Figure(f"beside: of these {kinds}; attempts per shard", n_attempts / N_SHARDS, "")
    yield Figure("beside: from one shard to the next", 1000 * lease_seconds / n_attempts, "ms")
    queue_seconds = sum(diary.queue_seconds for diary in diaries)
    yield Figure("beside: then, wait for a core", 1000 * queue_seconds / n_attempts, "ms")
    commit_seconds = sum(diary.commit_seconds for diary in diaries)
    yield Figure("beside: files and commit of a shard", 1000 * commit_seconds / n_attempts, "ms")
    yield Figure(
        "beside: CPU of one `espnet3 status`", sum(watch.cpu_seconds) / len(watch.cpu_seconds), "s"
    )
    ideal = N_SHARDS * ITEMS_PER_SHARD * ITEM_SECONDS / N_WORKERS
    yield Figure("beside: the whole run; against the work by 64", elapsed, "s", ideal)
