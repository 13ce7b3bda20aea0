"""What a committed shard says of itself: the content of its `done` file."""

import time
from dataclasses import dataclass, field
from typing import Any

from espnet3.io.records import Count, Moment, Pid, Seconds

_FILE_FACTS = frozenset(("files", "bytes", "crc32", "lines"))


@dataclass(frozen=True)
class Done:
    """What a committed shard says of itself."""

    run_id: str
    shard: Count
    start: Count
    stop: Count
    n_failed: Count = 0
    seconds: Seconds = 0.0
    load_seconds: Seconds = 0.0
    finished: Moment = field(default_factory=time.time)
    host: str = ""
    pid: Pid = 0
    files: dict[str, dict[str, int]] = field(default_factory=dict)
    summary: Any = None
    n_halved: Count = 0
    """Batches that were too large for the memory."""
    started: Moment | None = None
    """When the attempt began, by the worker's clock, loading included; None in older folders."""
    n_deaths: Count = 0
    """Workers that died at this shard before."""
    owner_id: str = ""
    """The owner, in `leases/`, for whom the worker ran it: a driver, or a detached worker."""

    def problem(self) -> str:
        """Return in which way it makes no sense; empty if it does."""
        if self.stop <= self.start:
            return f"stop: {self.stop} is not behind start, {self.start}"
        if self.n_failed > self.n_items:
            return f"n_failed: {self.n_failed} of {self.n_items} items"
        for name, entry in self.files.items():
            if not _FILE_FACTS.issubset(entry) or min(entry.values()) < 0:
                return f"files: {name!r:.60} is not told by {', '.join(sorted(_FILE_FACTS))}"
        return ""

    @property
    def n_items(self) -> int:
        """Items of the shard, failed ones included."""
        return self.stop - self.start

    @property
    def n_written(self) -> int:
        """Items that have a result."""
        return self.n_items - self.n_failed
