"""Worker pool on a Dask cluster: the driver's side, and the function that runs in each worker.

Dask moves the bytes and reports which workers are there; which shard runs where is decided by the
dispatcher.
Each attempt is pinned to its worker, so that one with eight threads gets one shard, not eight. To
spare it the way to the driver and back between two shards, a worker that has proved itself gets its
next attempt while it is at the one before; as soon as few shards are left, it does not.

Dask workers import this module as well, and the user waits for them: it imports little.
"""

import itertools
import logging
import queue
import sys
import threading
import time
import uuid
from asyncio import CancelledError
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import cloudpickle

from espnet3.errors import WorkerError
from espnet3.parallel.execute import BuiltParts
from espnet3.parallel.tasks import Died, Event, Finished, PoolWorker, ShardAttempt, ShardResult
from espnet3.parallel.worker import ShardServer, dump_result, load_result, load_server
from espnet3.text import count, folded

logger = logging.getLogger(__name__)
# Between two looks at the workers: short while they come and go, then longer and longer.
_LOOK_SECONDS = (0.05, 1.0)
_LOOK_SHARE = 0.1  # of the time since the last change
# Seconds after which missing workers are logged: soon if there are none, then less and less.
_TELL_SECONDS = (15.0, 300.0)
_TELL_OF_SOME_SECONDS = 60.0
_RECONNECT_SECONDS = 60.0  # Dask's client itself gives up after 30 s without a connection
_RETRY_SECONDS = 0.5
# In which a scheduler elsewhere says who its workers are: a port that is forwarded may swallow the
# question. The second one is for one that is known to be away.
_ANSWER_SECONDS = (20.0, 5.0)
_DISCONNECTED = "scheduler-connection-lost"  # why Dask cancels the futures of such a client
_MANY = 1  # queued shards per worker, so that prefetching cannot make a slow one the last
_NEXT = " (next)"
_BEAT_SECONDS = 1.0
_FIRST_BEAT_SECONDS = 0.1  # until a worker has reported a position, it gets no second attempt
_NEEDS_SPEC = b""  # no pickle is empty
_Spec = tuple[list[str], bytes]
"""Where the driver finds its modules, and the pickled `RunSpec`."""


class ClusterMonitor(Protocol):
    """Looks after the jobs, or pods, in which the workers of a cluster run."""

    def look(self, n_left: int, busy: Collection[str] = ()) -> None:
        """Update what is known; raise if no worker will come."""

    def waiting(self) -> str:
        """Return why workers are missing and what to try; empty if none is."""

    def hopeless(self) -> str:
        """Return why no worker will ever come; empty as long as one may."""

    def is_leaving(self, worker: str) -> bool:
        """Tell whether a worker, by its address, should get no work."""

    def note_finished(self, worker: str) -> None:
        """Record that the worker at an address finished a shard."""

    def describe(self, worker: str) -> tuple[str, str]:
        """Return the job of a worker and the path of its log; empty if unknown."""

    def reason_of_loss(self, worker: str) -> str:
        """Return why a worker left, in the words of the scheduler; empty if that is not known."""


class DaskPool:
    """The workers of a client's cluster, as they come and go.

    Args:
        client: a connected `distributed.Client`; it stays open.
        spec: the pickled `RunSpec`.
    """

    def __init__(self, client: Any, spec: bytes) -> None:
        self._client = client
        self._spec = spec
        # Names this call, not the run: a resumed one may have other settings than workers know.
        self._run_id = uuid.uuid4().hex
        self._topic = f"espnet3-{uuid.uuid4().hex}"
        # A cluster that submitted jobs for its workers has one that looks after them.
        self._monitor: ClusterMonitor | None = getattr(client.cluster, "monitor", None)
        self._n_left = 0
        self._workers: list[str] = []
        self._last_look, self._last_change = 0.0, time.monotonic()
        self._missing = MissingWorkers()
        self._knows_spec: set[str] = set()
        self._proven: set[str] = set()
        self._may_wait = True
        self._over: set[str] = set()
        # By place, in the order of submission: of two attempts of a worker the first one runs.
        self._running: dict[str, tuple[Any, ShardAttempt]] = {}
        self._positions: dict[str, int] = {}
        self._turns = itertools.count()
        # What ended; None if a worker came.
        self._ended: queue.SimpleQueue[tuple[str, Any, bytes | None] | None] = queue.SimpleQueue()
        # In this process; it may be late, but it cannot get lost.
        self._is_own_scheduler = getattr(client.cluster, "scheduler", None) is not None
        self._is_disconnected = False
        self._dropped: list[Died] = []  # attempts that were lost with the connection
        client.subscribe_topic(self._topic, self._hear)
        self._forget: Callable[[], object] = bool
        if _has_scheduler_here(client):
            self._forget = _tell_of_workers(client, lambda: self._ended.put(None))

    def idle(self) -> list[str]:
        """Return the workers that are there and have no attempt."""
        self._look()
        monitor, running = self._monitor, self._running
        workers = [each for each in self._workers if not (monitor and monitor.is_leaving(each))]
        busy = self._busy()
        idle = [worker for worker in workers if worker not in busy]
        # With less than that in the queue, a shard that waits at a slow worker could end last.
        if self._may_wait and self._n_left - len(running) >= _MANY * len(self._workers):
            places = [place for each in workers if each in self._proven for place in _places(each)]
            idle += [p for p in places if p not in running and _worker_at(p) in busy]
        return idle

    def expect(self, n_left: int) -> None:
        """Set how many shards are queued or running; surplus jobs are ended."""
        self._n_left = n_left

    def waiting(self) -> str:
        """Return why workers are missing and what to try; empty if that is not known."""
        return self._monitor.waiting() if self._monitor else ""

    def submit(self, worker: str, task: ShardAttempt) -> None:
        """Pin an attempt to a worker."""
        address = _worker_at(worker)
        spec = None if address in self._knows_spec else (driver_sys_path(), self._spec)
        future = self._client.submit(
            run_attempt,
            self._run_id,
            spec,
            cloudpickle.dumps(task),
            self._topic,
            # Unique, because Dask answers a known key with the result of the earlier attempt.
            key=f"espnet3-shard-{task.shard}-{uuid.uuid4().hex}",
            workers=[address],
            allow_other_workers=False,
            pure=False,
            priority=-next(self._turns),  # a worker takes what has waited longest
        )
        self._knows_spec.add(address)  # if its process was restarted since, it asks again
        self._running[worker] = (future, task)
        self._positions[worker] = -1
        future.add_done_callback(self._note_end)
        self._client.loop.add_callback(self._fetch, worker, future)

    def poll(self, timeout: float) -> list[Event]:
        """Wait for an attempt to end; notice workers that left."""
        events: list[Event] = []
        try:
            # A worker that comes should not wait for its first shard.
            timeout = min(timeout, max(self._next_look() - time.monotonic(), 0.0))
            events += self._take(self._ended.get(timeout=timeout))
            while not self._ended.empty():
                events += self._take(self._ended.get())
        except queue.Empty:
            pass
        if self._is_disconnected:
            self._reconnect("its futures were cancelled")
        self._look()
        dropped, self._dropped = self._dropped, []
        events += dropped
        gone = self._busy() - set(self._workers)
        for number, address in enumerate(gone):
            lost = self._lose(address, "it left the cluster")
            # The first counts as a death of its own; the others went with it.
            events += [replace(event, went_with_others=number > 0) for event in lost]
        return events

    def workers(self) -> list[PoolWorker]:
        """Return the workers that are connected, with their jobs and logs as far as known."""
        found = []
        for address in self._workers:
            job_id, log = self._monitor.describe(address) if self._monitor else ("", "")
            host = urlsplit(address).hostname or address
            found.append(PoolWorker(address, host, job_id=job_id, log=log))
        return found

    def positions(self) -> dict[str, int]:
        """Return what the busy workers last said of their position."""
        # A copy: the progress thread asks while attempts come and go.
        return {worker: self._positions.get(worker, -1) for worker in list(self._running)}

    def kill(self, worker: str, reason: str) -> None:
        """Restart a worker process through its nanny; `poll` reports it as gone."""
        logger.warning("Restarting worker %s: %s", worker, reason)
        try:
            self._client.restart_workers([_worker_at(worker)], raise_for_error=False)
        except ValueError as error:
            raise WorkerError(
                f"Worker {worker} should be restarted ({reason}), but has no nanny that could do "
                "so.",
                fix="Start the workers with one (dask worker --nanny), or unset item_timeout.",
            ) from error

    def stop(self) -> None:
        """Cancel running attempts; the cluster itself is not ours to stop."""
        self._client.unsubscribe_topic(self._topic)
        self._forget()
        futures = [future for future, _ in self._running.values()]
        if futures:
            self._client.cancel(futures, force=True)
        self._running.clear()

    def _busy(self) -> set[str]:
        places = [*self._running, *(event.worker for event in self._dropped)]
        return {_worker_at(place) for place in places}

    def _hear(self, event: tuple[float, list[Any]]) -> None:
        worker, shard, position = event[1]
        for place in _places(worker):
            running = self._running.get(place)
            if running and running[1].shard == shard:
                self._positions[place] = position
                if position >= 0:  # all is loaded
                    self._proven.add(worker)

    def _take(self, ended: tuple[str, Any, bytes | None] | None) -> list[Event]:
        if ended is not None:
            return self._end(*ended)
        self._last_look = 0.0  # that of long ago: the next one is due
        return []

    def _next_look(self) -> float:
        return self._last_look + pause_after_change(self._last_look - self._last_change)

    def _look(self) -> None:
        now = time.monotonic()
        if now < self._next_look():
            return
        self._last_look = now
        before = self._workers
        try:
            self._workers = self._ask_for_workers(_ANSWER_SECONDS[0])
        except OSError as error:
            self._reconnect(folded(error) or f"no answer in {_ANSWER_SECONDS[0]:g} s")
        if set(before) != set(self._workers):
            self._last_change = now
        # Jobs that are lost after the last shard need no replacement.
        if self._monitor is not None and self._n_left:
            self._monitor.look(self._n_left, self._busy())
            self._refuse_to_wait_in_vain()
        self._missing.tell(len(self._workers), self.waiting(), now)

    def _ask_for_workers(self, seconds: float) -> list[str]:
        if self._is_own_scheduler:
            return list(self._client.nthreads())
        # `nthreads` would wait for ever.
        return list(self._client.sync(self._client.scheduler.ncores, callback_timeout=seconds))

    def _reconnect(self, reason: str) -> None:
        """Wait until the client is connected again, as after a restart of what forwards its port.

        Dask forgets the attempts of a client that is gone, so that all of them run again.

        Raises:
            WorkerError: it does not succeed.
        """
        logger.warning("The connection to the Dask scheduler broke (%s); trying again", reason)
        self._drop_all()
        if self._client.scheduler_comm is not None:
            # The connection of the futures may be dead as well; closed, it is opened again.
            self._client.loop.add_callback(self._client.scheduler_comm.abort)
        deadline = time.monotonic() + _RECONNECT_SECONDS
        while True:
            workers: list[str] | None = None
            try:
                workers = self._ask_for_workers(_ANSWER_SECONDS[1])
            except OSError as error:
                reason = folded(error) or reason
            # The question has a connection of its own; that of the futures must be there, too.
            if workers is not None and self._client.status == "running":
                break
            is_over = self._client.status not in ("running", "connecting")
            if is_over or time.monotonic() > deadline:
                known = self.waiting()
                raise WorkerError(
                    f"The Dask scheduler cannot be reached any more ({reason}). Finished shards "
                    "are on disk; start the cluster and run the same command again."
                    + (f" {known}" if known else "")
                )
            if self._monitor is not None and self._n_left:
                self._monitor.look(self._n_left)  # may know that the cluster is gone
            time.sleep(_RETRY_SECONDS)
        logger.info("The Dask scheduler is reached again")
        self._drop_all()  # what was submitted meanwhile
        self._is_disconnected = False
        self._workers = workers
        self._client.subscribe_topic(self._topic, self._hear)

    def _drop_all(self) -> None:
        for place, (_, task) in self._running.items():
            reason = "the connection to the Dask scheduler broke"
            self._dropped.append(Died(place, task, reason, was_disconnected=True))
        self._running.clear()
        # A scheduler that was restarted has other workers.
        self._knows_spec.clear()
        self._proven.clear()

    def _refuse_to_wait_in_vain(self) -> None:
        """End the run if no job will ever start, such as beyond the time limit of its queue."""
        assert self._monitor is not None
        if not self._workers and self._monitor.hopeless():
            raise WorkerError(f"No worker will come. {self.waiting()}")

    def _note_end(self, future: Any) -> None:
        # Kept, because a future whose result is lost with its worker is pending again.
        if future.status == "finished":
            self._over.add(future.key)

    async def _fetch(self, worker: str, future: Any) -> None:
        """Wait for what an attempt returns; `poll` must not: its worker may die before it is here.

        Dask would wait for such a worker until `_lose` cancels the future.
        """
        data = None
        with suppress(Exception):  # the status of the future tells
            try:
                data = await future
            except CancelledError as error:
                self._is_disconnected |= getattr(error, "reason", "") == _DISCONNECTED
        self._ended.put((worker, future, data))

    def _end(self, worker: str, future: Any, data: bytes | None) -> list[Event]:
        running = self._running.get(worker)
        if running is None or running[0] is not future:
            return []  # cancelled, or of a worker that was already given up
        if data is None and (self._is_disconnected or self._client.status != "running"):
            self._is_disconnected = True
            return []  # it is given up with all others, in `_reconnect`
        if data is None:
            return list(self._lose(_worker_at(worker), _describe(future)))
        if data == _NEEDS_SPEC:  # the process behind this address is a new one
            self._knows_spec.discard(_worker_at(worker))
            del self._running[worker]
            self.submit(worker, running[1])
            return []
        del self._running[worker]
        self._over.discard(future.key)
        self._proven.add(_worker_at(worker))
        if self._monitor is not None:
            self._monitor.note_finished(_worker_at(worker))
        return [Finished(worker, load_result(data, running[1]))]

    def _lose(self, address: str, reason: str) -> list[Died]:
        """Give up a worker's attempts; it was at the first that is not over."""
        places = [place for place in self._running if _worker_at(place) == address]
        lost = {place: self._running.pop(place) for place in places}
        running = [place for place, (future, _) in lost.items() if future.key not in self._over]
        if len(running) > 1 and lost[running[0]][1].attempt is None:
            # The first may have ended unnoticed, and left no trace in a folder either: both run
            # again, without prefetching, so that the next crash can be attributed to one shard.
            running, self._may_wait = [], False
        self._knows_spec.discard(address)
        self._proven.discard(address)
        self._client.cancel([future for future, _ in lost.values()], force=True)
        job_id, log = self._monitor.describe(address) if self._monitor else ("", "")
        known = self._monitor.reason_of_loss(address) if self._monitor else ""
        reason = f"{reason}: {known}" if known else reason
        of_job = f" of job {job_id}" if job_id else ""
        logger.warning("Worker %s%s was lost: %s", address, of_job, reason)
        return [
            Died(place, task, reason, log, was_running=place in running[:1])
            for place, (_, task) in lost.items()
        ]


def _has_scheduler_here(client: Any) -> bool:
    """Tell whether the scheduler is in this process; of that of `env: ssh` only a handle is."""
    from distributed import Scheduler

    return isinstance(getattr(client.cluster, "scheduler", None), Scheduler)


def _tell_of_workers(client: Any, tell: Callable[[], None]) -> Callable[[], None]:
    """Call `tell` when a worker comes to the scheduler in this process; return what ends that."""
    from distributed import SchedulerPlugin

    class Arrivals(SchedulerPlugin):
        name = f"espnet3-arrivals-{uuid.uuid4().hex}"

        def add_worker(self, scheduler: Any, worker: str) -> None:
            tell()

    scheduler, add_callback = client.cluster.scheduler, client.loop.add_callback
    # In the event loop, whose thread goes through the plugins.
    add_callback(scheduler.add_plugin, Arrivals())
    return lambda: add_callback(scheduler.plugins.pop, Arrivals.name, None)


class MissingWorkers:
    """Logs that workers are missing: soon after the start, then less and less often."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._next = 0.0
        self._is_any_there = False

    def tell(self, n_workers: int, waiting: str, now: float) -> None:
        """Log how many are there and why others are not, if it is time to."""
        shortest, longest = _TELL_SECONDS
        if n_workers and not waiting:
            self._since = None
        elif self._since is None or bool(n_workers) != self._is_any_there:
            self._since, self._is_any_there = now, bool(n_workers)
            self._next = now + (_TELL_OF_SOME_SECONDS if n_workers else shortest)
        elif now > self._next:
            waited = now - self._since
            self._next = now + min(waited, longest)
            if n_workers:
                verb = "is" if n_workers == 1 else "are"
                logger.info("%s %s at work. %s", count(n_workers, "worker"), verb, waiting)
            else:
                logger.warning("No worker is connected for %.0f s. %s", waited, waiting)


def pause_after_change(seconds: float) -> float:
    """Return the pause between two looks, so long after a worker came or went."""
    shortest, longest = _LOOK_SECONDS
    return min(max(_LOOK_SHARE * seconds, shortest), longest)


def _places(address: str) -> tuple[str, str]:
    """Return the places of a worker: where attempts run, or wait behind the one that runs."""
    return address, address + _NEXT


def _worker_at(place: str) -> str:
    return place.removesuffix(_NEXT)


def driver_sys_path() -> list[str]:
    """Return where this program finds its modules, for workers that look elsewhere."""
    # Workers have another working directory, and entries may be relative or empty.
    return [str(Path(entry).resolve()) for entry in sys.path]


def _describe(future: Any) -> str:
    if future.status == "error":
        error = future.exception()
        return f"{type(error).__name__}: {error}"
    return f"its task was {future.status}"


# One slot: a worker serves one run after the other, and two models may not fit on one GPU. The
# lock also keeps a worker with several threads to one attempt at a time.
_lock = threading.Lock()
_server: tuple[str, ShardServer] | None = None
_parts = BuiltParts()


def run_attempt(run_id: str, spec: _Spec | None, task: bytes, topic: str) -> bytes:
    """Run an attempt in this worker.

    Returns:
        The pickled `ShardResult`, or `_NEEDS_SPEC` if this process does not know the run yet.
    """
    with _lock:
        work = cloudpickle.loads(task)
        server = _find_server(run_id, spec, work)
        if server is None:
            return _NEEDS_SPEC
        if isinstance(server, ShardResult):
            return dump_result(server)
        beat = _Beat(server, topic, work.shard, is_first=spec is not None)
        try:
            return dump_result(server.run(work))
        finally:
            beat.stop()


def _find_server(run_id: str, spec: _Spec | None, task: Any) -> ShardServer | ShardResult | None:
    global _server
    if _server is not None and _server[0] == run_id:
        return _server[1]
    if spec is None:
        return None
    _server = None  # frees of the run before what this one does not need
    sys_path, packed = spec
    # Before unpacking: the runner may be of a module that only the driver's folders have.
    sys.path += [entry for entry in sys_path if entry not in sys.path]
    loaded = load_server(packed, task, _parts)
    if isinstance(loaded, ShardServer):
        _server = (run_id, loaded)
    return loaded


class _Beat:
    """Reports the position of the attempt to the driver every second, the first time sooner.

    Because the driver gives a second attempt only to workers that are known to make progress.
    """

    def __init__(self, server: ShardServer, topic: str, shard: int, *, is_first: bool) -> None:
        from distributed import get_worker

        self._worker = get_worker()
        self._server, self._topic, self._shard = server, topic, shard
        self._next = _FIRST_BEAT_SECONDS if is_first else _BEAT_SECONDS
        self._stop = threading.Event()
        threading.Thread(target=self._run, name="beat", daemon=True).start()

    def _run(self) -> None:
        while not self._stop.wait(self._next):
            self._next = _BEAT_SECONDS
            message = [self._worker.address, self._shard, self._server.position()]
            self._worker.log_event(self._topic, message)

    def stop(self) -> None:
        """Stop reporting."""
        self._stop.set()
