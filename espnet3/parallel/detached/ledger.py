"""What a worker says of itself in the run folder: its record, written now and then."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from espnet3.io.clock import look_time
from espnet3.shards.commit import Done
from espnet3.shards.owner import Owner
from espnet3.shards.records import RecordPaths, WorkerRecord, make_folders, write_worker

_WRITE_SECONDS = 30.0


@dataclass(frozen=True)
class Identity:
    """What a worker knows of itself when it is started."""

    env: str = "local"
    job_id: str = ""
    generation: int = 0
    submitted: float | None = None
    log: Path | None = None


class Ledger:
    """The record of this worker in one run folder.

    What cannot be written, as on a full disk, is left out: it must not stop the work.
    """

    def __init__(self, root: Path, owner: Owner, identity: Identity, limit: float | None) -> None:
        make_folders(root)
        self._paths = RecordPaths(root)
        self._next = 0.0
        # By the clock that all who read it share; a clock that is set anew does not matter.
        self._clock = (look_time(root), time.monotonic())
        now = self._now()
        log = identity.log
        self.record = WorkerRecord(
            owner_id=owner.owner_id,
            host=owner.host,
            pid=owner.pid,
            started=now,
            env=identity.env,
            job_id=identity.job_id or owner.job_id,
            submitted=identity.submitted,
            log=str(log.relative_to(root)) if log and log.is_relative_to(root) else str(log or ""),
            limit=limit,
            generation=identity.generation,
        )

    def _now(self) -> float:
        then, since = self._clock
        return then + time.monotonic() - since

    def write(self) -> None:
        """Write the record."""
        self._next = time.monotonic() + _WRITE_SECONDS
        self.record = replace(self.record, seen=self._now())
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
        self.record = replace(self.record, ended=self._now(), reason=reason, exit_code=code)
        self.write()

    @contextmanager
    def kept(self) -> Iterator["Ledger"]:
        """Write the record now, and at the end of the block even if that comes unexpected."""
        self.write()
        try:
            yield self
        except BaseException as error:
            if self.record.ended is None:
                self.end(f"{type(error).__name__}: {error}"[:500], 1)
            raise
