"""Figures of the accounting, and how they add up."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from espnet3.io.records import Count, Seconds, Share, parse_value

_MAX_ROWS = 64


@dataclass(frozen=True)
class Usage:
    """Where time went: of a worker, of a node, or of all.

    Load, compute, write, running, lost and idle add up to `seconds`; the wait in the queue is
    before that.
    """

    name: str = ""
    n_workers: Count = 1
    host: str = ""
    job_id: str = ""
    n_shards: Count = 0
    n_items: Count = 0
    seconds: Seconds = 0.0
    """For how long the workers were there."""
    load_seconds: Seconds = 0.0
    """Building what `forward` needs, before the first shard."""
    compute_seconds: Seconds = 0.0
    """In the items of committed shards."""
    write_seconds: Seconds = 0.0
    """Closing the writers, forcing files to disk, checksums."""
    running_seconds: Seconds = 0.0
    """In attempts that are not finished; 0 once the run is complete."""
    lost_seconds: Seconds = 0.0
    """In failed attempts, and in shards that were later recomputed."""
    queue_seconds: Seconds | None = None
    """Between submission and begin; None where it is not known."""
    audio_seconds: Seconds | None = None
    """Of the shards, as far as their costs tell; None where durations are not known."""
    n_deaths: Count = 0

    @property
    def idle_seconds(self) -> float:
        """What is left: starting Python, and having nothing to do while others finish."""
        return max(self.seconds - self.busy_seconds, 0.0)

    @property
    def busy_seconds(self) -> float:
        """All but idle."""
        used = self.load_seconds + self.compute_seconds + self.write_seconds
        return used + self.running_seconds + self.lost_seconds

    @property
    def idle_share(self) -> float:
        """Which part of the time was idle, from 0 to 1."""
        return self.idle_seconds / self.seconds if self.seconds else 0.0

    @property
    def real_time_factor(self) -> float | None:
        """Seconds of computing for a second of audio."""
        return self.compute_seconds / self.audio_seconds if self.audio_seconds else None

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, with what follows from it; what is not known or empty is left out."""
        values = {
            **asdict(self),
            "idle_seconds": self.idle_seconds,
            "idle_share": self.idle_share,
            "real_time_factor": self.real_time_factor,
        }
        return {key: _rounded(value) for key, value in values.items() if value not in (None, "")}


@dataclass(frozen=True)
class Accounting:
    """Cost of a run, in total and per worker."""

    total: Usage
    nodes: list[Usage] = field(default_factory=list)
    workers: list[Usage] = field(default_factory=list)
    """In the order in which they began."""
    padded_share: Share | None = None
    """Which part of what was computed is padding; None without `batch_seconds`."""
    n_queued: Count = 0
    """Workers whose wait is known."""
    longest_queue_seconds: Seconds | None = None
    deaths: dict[str, Count] = field(default_factory=dict)
    """Attempts that ended without a result, by kind: died, machine, walltime."""
    n_generations: Count = 0
    """The longest chain of jobs that followed each other; 0 if nobody was detached."""

    @property
    def worker_hours(self) -> float:
        """Time of all workers."""
        return self.total.seconds / 3600

    def as_dict(self) -> dict[str, Any]:
        """Return plain data of bounded size: what many workers did is summed up."""
        facts = {
            "padded_share": self.padded_share,
            "longest_queue_seconds": self.longest_queue_seconds,
        }
        return {
            "worker_hours": _rounded(self.worker_hours),
            **self.total.as_dict(),
            **{key: _rounded(value) for key, value in facts.items() if value is not None},
            "n_nodes": len(self.nodes),
            "n_queued": self.n_queued,
            "n_generations": self.n_generations,
            "deaths": self.deaths,
            "nodes": [usage.as_dict() for usage in _bounded(self.nodes)],
            "workers": [usage.as_dict() for usage in _bounded(self.workers)],
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any], path: str | os.PathLike[str] = "") -> "Accounting":
        """Undo `as_dict`, but for what it summed up.

        Raises:
            DamagedFileError: naming `path`, the file that the values are from.
        """
        return parse_value({**values, "total": values}, cls, path)


def add_up(name: str, usages: Sequence[Usage]) -> Usage:
    """Return one for all; of what is known of some only, the sum of these."""
    sums: dict[str, Any] = {"n_workers": 0}
    for usage in usages:
        for key, value in asdict(usage).items():
            if value is not None and not isinstance(value, str):
                sums[key] = sums.get(key, 0) + value
    return Usage(name, **sums)


def _bounded(usages: list[Usage]) -> list[Usage]:
    rest = usages[_MAX_ROWS:]
    return [*usages[:_MAX_ROWS], *([add_up(f"{len(rest)} more", rest)] if rest else [])]


def _rounded(value: Any) -> Any:
    return float(f"{value:.9g}") if isinstance(value, float) else value
