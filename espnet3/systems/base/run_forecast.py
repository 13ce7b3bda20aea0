"""Forecast the rest of a run for any number of workers."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from espnet3.parallel.forecast import Forecast, forecast
from espnet3.shards.manifest import Manifest
from espnet3.shards.plan import Plan, run_order
from espnet3.systems.base.known_rate import KnownRate
from espnet3.systems.base.run_description import (
    FolderState,
    PlannedRun,
    look_at_folder,
    plan_shards,
)

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig


@dataclass(frozen=True)
class Left:
    """Shards that are not done, in run order."""

    costs: list[float]
    n_items: int
    share: float
    """Of the whole run's cost, from 0 to 1."""


class ExpectedRun:
    """A requested run, as it would resume from its folder.

    Args:
        run: of a stage.
        parallel: where it would run.
        rate: how fast, if that is known.
    """

    def __init__(self, run: PlannedRun, parallel: "ParallelConfig", rate: KnownRate | None) -> None:
        self.run = run
        self.parallel = parallel
        self.rate = rate

    @cached_property
    def state(self) -> FolderState:
        """What the folder holds."""
        return look_at_folder(self.run)

    @cached_property
    def plan(self) -> Plan:
        """Its plan if it started from scratch."""
        return plan_shards(self.run, self.parallel)

    @property
    def manifest(self) -> Manifest | None:
        """The plan that it would resume; None if it would start from scratch."""
        is_kept = self.run.runner.resume and not self.state.refused
        return self.state.manifest if is_kept else None

    def left(self, n_workers: int | None = None) -> Left:
        """Return what there is to do: all of a new plan, or what is missing of one begun."""
        manifest = self.manifest
        if manifest is None:
            is_own = n_workers in (None, self.parallel.n_workers)
            plan = self.plan if is_own else plan_shards(self.run, self.parallel, n_workers)
            return Left([plan.costs[shard] for shard in plan.order], self.run.n_items, 1.0)
        if self.state.is_complete:
            return Left([], 0, 0.0)
        todo = [shard for shard in run_order(manifest.costs) if self._is_to_run(shard)]
        costs = [manifest.costs[shard] for shard in todo]
        n_items = sum(manifest.bounds[shard + 1] - manifest.bounds[shard] for shard in todo)
        return Left(costs, n_items, sum(costs) / (sum(manifest.costs) or 1.0))

    def _is_to_run(self, shard: int) -> bool:
        done = self.state.committed.get(shard)
        return done is None or (self.run.runner.retry_failed and done.n_failed > 0)

    def shard_seconds(self, n_workers: int | None = None) -> list[float]:
        """Return what each shard that is left takes, in run order; needs a rate."""
        assert self.rate is not None
        left = self.left(n_workers)
        total = sum(left.costs)
        return [self.rate.work_seconds * left.share * cost / total for cost in left.costs]

    def forecast(self, n_workers: int) -> Forecast:
        """Return how long it takes on so many workers; needs a rate."""
        assert self.rate is not None
        seconds = self.shard_seconds(n_workers)
        return forecast(seconds, n_workers, load_seconds=self.rate.load_seconds)

    def balance(self) -> float:
        """Return which part of their time the workers would be busy, by the costs alone."""
        return forecast(self.left().costs, self.parallel.n_workers).efficiency
