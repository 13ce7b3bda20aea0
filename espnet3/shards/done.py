"""What a committed shard says of itself: the content of its `done` file."""

import time
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Done:
    """What a committed shard says of itself."""

    run_id: str
    shard: int
    start: int
    stop: int
    n_failed: int = 0
    seconds: float = 0.0
    load_seconds: float = 0.0
    finished: float = field(default_factory=time.time)
    host: str = ""
    pid: int = 0
    files: dict[str, dict[str, int]] = field(default_factory=dict)
    summary: Any = None
    n_halved: int = 0
    """Batches that were too large for the memory."""
    started: float | None = None
    """When the attempt began, by the worker's clock, loading included; None in older folders."""
    n_deaths: int = 0
    """Workers that died at this shard before."""
    owner_id: str = ""
    """The owner, in `leases/`, for whom the worker ran it: a driver, or a detached worker."""

    @property
    def n_items(self) -> int:
        """Items of the shard, failed ones included."""
        return self.stop - self.start

    @property
    def n_written(self) -> int:
        """Items that have a result."""
        return self.n_items - self.n_failed
