"""What a committed shard says of itself: the content of its `done` file."""

import math
import os
import time
from dataclasses import dataclass, field
from typing import Any

from espnet3.io.records import DamagedFileError, parse_record

_OF_ENTRY = {"files", "bytes", "crc32", "lines"}


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
    """Amount and checksum of each file, and of each subfolder (`wav/`) as a whole."""
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


def parse_done(content: bytes, path: str | os.PathLike[str]) -> Done:
    """Return what the content of a `done` says.

    Raises:
        DamagedFileError: It is not what a commit wrote.
    """
    done = parse_record(content, Done, path)
    times = (done.seconds, done.load_seconds, done.finished, done.started or 0.0)
    problem = ""
    if not 0 <= done.start <= done.stop or not 0 <= done.n_failed <= done.n_items:
        problem = f"items {done.start} to {done.stop - 1}, {done.n_failed} failed"
    elif not all(map(math.isfinite, times)):
        problem = "a time is not finite"
    elif any(not entry.keys() >= _OF_ENTRY for entry in done.files.values()):
        problem = "a file lacks its size or checksum"
    if problem:
        raise DamagedFileError(f"{os.fspath(path)} is damaged: {problem}.")
    return done
