"""Simulate many workers on one metadata server: how much of their time goes into items.

Nobody here has ten thousand machines. What a worker asks of the file system is counted by
`file_operations`; this says from these counts, event by event, what a server makes of it. Assumed:

- The server serves one operation after the other, in the order of their arrival, each in the same
  time; an answer is back after the latency, besides. A worker waits for each answer before it asks
  for the next. Operations arrive in groups of `GROUP`, which makes queues longer, not shorter.
- Heartbeats and other signs of life come from a thread: they load the server, and nobody waits.
- All workers start in the first minute, each at a random moment. Python and its modules come from
  elsewhere: a local disk, a container, or a cache of the node.
- A shard takes its mean time, give or take 20%. Each belongs to a worker at random, so parts are of
  less equal size than `own_part` makes them.
- What others claimed within the last `stale` seconds looks free. A claim that is lost for it costs
  `LOST` operations; the second and the sixth of a take cost a listing as well, of `PER_REPLY` names
  in a reply, and after the tenth the worker pauses.
- A worker's time ends when nothing is left to take. Neither the merge, by one worker, nor the wait
  for the slowest is in it: both depend on the plan, not on the server.
"""

import heapq
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.figures import Figure
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.open_pool import shards_to_aim_at
from espnet3.shards.plan import (
    OPERATIONS_PER_SECOND,
    OPERATIONS_PER_SHARD,
    OPERATIONS_PER_WORKER,
    SERVER_RATE,
)

WORKERS, SECONDS = (100, 1_000, 10_000), (1.0, 30.0, 300.0)
LATENCY, STALE, START_SECONDS = 0.002, 60.0, 60.0
GROUP, LOST, PER_REPLY = 10, 6, 1_000
FIRST_PAUSE, MAX_PAUSE, MAX_TRIES = 0.5, 15.0, 10
GOALS = {(1_000, 30.0): 0.97, (10_000, 300.0): 0.95}


@dataclass(frozen=True)
class Load:
    """What workers do, and what they ask for."""

    n_workers: int
    n_shards: int
    shard_seconds: float
    per_shard: float = OPERATIONS_PER_SHARD
    per_worker: float = OPERATIONS_PER_WORKER
    per_second: float = OPERATIONS_PER_SECOND
    rate: float = SERVER_RATE
    latency: float = LATENCY
    stale: float = STALE


@dataclass
class Outcome:
    """What came of it."""

    work_seconds: float = 0.0
    worker_seconds: float = 0.0
    """Of all workers, from their start until they find nothing to take."""
    n_operations: float = 0.0
    n_lost: int = 0
    end: float = 0.0

    @property
    def efficiency(self) -> float:
        """Which part of their time workers spent on items, from 0 to 1."""
        return self.work_seconds / self.worker_seconds


@dataclass
class _Worker:
    part: deque[int]
    started: float
    owed: float
    """Operations that are to be answered before it goes on."""
    has_shard: bool = False
    pause: float = FIRST_PAUSE


class Simulation:
    """A run of `load`, by events in the order of time."""

    def __init__(self, load: Load, seed: int = 0) -> None:
        self._load, self._random = load, random.Random(seed)
        self._free_at = 0.0
        self._claimed: dict[int, float] = {}
        self._recent: deque[float] = deque()
        self._others = list(range(load.n_shards))
        self._random.shuffle(self._others)
        self.outcome = Outcome()

    def run(self) -> Outcome:
        """Return what came of it when all workers have ended."""
        load, workers = self._load, self._workers()
        events = [(worker.started, number) for number, worker in enumerate(workers)]
        heapq.heapify(events)
        while events:
            now, number = events[0]
            then = self._go_on(workers[number], now)
            if then is None:
                heapq.heappop(events)
                self.outcome.worker_seconds += now - workers[number].started
                self.outcome.end = max(self.outcome.end, now)
            else:
                heapq.heapreplace(events, (then, number))
        assert len(self._claimed) == load.n_shards
        return self.outcome

    def _workers(self) -> list[_Worker]:
        load = self._load
        parts: list[deque[int]] = [deque() for _ in range(load.n_workers)]
        for shard in range(load.n_shards):
            parts[self._random.randrange(load.n_workers)].append(shard)
        return [
            _Worker(part, self._random.uniform(0, START_SECONDS), load.per_worker) for part in parts
        ]

    def _go_on(self, worker: _Worker, now: float) -> float | None:
        """Return when a worker does its next step; None if it has ended."""
        if worker.owed > 0:
            n = min(worker.owed, GROUP)
            worker.owed -= n
            return self._serve(n, now) + n * self._load.latency
        if not worker.has_shard:
            return self._take(worker, now)
        worker.has_shard = False
        seconds = self._load.shard_seconds * self._random.uniform(0.8, 1.2)
        self.outcome.work_seconds += seconds
        self._serve(seconds * self._load.per_second, now)
        worker.owed = self._load.per_shard
        return now + seconds

    def _serve(self, n_operations: float, now: float) -> float:
        """Return when the server has done with some operations that arrive now."""
        self.outcome.n_operations += n_operations
        self._free_at = max(self._free_at, now) + n_operations / self._load.rate
        return self._free_at

    def _take(self, worker: _Worker, now: float) -> float | None:
        n_lost = 0
        while (shard := self._choose(worker, now)) is not None and shard in self._claimed:
            n_lost += 1
            if n_lost == MAX_TRIES:
                break
        self.outcome.n_lost += n_lost
        names = self._load.n_shards + self._load.n_workers
        worker.owed = n_lost * LOST + ((n_lost >= 2) + (n_lost >= 6)) * names / PER_REPLY
        if shard is None:
            return None
        if n_lost == MAX_TRIES:
            pause, worker.pause = worker.pause, min(worker.pause * 1.5, MAX_PAUSE)
            return now + pause
        worker.pause = FIRST_PAUSE
        self._claimed[shard] = now
        self._recent.append(now)
        worker.has_shard = True
        return now

    def _choose(self, worker: _Worker, now: float) -> int | None:
        """Return a shard that looks free: of the worker's own ones, or else any."""
        while worker.part:
            shard = worker.part.popleft()
            if now - self._claimed.get(shard, now) <= self._load.stale:
                return shard
        while self._recent and now - self._recent[0] > self._load.stale:
            self._recent.popleft()
        n_free = self._load.n_shards - len(self._claimed)
        if not n_free:
            return None
        if self._random.random() * (n_free + len(self._recent)) >= n_free:
            return next(iter(self._claimed))  # one that only looks free
        while self._others[-1] in self._claimed:
            self._others.pop()
        return self._others[-1]


def simulate(n_workers: int, shard_seconds: float) -> Outcome:
    """Simulate a run that is cut as a plan for so many workers would cut it."""
    n_shards = shards_to_aim_at(ParallelConfig(n_workers=n_workers))
    return Simulation(Load(n_workers, n_shards, shard_seconds)).run()


def measure() -> Iterator[Figure]:
    """Simulate each number of workers with each length of shards; about a minute."""
    for n_workers in WORKERS:
        for seconds in SECONDS:
            found = simulate(n_workers, seconds)
            run = f"{n_workers:,} workers, shards of {seconds:g} s"
            goal = GOALS.get((n_workers, seconds))
            yield Figure(
                f"{run}: time lost to files", 100 * (1 - found.efficiency), "%",
                limit=None if goal is None else 100 * (1 - goal),
            )  # fmt: skip
            rate = found.n_operations / found.end
            yield Figure(f"beside: {run}: operations a second", rate, "")
