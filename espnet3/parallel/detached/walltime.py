"""Walltime of a worker, and which shards fit into the rest of it."""

import os
import shlex
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from espnet3.io.clock import steady_time
from espnet3.schedulers import Scheduler, possible_schedulers, scheduler_of
from espnet3.shards.commit import Done
from espnet3.shards.manifest import Manifest
from espnet3.shards.records import DeathNote

_MIN_MARGIN, _MAX_MARGIN, _MARGIN_SHARE = 5.0, 60.0, 0.05
_REMEMBERED = 8
_SAFETY = 1.2
_WHOLE_TIME = 0.75
_MIN_CUTS = 2


@dataclass(frozen=True)
class Walltime:
    """The time of one worker, in seconds since 1970; `limit` is None if there is no limit."""

    started: float
    limit: float | None = None
    env: str = ""
    """Backend of the worker, which decides how messages spell times."""

    @property
    def total(self) -> float:
        """For how long the worker may run."""
        return float("inf") if self.limit is None else max(self.limit - self.started, 0.0)

    @property
    def margin(self) -> float:
        """What is kept for commits and for handing over."""
        return min(max(self.total * _MARGIN_SHARE, _MIN_MARGIN), _MAX_MARGIN)

    @property
    def usable(self) -> float:
        """For how long the longest shard may run in a new worker."""
        return self.total - self.margin

    def left(self, now: float | None = None) -> float:
        """Return for how long a shard that begins now may run."""
        if self.limit is None:
            return float("inf")
        return self.limit - self.margin - (steady_time() if now is None else now)

    def is_over(self, now: float | None = None) -> bool:
        """Tell whether it is time to hand back what is not finished."""
        # Half of the margin may be used to finish; the rest is for giving claims back.
        return self.left(now) < -self.margin / 2

    def is_fresh(self, now: float | None = None) -> bool:
        """Tell whether a new worker would not have much more time."""
        return self.left(now) >= (1 - _MARGIN_SHARE) * self.usable - _MIN_MARGIN


def find_walltime(
    started: float,
    walltime: float | None,
    environ: Mapping[str, str] = os.environ,
    *,
    ahead: float = 0.0,
    env: str = "",
) -> Walltime:
    """Return when this process will be ended: as the scheduler says, else as it was asked.

    Args:
        started: when the process began.
        walltime: what the job asked for, in seconds.
        environ: of the job.
        ahead: how many seconds this machine's clock is ahead of that of others, such as the
            scheduler's, which says when the job ends.
        env: the backend of the process, if it is known.
    """
    for scheduler in possible_schedulers(env, environ):
        with suppress(ValueError):
            if (end := scheduler.end_time(environ)) is not None:
                # What the scheduler granted wins: it may be less than what was asked for.
                return Walltime(started, end + ahead, env)
            if (seconds := scheduler.granted_seconds(environ)) is not None:
                return Walltime(started, started + seconds, env)
    return Walltime(started, None if walltime is None else started + walltime, env)


def process_start() -> float:
    """Return when this process began, which may be seconds ago on a busy machine."""
    try:
        with open("/proc/self/stat") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        with open("/proc/uptime") as file:
            uptime = float(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return steady_time()
    return steady_time() - max(uptime - ticks / os.sysconf("SC_CLK_TCK"), 0.0)


@dataclass
class Pace:
    """How long shards take, from those that are done and those that were cut off."""

    manifest: Manifest
    seconds_per_cost: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    load_seconds: float = 0.0
    at_least: dict[int, float] = field(default_factory=dict)
    """Seconds after which an attempt was cut off by the walltime, by shard."""
    n_cuts: dict[int, int] = field(default_factory=dict)

    def learn(self, done: Done) -> None:
        """Take a finished shard into account."""
        cost = self.manifest.costs[done.shard]
        if cost > 0:
            self.seconds_per_cost.append(done.seconds / cost)
        if done.load_seconds:
            self.load_seconds = done.load_seconds

    def learn_cuts(self, notes: Iterable[DeathNote], usable: float) -> None:
        """Take into account what the walltime cut off, `usable` being that of a new worker."""
        self.at_least, self.n_cuts = {}, {}
        for note in notes:
            if note.kind == "walltime":
                shard = note.shard
                self.at_least[shard] = max(self.at_least.get(shard, 0.0), note.seconds)
                if note.seconds > _WHOLE_TIME * usable:
                    self.n_cuts[shard] = self.n_cuts.get(shard, 0) + 1

    def expected(self, shard: int) -> float | None:
        """Return how long a shard is expected to take, once loaded; None if nothing is known."""
        if not self.seconds_per_cost:
            return self.at_least.get(shard)
        mean = sum(self.seconds_per_cost) / len(self.seconds_per_cost)
        return max(mean * self.manifest.costs[shard], self.at_least.get(shard, 0.0))

    def longest(self) -> float | None:
        """Return how long the costliest shard may take, with loading; None if nothing is known."""
        if not self.seconds_per_cost:
            return None
        return max(self.seconds_per_cost) * max(self.manifest.costs) + self.load_seconds

    def needed(self, shard: int, *, is_loaded: bool) -> float:
        """Return the time to keep free for a shard, loading included."""
        load = 0.0 if is_loaded else self.load_seconds
        # By the slowest shard seen: one that is cut off by the walltime is lost as a whole.
        slowest = max(self.seconds_per_cost, default=0.0) * self.manifest.costs[shard]
        return max(_SAFETY * (self.expected(shard) or 0.0), slowest) + load

    def is_hopeless(self, shard: int) -> bool:
        """Tell whether a shard was cut off again and again after a whole walltime."""
        return self.n_cuts.get(shard, 0) >= _MIN_CUTS


def too_long(root: Path, pace: Pace, shard: int, walltime: Walltime) -> str:
    """Say that a shard cannot be done within the walltime."""
    spelled = (scheduler_of(walltime.env) or Scheduler()).spell_time(int(2 * walltime.total))
    return (
        f"Shard {shard} cannot be finished within the walltime of {walltime.total:.0f} s: "
        f"{pace.n_cuts[shard]} attempts were cut off, the longest after "
        f"{pace.at_least[shard]:.0f} s. Ask for a longer one, which keeps what is done: "
        f"espnet3 resume {shlex.quote(str(root))} options.walltime='{spelled}'; or start from "
        "scratch with more and smaller shards: parallel.shards_per_worker=64 and resume=False."
    )
