"""Worker pool on Ray: the driver's side, and the actor that each worker is.

Ray places the actors, moves the bytes and reports deaths; which shard runs where is decided by the
dispatcher, and a dead worker is replaced by a new actor.

Actors import this module as well, and the user waits for them: it imports little.
"""

import logging
import os
import queue
import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle

from espnet3 import logs
from espnet3.errors import WorkerError
from espnet3.parallel.dask_pool import MissingWorkers, driver_sys_path
from espnet3.parallel.execute import BuiltParts
from espnet3.parallel.tasks import Died, Event, Finished, PoolWorker, ShardAttempt, ShardResult
from espnet3.parallel.worker import (
    ShardServer,
    dump_result,
    load_result,
    load_server,
    print_into,
)
from espnet3.schedulers import node_name
from espnet3.text import folded

if TYPE_CHECKING:
    from concurrent.futures import Future

    from espnet3.parallel.clusters.ray import RayCluster

logger = logging.getLogger(__name__)
_BEAT_SECONDS = 1.0
_LOOK_SECONDS = 1.0
_STOP_SECONDS = 5.0
_MAX_FAILED_STARTS = 3  # in a row; then it is the environment of the workers
_MAX_REASON = 300


class RayPool:
    """`n_workers` actors that each run one attempt at a time, wherever Ray has room for them.

    Args:
        cluster: the open connection.
        spec: the pickled `RunSpec`.
        n_workers: how many to ask for; the run begins with the first.
        log_dir: the folder of the logs; None leaves what they print to Ray.
        worker_timeout: seconds of silence after which a worker counts as frozen.
    """

    def __init__(
        self,
        cluster: "RayCluster",
        spec: bytes,
        n_workers: int,
        *,
        log_dir: Path | None = None,
        worker_timeout: float = 300.0,
    ) -> None:
        self._cluster = cluster
        self._spec = spec
        self._n_workers = self._n_left = n_workers
        self._log_dir = str(log_dir) if log_dir else ""
        self._worker_timeout = worker_timeout
        self._class = cluster.worker_class(RayWorker)
        # Not ray.wait(): it would take a signal of ours for its own.
        self._inbox: queue.SimpleQueue[tuple[_Actor, Callable[..., Any], Any]] = queue.SimpleQueue()
        self._missing = MissingWorkers()
        self._next_look = 0.0
        self._failed_starts = 0
        self._starting: list[_Actor] = []
        self._workers: dict[str, _Actor] = {}
        for rank in range(n_workers):
            self._start(rank)
        self._tell_of_shortage()

    def serve(
        self,
        spec: bytes,
        n_workers: int,
        *,
        log_dir: Path | None = None,
        worker_timeout: float = 300.0,
    ) -> None:
        """Work for another run, with the actors that are there and those that it needs more."""
        self._spec, self._n_left = spec, n_workers
        self._n_workers = max(n_workers, len(self._workers))
        self._log_dir = str(log_dir) if log_dir else ""
        self._worker_timeout = worker_timeout
        for worker in self._starting:  # they know the run before only
            worker.kill("the run ended")
        self._starting = list(self._workers.values())
        self._workers.clear()
        for worker in self._starting:
            # Answered before it gets an attempt: an actor runs two calls at a time.
            self._ask(worker, worker.handle.serve.remote(spec, self._log_dir), self._welcome)
        there = {worker.rank for worker in self._starting}
        for rank in range(n_workers):
            if rank not in there:
                self._start(rank)

    def idle(self) -> list[str]:
        """Return the workers that have started and have no attempt."""
        return [name for name, worker in self._workers.items() if worker.task is None]

    def submit(self, worker: str, task: ShardAttempt) -> None:
        """Send an attempt to a worker; if it has died meanwhile, `poll` will tell."""
        actor = self._workers[worker]
        actor.begin(task)
        self._ask(actor, actor.handle.run.remote(cloudpickle.dumps(task)), self._end)

    def poll(self, timeout: float) -> list[Event]:
        """Wait for results and deaths; replace the dead."""
        events: list[Event] = []
        with suppress(queue.Empty):
            events += self._hear(*self._inbox.get(timeout=timeout))
            while True:
                events += self._hear(*self._inbox.get_nowait())
        self._look()
        return _with_company(events)

    def expect(self, n_left: int) -> None:
        """Set how many shards are queued or running; no more workers are replaced."""
        self._n_left = n_left

    def waiting(self) -> str:
        """Return why workers have not started and what to try; empty if all have."""
        return self._cluster.shortage(len(self._starting)) if self._starting else ""

    def workers(self) -> list[PoolWorker]:
        """Return the workers that have started."""
        return [
            PoolWorker(worker.name, worker.host, worker.pid, log=worker.log)
            for worker in list(self._workers.values())
        ]

    def positions(self) -> dict[str, int]:
        """Return what the busy workers last said of their position."""
        # Copied at once: the progress thread asks as well.
        return {name: each.position for name, each in [*self._workers.items()] if each.task}

    def kill(self, worker: str, reason: str) -> None:
        """Kill an actor; `poll` reports it as died."""
        self._workers[worker].kill(reason)

    def stop(self) -> None:
        """Kill all actors, and wait for those that were at work."""
        everyone = [*self._starting, *self._workers.values()]
        busy = {worker for worker in self._workers.values() if worker.task}
        self._starting.clear()
        self._workers.clear()
        for worker in everyone:
            worker.kill("the run ended")
        deadline = time.monotonic() + _STOP_SECONDS
        with suppress(queue.Empty):
            while busy:
                worker, handle, _ = self._inbox.get(timeout=max(deadline - time.monotonic(), 0))
                if handle == self._end:
                    busy.discard(worker)

    def _start(self, rank: int) -> None:
        folder = "" if self._cluster.has_working_dir() else os.getcwd()
        handle = self._class.remote(driver_sys_path(), folder, self._spec, self._log_dir, rank)
        worker = _Actor(rank, handle)
        self._starting.append(worker)
        self._ask(worker, handle.introduce.remote(), self._welcome)

    def _ask(self, worker: "_Actor", answer: Any, handle: Callable[..., Any]) -> None:
        """Let `poll` handle an answer when it is there; an answer may be an exception."""

        def put(future: "Future[Any]") -> None:
            self._inbox.put((worker, handle, future.exception() or future.result()))

        answer.future().add_done_callback(put)

    def _hear(self, worker: "_Actor", handle: Callable[..., Any], answer: Any) -> list[Event]:
        if worker not in self._starting and self._workers.get(worker.name) is not worker:
            return []  # of one that was given up before
        worker.last_sign = time.monotonic()
        events: list[Event] = handle(worker, answer) or []
        return events

    def _welcome(self, worker: "_Actor", answer: Any) -> None:
        self._starting.remove(worker)
        if isinstance(answer, BaseException):
            self._fail_start(worker, answer)
            return
        self._failed_starts = 0
        worker.host, worker.pid, worker.log = answer
        worker.name = f"{worker.rank} (pid {worker.pid} on {worker.host})"
        self._workers[worker.name] = worker

    def _fail_start(self, worker: "_Actor", error: BaseException) -> None:
        self._failed_starts += 1
        reason = _describe(error)
        if self._failed_starts >= _MAX_FAILED_STARTS or _is_about_environment(error):
            raise WorkerError(
                f"A worker could not be started in the Ray cluster: {reason}",
                fix="ESPnet3 must be installed on its nodes in the same version, and "
                "parallel.options.runtime_env be one that they can make",
            )
        logger.warning("A worker could not be started: %s. It is tried again.", reason)
        self._start(worker.rank)

    def _end(self, worker: "_Actor", answer: Any) -> list[Event]:
        task, worker.task = worker.task, None
        assert task is not None
        if not isinstance(answer, BaseException):
            return [Finished(worker.name, load_result(answer, task))]
        del self._workers[worker.name]
        reason = worker.killed_for or _describe(answer)
        worker.kill(reason)  # where it only cannot be reached, it must not come back
        is_needed = len(self._workers) + len(self._starting) < min(self._n_workers, self._n_left)
        logger.warning(
            "Worker %s died: %s.%s", worker.name, reason, " A new one is started." * is_needed
        )
        if is_needed:
            self._start(worker.rank)
        return [Died(worker.name, task, reason, worker.log, host=worker.host)]

    def _move(self, worker: "_Actor", answer: Any) -> None:
        worker.is_asked = False
        # If this is an exception, `run` gets one as well, and `_end` reports the death.
        if isinstance(answer, int) and worker.task:
            worker.position = answer

    def _look(self) -> None:
        """Ask busy workers how far they are, replace frozen ones, report missing ones."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_SECONDS
        for worker in self._workers.values():
            if worker.task is None:
                continue
            # One question at a time: a frozen actor must not pile them up.
            if not worker.is_asked:
                worker.is_asked = True
                self._ask(worker, worker.handle.position.remote(), self._move)
            elif now - worker.last_sign > self._worker_timeout and not worker.killed_for:
                worker.kill(f"frozen: no sign of life for {self._worker_timeout:g} s")
        self._missing.tell(len(self._workers), self.waiting(), now)

    def _tell_of_shortage(self) -> None:
        """Say at once if no node has room for a worker: one could wait for long."""
        if not self._cluster.has_room():
            shortage = self._cluster.shortage(self._n_workers)
            logger.warning("%s Waiting for one to join.", shortage)


class _Actor:
    """One worker as the driver knows it."""

    def __init__(self, rank: int, handle: Any) -> None:
        self.rank = rank
        self.handle = handle
        self.name = ""
        self.host = ""
        self.pid = 0
        self.log = ""
        self.task: ShardAttempt | None = None
        self.position = -1
        self.is_asked = False
        self.last_sign = time.monotonic()
        self.killed_for = ""

    def begin(self, task: ShardAttempt) -> None:
        self.task, self.position = task, -1
        # An idle worker is not asked, so that its last sign may be old.
        self.last_sign = time.monotonic()

    def kill(self, reason: str) -> None:
        import ray

        self.killed_for = self.killed_for or reason
        with suppress(Exception):  # it is dead already, or the connection is
            ray.kill(self.handle, no_restart=True)


class RayWorker:
    """The actor: builds its environment at the first attempt, and runs attempts with it."""

    def __init__(
        self, sys_path: list[str], folder: str, spec: bytes, log_dir: str, rank: int
    ) -> None:
        # Before unpacking: the runner may be of a module that only the driver's folders have.
        sys.path += [entry for entry in sys_path if entry not in sys.path]
        if os.path.isdir(folder):
            os.chdir(folder)  # relative paths are meant as the driver reads them
        os.environ["LOCAL_RANK"] = "0"  # Ray shows each worker its own GPUs only
        self._rank = rank
        self._parts = BuiltParts()
        self.serve(spec, log_dir)

    def serve(self, spec: bytes, log_dir: str) -> tuple[str, int, str]:
        """Work for a run, the first or the next one; return what `introduce` does."""
        self._spec = spec
        self._log = _log_into(log_dir, self._rank)
        self._server: ShardServer | None = None
        return self.introduce()

    def introduce(self) -> tuple[str, int, str]:
        """Return node, process and log."""
        return node_name(), os.getpid(), self._log

    def run(self, data: bytes) -> bytes:
        """Run an attempt; return the pickled `ShardResult`."""
        task: ShardAttempt = cloudpickle.loads(data)
        if self._server is None:
            loaded = load_server(self._spec, task, self._parts, log=self._log)
            if isinstance(loaded, ShardResult):
                return dump_result(loaded)
            self._server = loaded
        return dump_result(self._server.run(task))

    def position(self) -> int:
        """Return the position that the running attempt has reached; -1 if none runs."""
        return self._server.position() if self._server else -1


def _with_company(events: list[Event]) -> list[Event]:
    """Mark deaths at one moment: then it was their node, and not what they did."""
    n_dead = 0
    for number, event in enumerate(events):
        if isinstance(event, Died):
            events[number] = replace(event, went_with_others=n_dead > 0)
            n_dead += 1
    return events


def _log_into(log_dir: str, rank: int) -> str:
    """Write what this process prints into the run folder, as all workers do."""
    if not log_dir:
        return ""
    log = os.path.join(log_dir, f"worker-{node_name()}-{os.getpid()}-{rank}.log")
    try:
        print_into(log)
    except OSError:  # the attempt will tell that this node cannot reach the run folder
        return ""
    logs.log_to_stderr()
    return log


def _describe(error: BaseException) -> str:
    """Return the part of Ray's pages that says why an actor is gone."""
    text = folded(error)
    if match := re.search(r"The actor is dead because (.*)", text):
        text = match[1]
    if "temporarily unavailable" in text:
        text = f"its process or its node cannot be reached any more ({text})"
    text = text.partition(" Some common causes include")[0].replace(
        "Worker exit type: SYSTEM_ERROR Worker exit detail: ", ""
    )
    return text[:_MAX_REASON].rstrip(". ")


def _is_about_environment(error: BaseException) -> bool:
    from ray.exceptions import RuntimeEnvSetupError

    is_init = "error in actor creation" in str(error) or "creation task" in str(error)
    return isinstance(error, RuntimeEnvSetupError) or is_init
