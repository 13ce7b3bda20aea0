"""Estimate the duration of a run by simulating the dispatcher."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Forecast:
    """What a number of workers would take, from when they are up."""

    n_workers: int
    n_shards: int
    wall_seconds: float
    work_seconds: float
    """What the items take, without the loading of models."""

    @property
    def worker_seconds(self) -> float:
        """What is asked of the cluster: all workers until the last one is done."""
        return self.n_workers * self.wall_seconds

    @property
    def efficiency(self) -> float:
        """Which part of that goes into items, from 0 to 1."""
        return self.work_seconds / self.worker_seconds if self.wall_seconds else 1.0

    def __add__(self, other: "Forecast") -> "Forecast":
        """Return what both take, one after the other on the same workers."""
        return Forecast(
            self.n_workers,
            self.n_shards + other.n_shards,
            self.wall_seconds + other.wall_seconds,
            self.work_seconds + other.work_seconds,
        )


def forecast(
    shard_seconds: Sequence[float], n_workers: int, *, load_seconds: float = 0.0
) -> Forecast:
    """Hand out shards in their order, each to the worker that is free first.

    Args:
        shard_seconds: what each shard takes, in run order.
        n_workers: that are up from the beginning.
        load_seconds: what each worker takes before its first shard.
    """
    ends = [load_seconds] * min(n_workers, len(shard_seconds))
    for seconds in shard_seconds:
        heapq.heapreplace(ends, ends[0] + seconds)
    wall = max(ends, default=0.0)
    return Forecast(n_workers, len(shard_seconds), wall, sum(shard_seconds))
