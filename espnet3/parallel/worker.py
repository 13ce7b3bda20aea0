"""A worker process: takes runs and their attempts from the driver over a pipe, until it closes.

It imports as little as it can, because the user waits for it. It dies with its driver: when the
pipe closes, whatever it is doing.
"""

import os
import queue
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from espnet3 import logs
from espnet3.errors import ConfigError, ProviderError
from espnet3.parallel.env_provider import BuiltParts
from espnet3.parallel.execute import (
    ShardLoop,
    check_env,
    free_memory,
    is_machine_trouble,
    rare_collections,
)
from espnet3.parallel.tasks import (
    Failure,
    RunSpec,
    ShardResult,
    ShardTask,
    Stopped,
    describe_error,
    secrets_held,
)

BEAT_SECONDS = 0.25  # how late a driver may see progress, or a worker that its driver is gone


def main() -> None:
    """Serve the driver at the other end of the file descriptor given as argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver decides what Ctrl-C means
    logs.log_to_stderr()
    log = sys.argv[2]
    link = Link(Connection(int(sys.argv[1])), log=log)
    parts = BuiltParts()
    server: ShardServer | None = None
    # A run, then attempts at its shards; then the log of the next run, that run, and so on.
    while (message := link.receive()) is not None:
        if isinstance(message, ShardTask):
            assert server is not None
            link.send(server.run(message))
        elif isinstance(message, str):
            log = message
            print_into(log)
        else:
            server = ShardServer(message, log=log, parts=parts)
            link.position = server.position


def print_into(log: str) -> None:
    """Append to a file from now on what this process prints.

    Raises:
        OSError: it cannot be opened.
    """
    with open(log, "ab") as file:
        # What was printed so far still goes to the old streams.
        sys.stdout.flush()
        sys.stderr.flush()
        # The descriptors and not `sys.stdout`, because libraries in C print as well.
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)


class Link:
    """The connection to the driver: a thread receives, and reports that this process is alive."""

    def __init__(self, connection: Connection, log: str) -> None:
        self._connection = connection
        self._lock = threading.Lock()  # two threads send, and messages must not mix
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.position: Any = lambda: -1
        # Before anything is unpickled: imports may take long, and the driver may be gone meanwhile.
        threading.Thread(target=self._serve, name="link", daemon=True).start()

    def receive(self) -> Any:
        """Wait for the next message; None means that there is no more work."""
        data = self._inbox.get()
        # Not in the receiving thread: importing what a pickle names would hold up the heartbeats.
        return _load(data) if data else None

    def send(self, result: ShardResult) -> None:
        """Report the end of an attempt."""
        self._send(b"R" + dump_result(result))

    def _serve(self) -> None:
        try:
            while True:
                if self._connection.poll(BEAT_SECONDS):
                    self._inbox.put(self._connection.recv_bytes())
                else:
                    self._send(b"B%d" % self.position())
        except (EOFError, OSError):
            # The driver is gone. Whatever forward() started goes with this process.
            os.killpg(os.getpgid(0), signal.SIGKILL)

    def _send(self, data: bytes) -> None:
        with self._lock:
            self._connection.send_bytes(data)


def dump_result(result: ShardResult) -> bytes:
    """Serialise a result, or if it cannot be, a result that says which item is to blame."""
    try:
        return _dump(result)
    except Exception as error:
        position, failing = _find_culprit(result, error)
        task = result.task
        index = task.items[position - task.start]
        problem = ProviderError(
            f"The result of item {index!r} cannot be sent to the driver ({failing}). Return plain "
            "data, numpy arrays or CPU tensors, or write it to disk with output_dir."
        )
        failure = Failure.of(problem, position, index, task.shard)
        return _dump(ShardResult(task, stopped=Stopped("provider", failure)))


def load_result(data: bytes, task: ShardTask) -> ShardResult:
    """Undo `dump_result`; what cannot be read, such as an odd exception class, stops the run."""
    try:
        result: ShardResult = cloudpickle.loads(data)
        return result
    except Exception as error:
        problem = ProviderError(
            f"A result of items {task.start} to {task.stop - 1} cannot be read by the driver "
            f"({describe_error(error)}). Return plain data, numpy arrays or CPU tensors, or write "
            "it to disk with output_dir."
        )
        failure = Failure.of(problem, task.start, None, task.shard)
        return ShardResult(task, stopped=Stopped("provider", failure))


def _load(data: bytes) -> Any:
    with rare_collections():  # what a run names may import all that the user has
        return cloudpickle.loads(data)


def _dump(result: ShardResult) -> bytes:
    data: bytes = cloudpickle.dumps(_without_original(result))
    return data


def _without_original(result: ShardResult) -> ShardResult:
    # An exception of the user's may not survive pickling; its text already has all there is. One
    # about a setting does, and knows the key, to which the driver adds file and line.
    stopped = result.stopped
    if stopped is None or type(stopped.original) in (type(None), ConfigError):
        return result
    return ShardResult(
        result.task, failures=result.failures, stopped=Stopped(stopped.kind, stopped.failure)
    )


def _find_culprit(result: ShardResult, error: Exception) -> tuple[int, Exception]:
    for position, value in result.results or []:
        try:
            cloudpickle.dumps(value)
        except Exception as failing:
            return position, failing
    return result.task.start, error


def load_server(
    packed: bytes, task: ShardTask, parts: BuiltParts, log: str = ""
) -> "ShardServer | ShardResult":
    """Unpack a run in a worker; if it cannot be, return what to report of the attempt."""
    try:
        return ShardServer(_load(packed), log=log, parts=parts)
    except Exception as error:  # mostly a module that this worker cannot import
        failure = Failure.of(error, task.start, None, task.shard, log=log)
        return ShardResult(task, stopped=Stopped("provider", failure))


class ShardServer:
    """Builds the environment at the first attempt, and runs attempts with it.

    Not before: a failing build is then an ordinary error of a task, with a traceback.

    Args:
        spec: the run.
        log: where this process prints.
        parts: what it built for runs before, of which the environment may be made.
    """

    def __init__(self, spec: RunSpec, *, log: str = "", parts: BuiltParts | None = None) -> None:
        self._spec = spec
        self._log = log
        self._parts = parts or BuiltParts()
        self._loop: ShardLoop | None = None

    def position(self) -> int:
        """Return the item position that the running attempt has reached; -1 if none runs."""
        return self._loop.position() if self._loop else -1

    def run(self, task: ShardTask) -> ShardResult:
        """Run one attempt, building the environment first if there is none."""
        begin = time.monotonic()
        load_seconds = 0.0
        if self._loop is None:
            try:
                self._loop = ShardLoop(self._spec, self._build(), log=self._log)
            except Exception as error:
                return self._could_not_load(error, task)
            load_seconds = time.monotonic() - begin
        result = self._loop.run(task, load_seconds=load_seconds)
        if result.stopped is not None:
            self._parts.clear()  # what failed here may be broken
        return result

    def _build(self) -> dict[str, Any]:
        if self._parts.expect(self._spec.keys):
            free_memory()
        with rare_collections():
            env = self._parts.environment(self._spec.setup_fn)
        return check_env(env, "the provider's worker set-up function")

    def _could_not_load(self, error: Exception, task: ShardTask) -> ShardResult:
        self._parts.clear()
        held = secrets_held(self._spec.setup_fn, self._spec.settings)
        failure = Failure.of(error, task.start, None, task.shard, log=self._log, secrets=held)
        is_machine = not task.blames_item and is_machine_trouble(error, self._spec.run_dir)
        return ShardResult(task, stopped=Stopped("machine" if is_machine else "load", failure))
