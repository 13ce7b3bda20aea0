"""Records of workers in a run folder: a detached worker writes its own, a driver those of its pool.

`status`, `logs` and `explain` read them; the work itself does not depend on them, so what cannot
be written, as on a full disk, is left out.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from espnet3.io.clock import FolderClock
from espnet3.io.records import is_log_name
from espnet3.parallel.pools import PoolWorker, WorkerPool
from espnet3.shards.commit import Done
from espnet3.shards.owner import Owner
from espnet3.shards.records import RecordPaths, WorkerRecord, make_folders, write_worker

_WRITE_SECONDS, _UPDATE_SECONDS = 60.0, 5.0
_DRIVER = "driver"  # no backend: such workers are never submitted, nor replaced


@dataclass(frozen=True)
class Identity:
    """What a worker knows of itself when it is started."""

    env: str = "local"
    job_id: str = ""
    generation: int = 0
    submitted: float | None = None
    log: Path | None = None
    is_driver: bool = False
    """Whether it runs no shards itself, or others beside: its pool's workers do."""


def _log_name(log: str | Path | None, root: Path) -> str:
    """Return a log as records name it: relative to the run folder, which may move."""
    name = os.path.relpath(log, root) if log else ""
    return name if is_log_name(name) else ""


class OwnRecord:
    """The record of this process in one run folder."""

    def __init__(
        self, root: Path, owner: Owner, identity: Identity, limit: float | None = None
    ) -> None:
        make_folders(root)
        self._paths = RecordPaths(root)
        self._next = 0.0
        self._clock = FolderClock(root)  # which all who read it share
        self.record = WorkerRecord(
            owner_id=owner.owner_id,
            host=owner.host,
            pid=owner.pid,
            started=self.now(),
            env=identity.env,
            job_id=identity.job_id or owner.job_id,
            submitted=identity.submitted,
            log=_log_name(identity.log, root),
            limit=limit,
            generation=identity.generation,
            driver=owner.owner_id if identity.is_driver else "",
        )

    def now(self) -> float:
        """Return the time by the clock of the file system."""
        return self._clock.now()

    def write(self) -> None:
        """Write the record."""
        self._next = time.monotonic() + _WRITE_SECONDS
        self.record = replace(self.record, seen=self.now())
        with suppress(OSError):
            write_worker(self._paths, self.record)

    def write_if_due(self) -> None:
        """Write the record if the last time was a while ago."""
        if time.monotonic() >= self._next:
            self.write()

    def published(self, done: Done) -> None:
        """Count a shard that this worker committed."""
        record = self.record
        self.record = replace(
            record,
            n_shards=record.n_shards + 1,
            n_items=record.n_items + done.n_items,
            n_failed=record.n_failed + done.n_failed,
            load_seconds=round(record.load_seconds + done.load_seconds, 3),
            compute_seconds=round(record.compute_seconds + done.seconds, 3),
        )

    def lost(self, seconds: float) -> None:
        """Count an attempt that came to nothing."""
        self.record = replace(
            self.record, lost_seconds=round(self.record.lost_seconds + seconds, 3)
        )

    def end(self, reason: str, code: int) -> None:
        """Say why the worker ends."""
        self.record = replace(self.record, ended=self.now(), reason=reason, exit_code=code)
        self.write()

    @contextmanager
    def kept(self) -> Iterator["OwnRecord"]:
        """Write the record now, and at the end of the block even if that comes unexpected."""
        self.write()
        try:
            yield self
        except BaseException as error:
            if self.record.ended is None:
                self.end(f"{type(error).__name__}: {error}"[:500], 1)
            raise


class DriverRecords:
    """The records of a driver and of the workers of its pool.

    Args:
        root: the run folder.
        owner: the driver.
    """

    def __init__(self, root: Path, owner: Owner) -> None:
        self.own = OwnRecord(root, owner, Identity(env=_DRIVER, is_driver=True))
        self._root, self._paths = root, RecordPaths(root)
        self._written: dict[str, WorkerRecord] = {}
        self._n_written = 0
        self._next = 0.0

    def update(self, pool: WorkerPool) -> None:
        """Write who came and who left, and why workers are missing; at most every few seconds."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _UPDATE_SECONDS
        there = {worker.name: worker for worker in pool.workers()}
        for name in there.keys() - self._written.keys():
            self._written[name] = self._record_of(there[name])
            self._write(self._written[name])
        for name in self._written.keys() - there.keys():
            self._write(replace(self._written.pop(name), ended=self.own.now(), reason="it is gone"))
        if self.own.record.waiting != pool.waiting():
            self.own.record = replace(self.own.record, waiting=pool.waiting())
            self.own.write()

    def _record_of(self, worker: PoolWorker) -> WorkerRecord:
        self._n_written += 1
        driver = self.own.record.owner_id
        return WorkerRecord(
            owner_id=f"{driver}-{self._n_written}",
            host=worker.host,
            pid=worker.pid,
            started=self.own.now(),
            env=_DRIVER,
            job_id=worker.job_id,
            log=_log_name(worker.log, self._root),
            driver=driver,
        )

    def _write(self, record: WorkerRecord) -> None:
        with suppress(OSError):
            write_worker(self._paths, record)
