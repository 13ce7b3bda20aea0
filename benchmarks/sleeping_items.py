"""Items that take a known time, and workers that are slow or late: for `spread` and `clusters`."""

import os
import random
import socket
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from espnet3.parallel.base_runner import BaseRunner

N_ITEMS = 1_000
MEAN_SECONDS = 0.020


class Span(NamedTuple):
    """When an item ran, by the wall clock, and on whom."""

    worker: str
    speed: float
    begin: float
    end: float


def draw_costs(seed: int, n_items: int = N_ITEMS) -> list[float]:
    """Return lognormal seconds, sorted: the long items are neighbours, as in many datasets."""
    draw = random.Random(seed)
    costs = sorted(draw.lognormvariate(0.0, 1.0) for _ in range(n_items))
    scale = MEAN_SECONDS * n_items / sum(costs)
    return [cost * scale for cost in costs]


def sleep_for(cost: float, speed: float = 1.0) -> Span:
    """Work on an item, at a worker's speed."""
    begin = time.time()
    time.sleep(cost / speed)
    # Not the pid alone: nodes number their processes alike.
    worker = f"{socket.gethostname()}:{os.getpid()}"
    return Span(worker, speed, begin, time.time())


class UnevenWorkers:
    """A provider whose workers have the given speeds, and are ready after the given seconds."""

    def __init__(self, seed: int, speeds: dict[int, float], delays: dict[int, float]) -> None:
        self.seed, self.speeds, self.delays = seed, speeds, delays

    def build_env_local(self) -> dict[str, Any]:
        """Return the costs for a run in this process."""
        return {"costs": draw_costs(self.seed), "speed": 1.0}

    def build_worker_setup_fn(self) -> Callable[[], dict[str, Any]]:
        """Return a set-up that depends on the worker's rank."""
        seed, speeds, delays = self.seed, self.speeds, self.delays

        def setup() -> dict[str, Any]:
            rank = int(os.environ["LOCAL_RANK"])
            time.sleep(delays.get(rank, 0.0))
            return {"costs": draw_costs(seed), "speed": speeds.get(rank, 1.0)}

        return setup


class EvenWorkers:
    """A provider for any number of items, on workers that are all alike."""

    def __init__(self, seed: int, n_items: int = N_ITEMS) -> None:
        self.seed, self.n_items = seed, n_items

    def build_env_local(self) -> dict[str, Any]:
        """Return the costs."""
        return {"costs": draw_costs(self.seed, self.n_items), "speed": 1.0}

    def build_worker_setup_fn(self) -> Callable[[], dict[str, Any]]:
        """Return the same for workers."""
        return self.build_env_local


class SleepRunner(BaseRunner):
    """Sleeps as long as an item costs, and tells when it did."""

    @staticmethod
    def forward(idx, costs, speed):
        """Work on one item."""
        return sleep_for(costs[idx], speed)
