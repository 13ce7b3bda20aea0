"""Walltime of a worker."""

import os
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from espnet3.io.clock import steady_time
from espnet3.schedulers import Scheduler, possible_schedulers, scheduler_of
from espnet3.shards.open_shards import Pace

# A share of the time, so that jobs of minutes work as well; bounded, as a commit takes seconds.
_MIN_MARGIN, _MAX_MARGIN, _MARGIN_SHARE = 5.0, 60.0, 0.05


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
        """Seconds kept for commits and for handing over."""
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
        # What a variable or command has may be no number; the walltime that was asked for remains.
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
            # From the last parenthesis: the name of a program may contain blanks and parentheses.
            ticks = int(file.read().rpartition(")")[2].split()[19])
        with open("/proc/uptime") as file:
            uptime = float(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return steady_time()
    return steady_time() - max(uptime - ticks / os.sysconf("SC_CLK_TCK"), 0.0)


def too_long(root: Path, pace: Pace, shard: int, walltime: Walltime) -> str:
    """Say that a shard cannot be done within the walltime."""
    # Twice as long is a guess, but a line to paste needs a value.
    spelled = (scheduler_of(walltime.env) or Scheduler()).spell_time(int(2 * walltime.total))
    return (
        f"Shard {shard} cannot be finished within the walltime of {walltime.total:.0f} s: "
        f"{pace.n_cuts[shard]} attempts were cut off, the longest after "
        f"{pace.at_least[shard]:.0f} s. Ask for a longer one, which keeps what is done: "
        f"espnet3 resume {shlex.quote(str(root))} options.walltime='{spelled}'; or start from "
        "scratch with more and smaller shards: parallel.shards_per_worker=64 and resume=False."
    )
