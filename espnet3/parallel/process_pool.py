"""Pool of local worker processes, which are replaced when they die.

Not multiprocessing's: its spawn imports the user's script again, so that a script without a
`__main__` guard, like those of the documentation, would start itself over and over.
"""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path

import cloudpickle

from espnet3.parallel.pools import Died, Event, Finished, PoolWorker
from espnet3.parallel.tasks import ShardTask
from espnet3.parallel.worker import load_result
from espnet3.shards.owner import node_name

logger = logging.getLogger(__name__)

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "from espnet3.parallel.worker import main; main()"
)
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class ProcessPool:
    """`n_workers` processes that each run one attempt at a time.

    Args:
        spec: the pickled `RunSpec`.
        n_workers: how many to keep alive until `stop`.
        threads: what the numerical libraries may use in each, unless the user's environment says.
        log_dir: the folder of the logs; None lets workers write to this program's stderr.
        log: one log for all of them instead.
        worker_timeout: seconds of silence after which a worker counts as frozen.
        variables: what to set in the environment of each, by rank; nothing if there are none.
    """

    def __init__(
        self,
        spec: bytes,
        n_workers: int,
        *,
        threads: int = 1,
        log_dir: Path | None = None,
        log: Path | None = None,
        worker_timeout: float = 300.0,
        variables: Sequence[Mapping[str, str]] = (),
    ) -> None:
        self._spec = spec
        self._variables = variables
        self._threads = threads
        self._log_dir = log_dir
        self._log = log
        self._worker_timeout = worker_timeout
        self._workers: dict[str, _Worker] = {}
        for rank in range(n_workers):
            self._start(rank)

    def idle(self) -> list[str]:
        """Return the workers without an attempt; a starting one may be given its first."""
        return [name for name, worker in self._workers.items() if worker.task is None]

    def submit(self, worker: str, task: ShardTask) -> None:
        """Send an attempt to a worker; if it has died meanwhile, `poll` will tell."""
        self._workers[worker].submit(task)

    def poll(self, timeout: float) -> list[Event]:
        """Wait for messages and deaths; replace the dead."""
        by_connection = {worker.connection: worker for worker in self._workers.values()}
        events: list[Event] = []
        for connection in wait(list(by_connection), timeout):
            worker = by_connection[connection]  # type: ignore[index]
            result = worker.receive()
            if result is not None:
                events.append(result)
        for worker in list(self._workers.values()):
            reason = worker.reason_of_death(self._worker_timeout)
            if reason is not None:
                events.append(self._record_death(worker, reason))
        return events

    def expect(self, n_left: int) -> None:
        """Do nothing: the number of workers is fixed."""

    def waiting(self) -> str:
        """Return nothing: these workers do not queue."""
        return ""

    def workers(self) -> list[PoolWorker]:
        """Return the processes."""
        host = node_name()
        return [
            PoolWorker(worker.name, host, worker.process.pid, log=worker.log)
            for worker in self._workers.values()
        ]

    def positions(self) -> dict[str, int]:
        """Return what the busy workers last said of their position."""
        workers = list(self._workers.items())  # at once: the progress thread asks as well
        return {name: worker.position for name, worker in workers if worker.task}

    def kill(self, worker: str, reason: str) -> None:
        """Kill a worker and all that it started."""
        self._workers[worker].kill(reason)

    def stop(self) -> None:
        """Kill all workers and wait for them."""
        for worker in self._workers.values():
            # SIGKILL at once: nothing is lost, since an attempt counts only once it is committed.
            worker.kill("the run ended")
        for worker in self._workers.values():
            worker.process.wait()
            worker.connection.close()
        self._workers.clear()

    def _start(self, rank: int) -> None:
        own = self._variables[rank] if self._variables else {}
        environment = {**_environment(rank, self._threads), **own}
        worker = _Worker(rank, self._spec, environment, self._log or self._own_log(rank))
        self._workers[worker.name] = worker

    def _own_log(self, rank: int) -> Path | None:
        stamp = f"{socket.gethostname()}-{os.getpid()}-{rank}"
        return self._log_dir / f"worker-{stamp}.log" if self._log_dir else None

    def _record_death(self, worker: "_Worker", reason: str) -> Died:
        del self._workers[worker.name]
        worker.kill(reason)
        worker.process.wait()
        worker.connection.close()
        logger.warning("Worker %s died: %s. A new one is started.", worker.name, reason)
        # The same rank: it decides the GPU, and that of the dead one is free again.
        self._start(worker.rank)
        return Died(worker.name, worker.task, reason, worker.log, host=node_name())


class _Worker:
    """One process, the connection to it, and what it is doing."""

    def __init__(
        self, rank: int, spec: bytes, environment: dict[str, str], log: Path | None
    ) -> None:
        self.rank = rank
        # A socket pair, not a queue: the worker sees its end when the driver is gone, however it
        # died (ADR 2).
        ours, theirs = socket.socketpair()
        self.log = str(log) if log else ""
        self.process = _spawn(theirs, self.log, environment)
        # Else this process would keep the worker's end open, and never see that it died.
        theirs.close()
        self.name = f"{rank} (pid {self.process.pid})"
        self.connection = Connection(ours.detach())
        self.task: ShardTask | None = None
        self.position = -1
        self._last_sign = time.monotonic()
        self._killed_for: str | None = None
        self._send(spec)

    def submit(self, task: ShardTask) -> None:
        self.task = task
        self.position = -1
        self._send(cloudpickle.dumps(task))

    def _send(self, data: bytes) -> None:
        with suppress(OSError):  # it died; poll() finds out and says why
            self.connection.send_bytes(data)

    def receive(self) -> Finished | None:
        try:
            data = self.connection.recv_bytes()
        except (EOFError, OSError):
            self._await_exit()
            return None
        self._last_sign = time.monotonic()
        if data[:1] == b"B":
            self.position = int(data[1:])
            return None
        task, self.task = self.task, None
        assert task is not None
        return Finished(self.name, load_result(data[1:], task))

    def _await_exit(self) -> None:
        # The pipe closes a moment before the exit code is there, which says why it died.
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=1)

    def reason_of_death(self, timeout: float) -> str | None:
        code = self.process.poll()
        if self._killed_for is not None and code is not None:
            return self._killed_for
        if code is not None:
            return describe_exit(code)
        if time.monotonic() - self._last_sign > timeout:
            return f"frozen: no sign of life for {timeout:g} s"
        return None

    def kill(self, reason: str) -> None:
        self._killed_for = self._killed_for or reason
        with suppress(ProcessLookupError, PermissionError):
            # Its group: a forward() may have started processes of its own.
            os.killpg(self.process.pid, signal.SIGKILL)


def _spawn(link: socket.socket, log: str, environment: dict[str, str]) -> "subprocess.Popen[bytes]":
    # A Path among them, as notebooks have it, is ignored by Python too.
    sys_path = json.dumps([entry for entry in sys.path if isinstance(entry, str)])
    # Not multiprocessing: spawn would import the main script again, and fork breaks threads and
    # CUDA (ADR 2).
    command = [sys.executable, "-c", _BOOT, sys_path, str(link.fileno()), log]
    with open(log, "ab") if log else nullcontext() as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            pass_fds=[link.fileno()],
            start_new_session=True,  # the terminal's Ctrl-C must reach the driver only
        )


def _environment(rank: int, threads: int) -> dict[str, str]:
    # Without a limit each worker would start as many threads as the machine has cores.
    limits = {name: str(threads) for name in THREAD_VARIABLES}
    # The user's own thread limits win. Unbuffered, so that the log of a killed worker has its last
    # lines.
    return {**limits, **os.environ, "LOCAL_RANK": str(rank), "PYTHONUNBUFFERED": "1"}


def describe_exit(code: int) -> str:
    """Say in words how a process ended."""
    if code >= 0:
        return f"it exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (which is what the kernel sends when memory runs out)" if name == "SIGKILL" else ""
    return f"it was ended by {name}{hint}"
