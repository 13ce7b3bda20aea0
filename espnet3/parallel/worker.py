"""A worker process: takes runs and their attempts from the driver over a pipe, until it closes.

It imports as little as it can, because the user waits for it. It dies with its driver: when the
pipe closes, whatever it is doing.

The workers of a pool are forked from one warm process (ADR 22), whose program is `serve`. It
imports what all of them need, once, and has no threads. When a module of the user's did at its
import what a fork would share or lose, it says so instead, and workers start plainly.
"""

import gc
import importlib
import json
import os
import queue
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from fcntl import F_GETFL, F_SETFL, F_SETOWN, fcntl
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any, NoReturn

import cloudpickle

from espnet3 import logs
from espnet3.errors import ConfigError, ProviderError
from espnet3.memory import free_memory, rare_collections
from espnet3.parallel.execute import (
    BuiltParts,
    ShardLoop,
    check_env,
    is_machine_error,
)
from espnet3.parallel.tasks import (
    Failure,
    RunSpec,
    ShardAttempt,
    ShardResult,
    Stopped,
    describe_error,
    secrets_held,
    targets_of,
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
        if isinstance(message, ShardAttempt):
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


def load_result(data: bytes, task: ShardAttempt) -> ShardResult:
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
    packed: bytes, task: ShardAttempt, parts: BuiltParts, log: str = ""
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

    def run(self, task: ShardAttempt) -> ShardResult:
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

    def _could_not_load(self, error: Exception, task: ShardAttempt) -> ShardResult:
        self._parts.clear()
        held = secrets_held(self._spec.setup_fn, self._spec.settings)
        failure = Failure.of(error, task.start, None, task.shard, log=self._log, secrets=held)
        is_machine = not task.blames_item and is_machine_error(error, self._spec.run_dir)
        return ShardResult(task, stopped=Stopped("machine" if is_machine else "load", failure))


WARM_NAME = "espnet3-warm"
"""As `top` and `ps -o comm` show it."""
_OWN_NAME = "/proc/self/comm"
_MESSAGE_BYTES = 1_000_000  # more than the kernel lets through


def serve() -> None:
    """Fork a worker at each request of the driver; returns in the workers only.

    Its arguments are the file descriptor of the driver, and the variables that differ by worker.
    Its standard input holds the packed run.
    """
    driver = socket.socket(fileno=int(sys.argv[1]))
    program = _rename(WARM_NAME)
    with _ending_with(driver):
        unsafe = _import_all(set(json.loads(sys.argv[2])))
    _tell(driver, "unsafe" if unsafe else "ready", unsafe)
    if unsafe:
        os._exit(0)  # not `sys.exit`: what the user's modules want at their end is for workers
    gc.freeze()  # else the next collection of each worker would copy the pages of all objects
    _Server(driver).run()
    _rename(program)


def _rename(name: str) -> str:
    with open(_OWN_NAME, "r+") as file:
        before = file.read().strip()
        file.write(name)
    return before


@contextmanager
def _ending_with(driver: socket.socket) -> Iterator[None]:
    """End this process with its driver, also inside an import that hangs; without a thread.

    The driver sends nothing meanwhile, so that the first thing to happen at the socket is its end,
    for which the kernel sends SIGIO.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    flags = fcntl(driver, F_GETFL)
    fcntl(driver, F_SETOWN, os.getpid())
    fcntl(driver, F_SETFL, flags | os.O_ASYNC)
    if _is_readable(driver):  # it ended before
        os._exit(1)
    yield
    fcntl(driver, F_SETFL, flags)


def _is_readable(link: socket.socket) -> bool:
    try:
        link.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    return True


def _tell(driver: socket.socket, *message: Any) -> None:
    try:
        driver.send(json.dumps(message).encode())
    except OSError:  # the driver is gone
        os._exit(1)


# --- What must not be forked.


def _import_all(variables: set[str]) -> str:
    """Import what the run names; return why this process must not be forked, or nothing."""
    data = sys.stdin.buffer.read()
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    files, numbers = _open_files(), random.getstate()
    gc.freeze()  # so that only what is made from here on is looked through
    try:
        with _Watch(variables) as watch:
            for target in targets_of(cloudpickle.loads(data).setup_fn):
                with suppress(ImportError):  # if misspelt, the provider that builds it says so
                    importlib.import_module(target.rpartition(".")[0])
    except BaseException as error:  # also SystemExit: a worker that starts plainly tells the user
        return f"loading the run raised {type(error).__name__}"
    opened = sorted(_open_files() - files)
    reasons = {
        "is read when a module is imported": " and ".join(sorted(watch.read)),
        "is kept open by a module": ", ".join(opened),
        "is started by a module when it is imported": _company(),
        "is used by a module when it is imported": _cuda() or _randomness(numbers),
    }
    return next((f"{what} {reason}" for reason, what in reasons.items() if what), "")


class _Watch:
    """Notes whether something is asked for that is another in each worker."""

    def __init__(self, variables: set[str]) -> None:
        self._variables = {os.fsencode(name) for name in variables}
        self.read: set[str] = set()

    def __enter__(self) -> "_Watch":
        watch, environ = self, self._environ()

        class Watched(dict[bytes, bytes]):
            def __getitem__(self, name: bytes) -> bytes:
                watch.note(name)
                return super().__getitem__(name)

            def __contains__(self, name: object) -> bool:
                watch.note(name)
                return super().__contains__(name)

        self._before = environ._data
        environ._data = Watched(environ._data)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._before.clear()
        self._before.update(self._environ()._data)
        self._environ()._data = self._before

    def note(self, name: object) -> None:
        """Note that a variable was read."""
        if name in self._variables:
            self.read.add(os.fsdecode(name))

    @staticmethod
    def _environ() -> Any:
        return os.environ


def _open_files() -> set[str]:
    """Return what is open: files, sockets, and the devices that CUDA opens."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:  # that of the list itself
            continue
    return found


def _company() -> str:
    """Name what runs beside the main thread: forked, it would be missing or shared."""
    if len(os.listdir("/proc/self/task")) > 1:
        return "a thread"
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return ""
    return "a process"


def _cuda() -> str:
    torch = sys.modules.get("torch")
    return "CUDA" if torch and torch.cuda.is_initialized() else ""


def _randomness(numbers: Any) -> str:
    """Name random numbers that are another in each fresh process, or were seeded at an import."""
    if random.getstate() != numbers:
        return "random"
    numpy, kinds = sys.modules.get("numpy"), [random.Random]
    common: list[Any] = [random._inst]
    if numpy:
        common.append(numpy.random.mtrand._rand)
        kinds += [numpy.random.Generator, numpy.random.RandomState]
        if not _is_untouched(numpy):
            return "numpy.random"
    things = gc.get_objects()
    own = {kind for kind in set(map(type, things)) if issubclass(kind, tuple(kinds))}
    own.discard(random.SystemRandom)  # which has no state
    made = (type(thing) for thing in things if type(thing) in own and thing not in common)
    kind = next(made, None)
    return f"{kind.__module__}.{kind.__qualname__}" if kind else ""


def _is_untouched(numpy: Any) -> bool:
    """Tell whether numpy's common generator is as the import of numpy has left it."""
    generator = numpy.random.mtrand._rand._bit_generator
    seeds = getattr(generator, "seed_seq", None)
    if seeds is None:  # seeded, or a numpy before 1.25
        return False
    state, first = generator.state["state"], numpy.random.MT19937(seeds).state["state"]
    return bool(state["pos"] == first["pos"] and (state["key"] == first["key"]).all())


# --- Forking.


class _Server:
    """Forks workers, and reports how they ended."""

    def __init__(self, driver: socket.socket) -> None:
        self._driver = driver
        self._children: dict[int, int] = {}
        self._previous = signal.signal(signal.SIGCHLD, self._report)

    def run(self) -> None:
        """Serve until the driver is gone; returns in the workers only."""
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self._driver, _MESSAGE_BYTES, 3)
            except OSError:
                data = b""
            if not data:
                self._end()
            request = json.loads(data)
            for pid in request["gone"]:
                os.waitpid(pid, 0)
            pid = os.fork()
            if not pid:
                signal.signal(signal.SIGCHLD, self._previous)
                _become_worker(request, fds, self._driver)
                return
            self._children[pid] = request["ticket"]
            for fd in fds:
                os.close(fd)
            self._report()  # one that ended before it was noted

    def _end(self) -> NoReturn:
        """End, with the time that workers have used as part of this process's, as ever."""
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                continue
        os._exit(0)

    def _report(self, number: int = 0, frame: FrameType | None = None) -> None:
        for pid, ticket in list(self._children.items()):
            # The zombie stays until the driver has killed its group: its number is not used again.
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None and self._children.pop(pid, None) is not None:
                is_exit = ended.si_code == os.CLD_EXITED
                _tell(self._driver, "ended", ticket, pid, ended.si_status * (1 if is_exit else -1))


def _become_worker(request: Mapping[str, Any], fds: list[int], driver: socket.socket) -> None:
    """Make of this forked process what a plain start would have made of a new one."""
    os.setsid()
    _tell(driver, "started", request["ticket"], os.getpid())
    driver.close()
    link, folder, *log = fds
    os.fchdir(folder)
    os.close(folder)
    for file in log:
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.close(file)
    os.set_inheritable(link, False)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[:] = request["path"]
    sys.argv[:] = ["-c", str(link), request["log"]]
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()  # Python itself does so for `random`; that of torch is the same always
