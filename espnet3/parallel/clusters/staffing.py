"""How many jobs a cluster should have."""

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from espnet3.parallel.clusters.kept_job import KeptJob

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig

_LOST_PER_WORKER = 3


@dataclass(frozen=True)
class Staffing:
    """The limits on the number of jobs.

    Args:
        maximum: as many are submitted, if there is work for them.
        minimum: as many are kept while the run goes on.
        max_lost: how many lost jobs are replaced.
        idle_seconds: after which a job that nobody needs is ended.
        spares_useful: do not count jobs that had finished a shard: a long run on a short walltime
            loses many of them.
    """

    maximum: int
    minimum: int
    max_lost: int
    idle_seconds: float = math.inf
    spares_useful: bool = False

    def n_wanted(self, n_left: int, n_per_job: int) -> int:
        """Return for how many jobs there is work."""
        return min(math.ceil(n_left / n_per_job), self.maximum)

    def superfluous(
        self, jobs: Iterable[KeptJob], n_wanted: int, idle_since: dict[str, float]
    ) -> list[KeptJob]:
        """Return the jobs to end: first those that never started, then the longest idle."""
        if self.idle_seconds == math.inf:
            return []
        jobs = list(jobs)
        n_excess = len(jobs) - max(n_wanted, self.minimum)
        longest = time.monotonic() - self.idle_seconds
        waiting = [job for job in jobs if job.job_id and job.joined is None]
        idle = [
            job for job in jobs if job.is_connected and idle_since.get(job.name, math.inf) < longest
        ]
        idle.sort(key=lambda job: idle_since[job.name])
        return [*waiting, *idle][: max(n_excess, 0)]


def staffing_of(config: "ParallelConfig") -> Staffing:
    """Return what a config says about the number of jobs."""
    spares_useful = config.max_lost_jobs is None
    max_lost = config.max_lost_jobs
    if max_lost is None:
        max_lost = _LOST_PER_WORKER * config.n_workers
    # With adaptive, this is its maximum, unless there is less work than workers.
    n_jobs = config.n_workers
    if config.adaptive is None:
        return Staffing(n_jobs, n_jobs, max_lost, spares_useful=spares_useful)
    minimum = min(config.adaptive.minimum, n_jobs)
    return Staffing(n_jobs, minimum, max_lost, config.adaptive.idle_seconds, spares_useful)
