"""A detached worker in one run folder: take shards, run them, then merge.

The program that submits its successor runs beside it, because it talks to the scheduler, which may
take its time or fail; the work must not wait for that.
"""

import getpass
import logging
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espnet3.errors import (
    EspnetError,
    FileSystemError,
    ProviderError,
    RunFolderError,
    StaleRunError,
)
from espnet3.io.atomic import is_folder_trouble
from espnet3.io.shared_files import FolderClock, is_of_node, is_there
from espnet3.parallel.detached.description import (
    Description,
    add_to_sys_path,
    check_code,
    load_runner,
    load_spec,
    load_trusted,
)
from espnet3.parallel.dispatch import Dispatcher
from espnet3.parallel.faults import EarlyDeaths, FaultPolicy, check_stop, stopped_by
from espnet3.parallel.folder_run import Merger, folder_errors, unpack_run, write_failures
from espnet3.parallel.open_pool import KeptPool
from espnet3.parallel.process_pool import Child, ProcessPool, Spare
from espnet3.parallel.shard_queue import ShardQueue, Walltime
from espnet3.parallel.signals import EndSignals, ReleaseClaims
from espnet3.parallel.tasks import (
    Failure,
    WorkerPool,
    describe_error,
    failure_record,
    secrets_held,
    user_traceback,
)
from espnet3.shards.lease import HEARTBEAT, Lease
from espnet3.shards.manifest import Manifest, require_manifest
from espnet3.shards.merge import read_success
from espnet3.shards.records import (
    Identity,
    OwnRecord,
    RecordPaths,
    StopMark,
    read_stop,
    takes_turn,
    write_stop,
)
from espnet3.text import count

logger = logging.getLogger(__name__)
OpenPool = Callable[[bytes], WorkerPool]
"""Starts the process that does the work, from the packed `RunSpec`."""


@dataclass(frozen=True)
class Outcome:
    """Result of the work on a folder."""

    reason: str
    code: int = 0
    is_over: bool = False
    """Whether no work is left in the folder: the run is merged, or stopped."""
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


class DetachedWorker:
    """Works on one run folder.

    Args:
        root: the run folder.
        identity: of this worker.
        signals: what may ask it to end.
        walltime: until when it may work.
        on_turn: called several times a second while it works.
        kept: the process that did the work in the folder before, if there was one.
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
        kept: KeptPool | None = None,
        open_pool: OpenPool | None = None,
        trust: str | None = None,
    ) -> None:
        self.root = root.resolve()
        self._identity = identity
        self._signals = signals
        self._walltime = walltime or Walltime(time.time())
        self._on_turn = on_turn
        self._kept = kept or KeptPool(is_open=False)
        self._open_pool = open_pool
        self._trust = trust

    def work(self, *, is_patient: bool = True) -> Outcome:
        """Work until nothing is left, or until something ends it.

        An impatient one returns when what is left is claimed by others.
        """
        over = find_end(self.root)
        if over is not None:
            return over
        with Lease(self.root) as lease:
            record = OwnRecord(self.root, lease.owner, self._identity, self._walltime.limit)
            # Inside the lease: a record without a living owner would look like a worker that died.
            with record.kept():
                outcome = self._work(lease, record, is_patient)
                record.end(outcome.reason, outcome.code)
        return outcome

    def _work(self, lease: Lease, record: OwnRecord, is_patient: bool) -> Outcome:
        try:
            lease.refuse_other_versions()
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
                # Against this description: it may be newer than the one that `load_spec` checked.
                check_code(description, self.root)
                add_to_sys_path(description)
                self._finish(packed, description, lease, record, is_patient)
        except ReleaseClaims as end:
            logger.info("Handed back: %s", end.reason)
            # Released for its own reasons or stopped for all: only the mark tells which.
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
        unpack_run(self.root, manifest)
        policy = description.fault_policy()
        merger = Merger(
            self.root,
            Path(os.path.normpath(self.root / manifest.output_dir)),
            manifest,
            lease,
            lambda shard_dirs: _merge_as_user(self.root, lease, shard_dirs, trust=self._trust),
        )
        # Again after a merge that found shards damaged or missing: they are open once more.
        while True:
            queue = ShardQueue(
                self.root,
                manifest,
                None,
                lease,
                record=record,
                policy=policy,
                signals=self._signals,
                walltime=self._walltime,
                is_patient=is_patient,
            )
            loop = _Loop(
                self.root,
                queue,
                record=record,
                policy=policy,
                signals=self._signals,
                walltime=self._walltime,
                on_turn=self._on_turn,
            )
            queue.prepare()
            if not queue.is_finished():
                loop.run(self._pool(packed, description), manifest, self._kept)
            record.write()  # the merge sums up what all workers say
            if merger.await_turn(loop.on_turn, queue.stands_by) is not None:
                return
            # A worker counts its own failures only; all of them are known once every shard is done.
            if policy.max_errors is not None:
                queue.check_all_failed()
            missing = merger.missing()
            if not missing:
                shards = count(manifest.n_shards, "shard")
                logger.info("All is done (%s); merging", shards)
                # The user's merge looks at no flag, and may take longer than a scheduler waits.
                with self._signals.raised_at_once():
                    merger.merge()
                return
            queue.release(missing)

    def _pool(self, packed: bytes, description: Description) -> WorkerPool:
        if self._open_pool is not None:
            return self._open_pool(packed)
        threads, timeout = description.worker_settings()
        log = self._identity.log
        kept: ProcessPool | None = self._kept.take((threads, log is None))
        if kept is not None:
            kept.serve(packed, 1, log=log, worker_timeout=timeout)
            return kept
        # A child of its own: if an item kills its process, this one is left to record that.
        return ProcessPool(
            packed, 1, threads=threads, log=log, worker_timeout=timeout, spare=self._kept.spare
        )


class _Loop:
    """Takes shards from a queue and runs them in one child, with an eye on signals and time."""

    def __init__(
        self,
        root: Path,
        queue: ShardQueue,
        *,
        record: OwnRecord,
        policy: FaultPolicy,
        signals: EndSignals,
        walltime: Walltime,
        on_turn: Callable[[], object],
    ) -> None:
        self._root, self._queue, self._record = root, queue, record
        self._policy, self._signals, self._walltime = policy, signals, walltime
        self._tick = on_turn
        self._next_beat = 0.0

    def run(self, pool: WorkerPool, manifest: Manifest, kept: KeptPool) -> None:
        """Run shards until all are committed, by this worker or others.

        The child is then stopped, or kept for the next folder.

        Raises:
            ReleaseClaims: if this worker should end before that.
            EspnetError: if the run must stop.
        """
        queue = self._queue
        dispatcher = Dispatcher(
            queue, pool, self._policy, on_result=queue.count, on_turn=self.on_turn
        )
        try:
            dispatcher.run()
            queue.settle("failed")
        except ReleaseClaims as end:
            # Only the walltime counts against a shard: it may be too long for any job.
            if self._walltime.left() < 0:
                for task in dispatcher.running.values():
                    queue.cut_off(task)
            queue.settle(f"handed back: {end.reason}")
            raise
        except EspnetError:
            note_failures(self._root, manifest, dispatcher.failures)
            queue.settle("failed")
            raise
        finally:
            # First: a child that still runs would write into what is discarded next.
            if dispatcher.running or not kept.put(pool):
                pool.stop()
            dispatcher.discard_running()

    def on_turn(self) -> None:
        """Look whether to continue; called several times a second."""
        self._signals.check()
        if self._walltime.is_over():
            raise ReleaseClaims("its walltime is nearly over")
        self._tick()
        if time.monotonic() >= self._next_beat:
            # Spread at random: workers that began together must not ask the server all at once.
            self._next_beat = time.monotonic() + HEARTBEAT * random.uniform(0.7, 1.0)
            check_stop(self._root)
            self._record.write_if_due()


def _merge_as_user(
    root: Path, lease: Lease, shard_dirs: Sequence[Path], *, trust: str | None
) -> Any:
    """Call `merge` of the run's own runner, for a worker that got the turn.

    Raises:
        ProviderError: if that fails, with the user's traceback.
    """
    runner = None
    try:
        runner = load_runner(root, trust=trust)
        return runner.merge(shard_dirs)
    except EspnetError:
        raise
    except Exception as error:
        if is_folder_trouble(error) or is_of_node(error, root):
            raise  # a full disk, or one that is away: the caller says what to do
        secrets = secrets_held(runner)
        raise ProviderError(
            f"merge() failed on {lease.owner}: {describe_error(error, secrets)}.",
            fix="Mend it "
            "and run the same command again; all shards are done and kept.\n\n"
            f"{user_traceback(error, secrets)}",
        ) from error


def note_failures(root: Path, manifest: Manifest, failures: Sequence[Failure]) -> None:
    """Write what failed to `failed.jsonl`, as a driver does."""
    if not failures:
        return  # another worker has stopped the run as well
    with suppress(OSError):  # on a full disk, the error that is raised matters more
        records = [failure_record(failure, root) for failure in failures]
        write_failures(manifest.layout(root), records)


def stop_for(error: EspnetError, root: Path, lease: Lease) -> bool:
    """Stop the run for all workers, unless the error is, or may be, about this node only.

    Returns:
        Whether the run is stopped.
    """
    if is_of_node(error, root):
        logger.error("The worker on %s exits; other workers may continue", lease.owner.host)
        return False
    # One broken node must not end the run of all others.
    may_be_of_node = isinstance(error, EarlyDeaths | RunFolderError)
    if may_be_of_node and (others := _others_elsewhere(lease)):
        logger.warning("Other workers continue, such as %s: maybe only this node fails", others)
        return False
    by = f"{getpass.getuser()}, {lease.owner}"
    try:
        write_stop(RecordPaths(root), StopMark("failed", str(error), by))
    except OSError as error:
        logger.warning("The other workers could not be notified: %s", error)
        return False
    return True


def _others_elsewhere(lease: Lease) -> str:
    """Return a worker on another node; where owners cannot be listed, assume that there is one."""
    try:
        return next((str(o) for o in lease.each_other() if o.host != lease.owner.host), "")
    except FileSystemError as error:
        logger.warning("%s", error)
        return "those that cannot be listed from here"


_SUCCESSOR_MAIN = "espnet3.parallel.detached.successor_main"
_EVERY_SECONDS = 60.0
_MAX_PAUSE = 600.0
# Nearly as soon as a new Python could have submitted a successor; many a run is over by then.
_FIRST_SECONDS = 1.0
# As long as a submission may take: killing it earlier could leave a job without its number.
_SUBMIT_SECONDS = 120.0
_CLEAN_UP_SECONDS = 60.0
_CLOSE_SECONDS = 15.0
# The worker starts at the same time, often on the same one core; it must not be held up.
_NICE = 10
WITHOUT_JOBS = ("local", "local_gpu")
"""Backends whose workers are no jobs, and have no successors."""


class Successors:
    """Runs `successor_main` a second after the start, and later when there is need.

    The look for that is one operation a minute, in this process: with a thousand workers, a Python
    for each of them and a look at the records of all would be more work than the work.

    Args:
        roots: all run folders of the worker.
        env: the backend that the worker's job belongs to.
        job_id: the job; without it no successor is submitted.
        generation: how many jobs came before it in its chain.
        trust: the user whose code may be run.
        spare: a process that waits to become the first of them.
    """

    def __init__(
        self,
        roots: Sequence[Path],
        *,
        env: str,
        job_id: str,
        generation: int,
        trust: str | None,
        spare: Spare | None = None,
    ) -> None:
        self._arguments = [
            *map(str, roots), "--env", env, "--job", job_id, "--generation", str(generation),
            *(["--trust", trust] if trust else []),
        ]  # fmt: skip
        self._spare = spare
        # Without its number a job cannot be waited for by a successor.
        self._is_wanted = env not in WITHOUT_JOBS and bool(job_id)
        self._roots, self._root = list(roots), roots[0]
        self._mark = RecordPaths(roots[0]).successor(env, job_id)
        self._began = time.monotonic()
        self._clock: FolderClock | None = None
        self._process: subprocess.Popen[bytes] | Child | None = None
        self._started = self._looked = float("-inf")
        self._has_successor, self._pause = False, _EVERY_SECONDS
        self._is_due = False

    def tick(self) -> None:
        """Start the process if it is time to, and end one that hangs."""
        now = time.monotonic()
        if self._process is not None:
            if self._process.poll() is None and now - self._started < _SUBMIT_SECONDS:
                return
            self._reap()
        if not self._is_wanted:
            return
        if now - self._began < _FIRST_SECONDS:
            self._is_due = True
        elif now - self._looked >= _EVERY_SECONDS:
            self._looked = now
            self._look()

    def _look(self) -> None:
        """Start the process if this worker has no successor, or its turn to look after all."""
        self._is_due = False
        try:
            if self._clock is None:
                self._clock = FolderClock(self._root)
            self._has_successor = self._has_successor or is_there(self._mark)
            if takes_turn(self._root, self._clock.now()):
                self._start("--has-turn")
            elif not self._has_successor and time.monotonic() - self._started >= self._pause:
                # Whoever could not submit one, or need not, is not asked again each minute.
                self._pause = min(2 * self._pause, _MAX_PAUSE)
                self._start()
        except (OSError, FileSystemError) as error:  # the work does not depend on it
            logger.warning("no successor: %s", error)

    def finish(self) -> None:
        """Let it clean up after a run that is complete or stopped: successors that still wait."""
        self._is_due = False
        # Two at once could both submit, or one cancel what the other is just submitting.
        self._await(_SUBMIT_SECONDS)
        if self._is_wanted and self._may_jobs_wait():
            self._start()
            self._await(_CLEAN_UP_SECONDS)

    def _may_jobs_wait(self) -> bool:
        from espnet3.parallel.detached.workforce import has_open_jobs  # at the end only

        try:
            return any(has_open_jobs(root) for root in self._roots)
        except (OSError, FileSystemError):
            return True  # the process says what is wrong

    def close(self) -> None:
        """Let it end: between submitting a job and noting it, it must not be killed."""
        if self._is_due:  # left within the first second, as from a bad node: others shall continue
            self._look()
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_CLOSE_SECONDS)
            if self._process.poll() is None:
                logger.info("%s takes too long, and is ended with this worker", _SUCCESSOR_MAIN)
            self._process.kill()
            self._process.wait()
            self._process = None

    def _start(self, *more: str) -> None:
        self._started = time.monotonic()
        arguments = [*self._arguments, *more]
        # -P: the user's working folder may shadow modules of the library.
        command = [sys.executable, "-P", "-m", _SUCCESSOR_MAIN, *arguments]
        try:
            # Its words go where this process's go: into the worker's log.
            # It has the `sys.path` of this program's start, without what the user's code needs.
            spare = self._spare
            forked = (
                spare.become(_SUCCESSOR_MAIN, arguments, environment=os.environ) if spare else None
            )
            self._process = forked or subprocess.Popen(command, stdin=subprocess.DEVNULL)
        except OSError as error:
            logger.warning("no successor: %s cannot be started: %s", _SUCCESSOR_MAIN, error)
            return
        with suppress(OSError):
            nice = os.getpriority(os.PRIO_PROCESS, 0) + _NICE
            os.setpriority(os.PRIO_PROCESS, self._process.pid, nice)

    def _await(self, seconds: float) -> None:
        if self._process is None:
            return
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        self._reap()

    def _reap(self) -> None:
        assert self._process is not None
        code = self._process.poll()
        if code is None:
            self._process.kill()
            self._process.wait()
            logger.warning("no successor: %s did not end in time", _SUCCESSOR_MAIN)
        elif code:
            logger.warning("no successor: %s ended with code %d", _SUCCESSOR_MAIN, code)
        self._process = None
