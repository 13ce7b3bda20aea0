"""A worker that needs no driver: it takes shards from a run folder until nothing is left."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from espnet3.errors import EspnetError, FileSystemError, StaleRunError
from espnet3.parallel.detached.description import (
    Description,
    add_to_sys_path,
    check_code,
    load_spec,
    load_trusted,
)
from espnet3.parallel.detached.ending import EndSignals, HandBack
from espnet3.parallel.detached.failing import stop_for
from espnet3.parallel.detached.merging import Merger
from espnet3.parallel.detached.shift import Shift, stopped_by
from espnet3.parallel.detached.walltime import Walltime
from espnet3.parallel.folder_run import folder_errors
from espnet3.parallel.pools import WorkerPool
from espnet3.parallel.process_pool import ProcessPool
from espnet3.parallel.worker_records import Identity, OwnRecord
from espnet3.shards.lease import Lease
from espnet3.shards.reachable import is_of_node
from espnet3.shards.records import RecordPaths, read_stop
from espnet3.shards.status import require_manifest
from espnet3.shards.success import read_success

logger = logging.getLogger(__name__)
OpenPool = Callable[[bytes], WorkerPool]
"""Starts the process that does the work, from the packed `RunSpec`."""


@dataclass(frozen=True)
class Outcome:
    """How the work on a folder ended."""

    reason: str
    code: int = 0
    is_over: bool = False
    """Whether nobody has anything to do there any more: the run is merged, or stopped."""
    ends_all: bool = False
    """Whether the worker should end, even if it has other folders."""


def find_end(root: Path) -> Outcome | None:
    """Return why there is nothing to do in a run folder; None if there may be."""
    mark = read_stop(RecordPaths(root))
    if mark is not None:
        end = stopped_by(mark)
        return Outcome(end.reason, end.code, is_over=True)
    manifest = require_manifest(root)
    if read_success(manifest.layout(root), manifest.run_id) is not None:
        return Outcome("nothing to do: the run is complete", is_over=True)
    return None


class Agent:
    """Works on one run folder.

    Args:
        root: the run folder.
        identity: who this worker is.
        signals: what may ask it to end.
        walltime: until when it may work.
        on_turn: called several times a second while it works.
        open_pool: starts the process that does the work; another one for tests.
        trust: a user whose code may be run as well as one's own.
    """

    def __init__(
        self,
        root: Path,
        identity: Identity,
        signals: EndSignals,
        *,
        walltime: Walltime | None = None,
        on_turn: Callable[[], object] = bool,
        open_pool: OpenPool | None = None,
        trust: str | None = None,
    ) -> None:
        self.root = root.resolve()
        self._identity = identity
        self._signals = signals
        self._walltime = walltime or Walltime(time.time())
        self._on_turn = on_turn
        self._open_pool = open_pool
        self._trust = trust

    def work(self, *, is_patient: bool = True) -> Outcome:
        """Work until nothing is left, or until something ends it.

        An impatient one returns when what is left is in other hands.
        """
        over = find_end(self.root)
        if over is not None:
            return over
        with Lease(self.root) as lease:
            record = OwnRecord(self.root, lease.owner, self._identity, self._walltime.limit)
            with record.kept():
                outcome = self._work(lease, record, is_patient)
                record.end(outcome.reason, outcome.code)
        return outcome

    def _work(self, lease: Lease, record: OwnRecord, is_patient: bool) -> Outcome:
        try:
            packed = load_spec(self.root, trust=self._trust)
            # Whose it is, is looked at again: others may have put another file there since.
            description = load_trusted(self.root, trust=self._trust)
        except StaleRunError as error:
            return self._failed(error, lease)
        except EspnetError as error:  # not ours to run; others may
            logger.error("%s", error)
            return Outcome(f"{type(error).__name__}: {error}", 1)
        try:
            with folder_errors(self.root):
                check_code(description, self.root)
                add_to_sys_path(description)
                self._finish(packed, description, lease, record, is_patient)
        except HandBack as end:
            logger.info("Handed back: %s", end.reason)
            is_over = read_stop(RecordPaths(self.root)) is not None
            return Outcome(end.reason, end.code, is_over, end.ends_all)
        except EspnetError as error:
            return self._failed(error, lease)
        return Outcome("the run is complete", is_over=True)

    def _failed(self, error: EspnetError, lease: Lease) -> Outcome:
        logger.error("%s", error)
        is_over = stop_for(error, self.root, lease)
        kind = FileSystemError if is_of_node(error, self.root) else type(error)
        return Outcome(f"{kind.__name__}: {error}", 1, is_over, ends_all=not is_over)

    def _finish(
        self,
        packed: bytes,
        description: Description,
        lease: Lease,
        record: OwnRecord,
        is_patient: bool,
    ) -> None:
        manifest = require_manifest(self.root)
        merger = Merger(self.root, manifest, lease, self._signals, trust=self._trust)
        while True:
            shift = Shift(
                self.root,
                manifest,
                lease=lease,
                record=record,
                policy=description.fault_policy(),
                signals=self._signals,
                walltime=self._walltime,
                is_patient=is_patient,
                on_turn=self._on_turn,
            )
            shift.look_around()
            if not shift.is_done():
                shift.run(self._pool(packed, description))
            record.write()  # the merge sums up what all workers say
            if not merger.await_turn(shift.choice.stands_by, shift.on_turn):
                return
            missing = merger.merge()
            if not missing:
                return
            shift.release(missing)

    def _pool(self, packed: bytes, description: Description) -> WorkerPool:
        if self._open_pool is not None:
            return self._open_pool(packed)
        config = description.config()
        threads = int(config.options.get("threads_per_worker", 1))
        log, timeout = self._identity.log, config.worker_timeout
        return ProcessPool(packed, 1, threads=threads, log=log, worker_timeout=timeout)
