"""Pool of local worker processes, which are replaced when they die; and how each is started.

Not multiprocessing's: its spawn imports the user's script again, so that a script without a
`__main__` guard, like those of the documentation, would start itself over and over. Workers are
forked from a warm process (ADR 22), from a spare one (ADR 27), or start plainly.

Spare processes are forked while this one has no threads, and nothing of the user's is loaded; each
becomes a program when it is needed. A detached worker needs two soon after its start: the child
that does the work, and the program that submits its successor. Each would be a Python that imports
what this one has imported.
"""

import gc
import importlib
import io
import itertools
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, Protocol

import cloudpickle

from espnet3.parallel.tasks import Died, Event, Finished, PoolWorker, ShardAttempt
from espnet3.parallel.worker import load_result
from espnet3.schedulers import node_name
from espnet3.shards.lease import start_time
from espnet3.text import count, duration

logger = logging.getLogger(__name__)

# The driver's `sys.path`: modules beside the user's script are pickled by name.
_PATH = "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
_SERVE = "from espnet3.parallel.worker import serve; serve(); "
_MODULE = "espnet3.parallel.worker"
_WORK = f"from {_MODULE} import main; main()"
STOP_SECONDS = 10.0
"""How long the end of a run waits for killed workers; the kernel ends most of them at once."""
_ANSWER_SECONDS = 5.0  # it takes milliseconds, or is stopped
_SLOW_SECONDS = 10.0
_IT = "The process from which workers are forked"
_END_SECONDS = 1.0
_LOOK_SECONDS = 0.01
_MESSAGE_BYTES = 65_536
_UNKNOWN_CODE = 256  # no process ends with it
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
        spare: a process that waits to become the first of them.
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
        spare: "Spare | None" = None,
    ) -> None:
        self._spec = spec
        self._spare = spare
        self._variables = variables
        self._threads = threads
        self._log_dir = log_dir
        self._log = log
        self._worker_timeout = worker_timeout
        self._workers: dict[str, _Worker] = {}
        self._missing = list(range(n_workers))
        self._warm = self._warm_up()
        self._start_missing()

    def serve(
        self,
        spec: bytes,
        n_workers: int,
        *,
        log_dir: Path | None = None,
        log: Path | None = None,
        worker_timeout: float = 300.0,
    ) -> None:
        """Work for another run, with the processes that are there and those that it needs more."""
        self._spec, self._log_dir, self._log = spec, log_dir, log
        self._worker_timeout = worker_timeout
        if self._warm:
            self._warm.collect()  # it knows which have ended
        for worker in list(self._workers.values()):
            if worker.process.poll() is None:
                worker.serve(spec, log or self._own_log(worker.rank))
            else:  # unnoticed since the run before, of which it is no matter
                self._forget(worker)
        there = {worker.rank for worker in self._workers.values()}
        self._missing = [rank for rank in range(n_workers) if rank not in there]
        self._start_missing()

    def idle(self) -> list[str]:
        """Return the workers without an attempt; a starting one may be given its first."""
        return [name for name, worker in self._workers.items() if worker.task is None]

    def submit(self, worker: str, task: ShardAttempt) -> None:
        """Send an attempt to a worker; if it has died meanwhile, `poll` will tell."""
        self._workers[worker].submit(task)

    def poll(self, timeout: float) -> list[Event]:
        """Wait for messages and deaths; replace the dead."""
        by_connection: dict[Any, _Worker] = {
            worker.connection: worker for worker in self._workers.values()
        }
        events: list[Event] = []
        links = [self._warm.link] if self._warm and self._warm.state != "gone" else []
        for connection in wait([*by_connection, *links], timeout):
            if connection in by_connection:
                result = by_connection[connection].receive()
                if result is not None:
                    events.append(result)
        if self._warm:
            self._warm.collect()
        for worker in list(self._workers.values()):
            reason = worker.reason_of_death(self._worker_timeout)
            if reason is not None:
                events.append(self._record_death(worker, reason))
        self._start_missing()
        return events

    def expect(self, n_left: int) -> None:
        """Do nothing: the number of workers is fixed."""

    def waiting(self) -> str:
        """Return what holds up the start of workers, if it takes long."""
        if self._warm and self._warm.state == "importing" and self._warm.seconds() > _SLOW_SECONDS:
            return f"{_IT} still imports what the run needs."
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
        """Kill all workers and wait for them, but not forever: one may hang in the kernel."""
        for worker in self._workers.values():
            # SIGKILL at once: nothing is lost, since an attempt counts only once it is committed.
            worker.kill("the run ended")
        deadline = time.monotonic() + STOP_SECONDS
        # One deadline for all of them: several hung workers must not add up.
        left = [worker for worker in self._workers.values() if not worker.ends_by(deadline)]
        for worker in self._workers.values():
            worker.connection.close()
        self._workers.clear()
        self._missing.clear()
        if self._warm:
            self._warm.close()
        if left:
            pids = " ".join(str(worker.process.pid) for worker in left)
            logger.warning(
                "%s did not end within %g s of SIGKILL, as when a file server does not answer. "
                "If it lasts: kill -9 %s", count(len(left), "worker"), STOP_SECONDS, pids,
            )  # fmt: skip

    def _warm_up(self) -> "_WarmStart | None":
        # One worker is there sooner without, and a detached worker has one, for which there is a
        # spare process.
        if self._spare and self._spare.is_waiting:
            return None
        if len(self._missing) < 2 or not hasattr(os, "memfd_create"):  # of Linux
            logger.info("Workers start plainly: %s", count(len(self._missing), "worker"))
            return None
        own = [self._environment(rank) for rank in self._missing]
        differing = {name for name in own[0] if any(own[0][name] != each[name] for each in own)}
        common = {name: value for name, value in own[0].items() if name not in differing}
        return _WarmStart(self._spec, common, differing, self._log or self._own_log(0))

    def _start_missing(self) -> None:
        """Start the workers that should be there, once it is known how."""
        if self._warm and self._warm.state == "importing":
            return
        ranks, self._missing = self._missing, []
        for rank in ranks:
            log = self._log or self._own_log(rank)
            spare, self._spare = self._spare, None  # those that replace it start plainly
            worker = _Worker(rank, self._spec, self._environment(rank), log, self._warm, spare)
            self._workers[worker.name] = worker

    def _environment(self, rank: int) -> dict[str, str]:
        own = self._variables[rank] if self._variables else {}
        return {**_environment(rank, self._threads), **own}

    def _own_log(self, rank: int) -> Path | None:
        stamp = f"{socket.gethostname()}-{os.getpid()}-{rank}"
        return self._log_dir / f"worker-{stamp}.log" if self._log_dir else None

    def _forget(self, worker: "_Worker") -> None:
        del self._workers[worker.name]
        worker.connection.close()
        if self._warm:
            self._warm.forget(worker.process.pid)

    def _record_death(self, worker: "_Worker", reason: str) -> Died:
        worker.kill(reason)
        worker.process.wait()
        self._forget(worker)
        logger.warning("Worker %s died: %s. A new one is started.", worker.name, reason)
        # The same rank: it decides the GPU, and that of the dead one is free again.
        self._missing.append(worker.rank)
        return Died(worker.name, worker.task, reason, worker.log, host=node_name())


class _Process(Protocol):
    """Protocol of a worker process, however it was started."""

    pid: int

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...


class _Worker:
    """One process, the connection to it, and what it is doing."""

    def __init__(
        self,
        rank: int,
        spec: bytes,
        environment: dict[str, str],
        log: Path | None,
        warm: "_WarmStart | None",
        spare: "Spare | None" = None,
    ) -> None:
        self.rank = rank
        # A socket pair, not a queue: the worker sees its end when the driver is gone, however it
        # died (ADR 2).
        ours, theirs = socket.socketpair()
        self.log = str(log) if log else ""
        forked: _Process | None = warm.fork(theirs, self.log, environment) if warm else None
        if spare and spare.is_waiting:
            own: dict[str, Any] = {"environment": environment, "path": _sys_path()}
            forked = spare.become(_MODULE, [self.log], link=theirs, log=self.log, **own)
            logger.info("The worker starts %s", "from a spare process" if forked else "plainly")
        self.process: _Process = forked or _spawn(theirs, self.log, environment)
        # Else this process would keep the worker's end open, and never see that it died.
        theirs.close()
        self.name = f"{rank} (pid {self.process.pid})"
        self.connection = Connection(ours.detach())
        self.task: ShardAttempt | None = None
        self.position = -1
        self._last_sign = time.monotonic()
        self._killed_for: str | None = None
        self._send(spec)

    def serve(self, spec: bytes, log: Path | None) -> None:
        # Heartbeats since the run before. While they fill the pipe, the worker cannot read it.
        with suppress(EOFError, OSError):
            while self.connection.poll():
                self.connection.recv_bytes()
        self._last_sign = time.monotonic()
        if log:
            self.log = str(log)
            self._send(cloudpickle.dumps(self.log))
        self._send(spec)

    def submit(self, task: ShardAttempt) -> None:
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

    def ends_by(self, deadline: float) -> bool:
        """Wait for the process; tell whether it ended, by `time.monotonic`."""
        try:
            self.process.wait(timeout=max(deadline - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            return False
        return True

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
        # The first reason is the true one; later kills only make sure.
        self._killed_for = self._killed_for or reason
        with suppress(ProcessLookupError, PermissionError):
            # Its group: a forward() may have started processes of its own.
            os.killpg(self.process.pid, signal.SIGKILL)


class _WarmStart:
    """The process from which workers are forked, if its imports allow it (`warm_start.serve`).

    Args:
        spec: the pickled `RunSpec`, whose modules it imports.
        environment: what all workers have in common.
        differing: the variables that are others in each worker.
        log: where what modules print when they are imported goes.
    """

    def __init__(
        self, spec: bytes, environment: dict[str, str], differing: set[str], log: Path | None
    ) -> None:
        self.state = "importing"  # then "ready", and at last "gone"
        self._begin = time.monotonic()
        self._tickets = itertools.count()
        self._started: dict[int, int] = {}
        self._to_reap: list[int] = []
        self.ended: dict[int, int] = {}
        # Messages with borders, and EOF for either side when the other is gone.
        self.link, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        words = [_PATH + _SERVE + _WORK, str(theirs.fileno()), json.dumps(sorted(differing))]
        with theirs, os.fdopen(os.memfd_create("run"), "r+b") as run:
            run.write(spec)
            run.seek(0)
            self._process = _popen(words, theirs, str(log or ""), environment, stdin=run)

    def seconds(self) -> float:
        """Return how long it has been there."""
        return time.monotonic() - self._begin

    def collect(self, timeout: float = 0.0) -> None:
        """Take its messages, if there are any within the time."""
        while self.state != "gone" and wait([self.link], timeout):
            timeout = 0.0
            try:
                message = self.link.recv(_MESSAGE_BYTES)
            except OSError:
                message = b""
            if message:
                self._take(*json.loads(message))
            else:
                self.close()
                reason = describe_exit(self._process.returncode or 0)
                logger.warning("%s is gone: %s. Workers start plainly from now on.", _IT, reason)

    def _take(self, what: str, *values: Any) -> None:
        if what == "ready":
            self.state = what
            logger.info("Workers are forked from one process, warm in %s", duration(self.seconds()))
        elif what == "unsafe":
            self.close()
            logger.info("Workers start plainly, each with its own imports: %s", *values)
        else:  # of one that was killed before it could say that it started, as well
            ticket, pid, *code = values
            self._started[ticket] = pid
            if code:
                self.ended[pid] = code[0]

    def fork(self, link: socket.socket, log: str, environment: dict[str, str]) -> "_Forked | None":
        """Return a new worker, or None if it has to be started plainly."""
        if self.state != "ready":
            return None
        request = {
            "ticket": (ticket := next(self._tickets)),
            "gone": self._to_reap,
            "path": _sys_path(),
            "environment": environment,
            "log": log,
        }
        self._to_reap = []
        # As a descriptor: it may have been removed, or be in a place that has lost its name.
        folder = os.open(".", os.O_PATH)
        try:
            with open(log, "ab") if log else nullcontext() as output:
                fds = [link.fileno(), folder, *([output.fileno()] if output else [])]
                socket.send_fds(self.link, [json.dumps(request).encode()], fds)
        except OSError:  # it is gone; or an environment too large for a message
            return None
        finally:
            os.close(folder)
        deadline = time.monotonic() + _ANSWER_SECONDS
        while ticket not in self._started and self.state != "gone":
            self.collect(deadline - time.monotonic())
            if time.monotonic() > deadline:
                self.give_up()
        pid = self._started.pop(ticket, None)
        return _Forked(self, pid) if pid else None

    def forget(self, pid: int) -> None:
        """Let the number of a worker that ended be used again: its group was killed."""
        if self.ended.pop(pid, None) is not None:
            self._to_reap.append(pid)

    def give_up(self) -> None:
        """Say that it does not answer, and end it."""
        logger.warning("%s does not answer. Workers start plainly from now on.", _IT)
        self.close()

    def close(self) -> None:
        """End the process, but none that was forked from it."""
        if self.state == "gone":
            return
        self.state = "gone"
        self.link.close()  # which ends it
        for seconds in (_END_SECONDS, STOP_SECONDS):
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:  # it was stopped, or hangs in the kernel
                self._process.kill()


class _Forked:
    """A worker that is a child of the warm process, which tells how it ended."""

    def __init__(self, warm: _WarmStart, pid: int) -> None:
        self.pid = pid
        self._warm = warm
        self._start_time = start_time(pid) or 0
        self._silent_since: float | None = None

    def poll(self) -> int | None:
        """Return the exit code, as `subprocess.Popen` does."""
        if self.pid in self._warm.ended or self._warm.state != "gone":
            return self._warm.ended.get(self.pid)
        is_there = start_time(self.pid) == self._start_time
        return None if is_there else _UNKNOWN_CODE

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; raises `TimeoutExpired` like `subprocess.Popen`."""
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise subprocess.TimeoutExpired("worker", timeout or 0.0)
            if self._warm.state == "gone":
                time.sleep(min(left, _LOOK_SECONDS))
            else:
                self._warm.collect(min(left, 1.0))
                self._expect_report()
        return code

    def _expect_report(self) -> None:
        """Stop using the warm process if it does not report that this one has ended."""
        if self.pid in self._warm.ended or start_time(self.pid) is not None:
            return
        self._silent_since = self._silent_since or time.monotonic()
        if time.monotonic() - self._silent_since > _ANSWER_SECONDS:
            self._warm.give_up()


def _spawn(link: socket.socket, log: str, environment: dict[str, str]) -> "subprocess.Popen[bytes]":
    # Not multiprocessing: spawn would import the main script again, and fork breaks threads and
    # CUDA (ADR 2).
    return _popen([_PATH + _WORK, str(link.fileno()), log], link, log, environment)


def _popen(
    words: list[str], link: socket.socket, log: str, environment: dict[str, str], stdin: Any = None
) -> "subprocess.Popen[bytes]":
    """Start a Python that runs the first word, with the others after `sys.path` as arguments."""
    code, *arguments = words
    # Appended to: a worker that replaces a dead one of its rank has the same log.
    with open(log, "ab") if log else nullcontext() as output:
        return subprocess.Popen(
            [sys.executable, "-c", code, json.dumps(_sys_path()), *arguments],
            stdin=stdin or subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            pass_fds=[link.fileno()],
            start_new_session=True,  # the terminal's Ctrl-C must reach the driver only
        )


def _sys_path() -> list[str]:
    # A Path among them, as notebooks have it, is ignored by Python too.
    return [entry for entry in sys.path if isinstance(entry, str)]


def _environment(rank: int, threads: int) -> dict[str, str]:
    # Without a limit each worker would start as many threads as the machine has cores.
    limits = {name: str(threads) for name in THREAD_VARIABLES}
    # The user's own thread limits win. Unbuffered, so that the log of a killed worker has its last
    # lines.
    return {**limits, **os.environ, "LOCAL_RANK": str(rank), "PYTHONUNBUFFERED": "1"}


def describe_exit(code: int) -> str:
    """Say in words how a process ended."""
    if code == _UNKNOWN_CODE:
        return "it ended when the process was gone from which it was forked, which would know how"
    if code >= 0:
        return f"it exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (which is what the kernel sends when memory runs out)" if name == "SIGKILL" else ""
    return f"it was ended by {name}{hint}"


SPARE_NAME = "espnet3-spare"
"""Of one that waits, as `top` and `ps -o comm` show it."""
_OWN_NAME = "/proc/self/comm"
_LONGEST_NAME = 15
_REQUEST_BYTES = 1_000_000  # more than the kernel lets through
_POLL_SECONDS = (0.0005, 0.05)
# They read variables that are others in a spare when they are loaded, or start threads.
_UNSAFE = ("numpy", "torch")
# Schedulers send them to all processes of a job; what to do about them, the worker decides.
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def fork_spares(n_spares: int) -> "list[Spare]":
    """Return processes that wait, or none where a fork is not safe; call it at the top level only.

    A spare never returns from it: its program ends with `SystemExit`, which nothing may catch.
    """
    if not can_fork():
        return []
    pairs = [socket.socketpair(type=socket.SOCK_SEQPACKET) for _ in range(n_spares)]
    spares = []
    for number, (ours, theirs) in enumerate(pairs):
        pid = os.fork()
        if not pid:
            for other, (held, waiting) in enumerate(pairs):
                held.close()  # else a spare would not see the end of this process
                if other != number:
                    waiting.close()
            _wait_and_become(theirs)
        spares.append(Spare(pid, ours))
    for _, theirs in pairs:
        theirs.close()
    return spares


def can_fork() -> bool:
    """Tell whether a copy of this process would be like a new one."""
    if sys.platform != "linux" or any(name in sys.modules for name in _UNSAFE):
        return False
    return len(os.listdir("/proc/self/task")) == 1


class Child:
    """A process that was forked from this one, as `subprocess.Popen` would show it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        if self._code is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # something else in this process waited for it
                pid, status = self.pid, 0
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; raises `TimeoutExpired` like `subprocess.Popen`."""
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        pause, longest = _POLL_SECONDS
        while (code := self.poll()) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
            time.sleep(min(pause, left))
            pause = min(2 * pause, longest)
        return code

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


class Spare:
    """This side of a process that waits."""

    def __init__(self, pid: int, link: socket.socket) -> None:
        self._child = Child(pid)
        self._link = link
        self.is_waiting = True
        """Whether it can still become something; it can do so once."""

    def become(
        self,
        program: str,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        path: Sequence[Any] | None = None,
        link: socket.socket | None = None,
        log: str = "",
    ) -> Child | None:
        """Let it run a program; None if it is gone, runs one already, or cannot.

        It has this process's working directory.

        Args:
            program: the module; its `main()` is called.
            arguments: what it finds in `sys.argv`.
            environment: all its variables.
            path: its `sys.path`; if None, that of this process when it was forked.
            link: what it inherits; its descriptor comes before the arguments.
            log: where it prints, if not where this process does.
        """
        if not self.is_waiting:
            return None
        request = {
            "program": program,
            "arguments": list(arguments),
            "environment": dict(environment),
            "path": None if path is None else [each for each in path if isinstance(each, str)],
        }
        try:
            with ExitStack() as stack:
                stack.callback(self._link.close)
                self._link.settimeout(_ANSWER_SECONDS)
                # That it has a session of its own. A spare just forked may hold its end as well.
                if not self._link.recv(1) or self._child.poll() is not None:
                    raise BrokenPipeError
                # As a descriptor: it may have been removed, or be in a place that lost its name.
                folder = os.open(".", os.O_PATH)
                stack.callback(os.close, folder)
                output = stack.enter_context(open(log, "ab")).fileno() if log else None
                streams = [1, 2] if output is None else [output, output]
                fds = [folder, *streams, *([link.fileno()] if link else [])]
                socket.send_fds(self._link, [json.dumps(request).encode()], fds)
        except OSError:  # also: an environment too large for a message
            self.close()
            return None
        self.is_waiting = False
        return self._child

    def close(self) -> None:
        """End it, if it still waits."""
        if not self.is_waiting:
            return
        self.is_waiting = False
        self._link.close()
        with suppress(OSError):
            self._child.kill()
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(_ANSWER_SECONDS)


# --- In the spare.


def _wait_and_become(link: socket.socket) -> NoReturn:
    gc.freeze()  # else the next collection would copy the pages of all objects
    _rename(SPARE_NAME)
    os.setsid()  # the terminal's Ctrl-C is not for it; its group is killed with all it started
    with _signals_ignored():
        try:
            link.send(b"!")
            data, fds, _, _ = socket.recv_fds(link, _REQUEST_BYTES, 4)
        except OSError:
            data = b""
        if not data:  # not needed, or the process that might is gone
            os._exit(0)
    link.close()
    request: dict[str, Any] = json.loads(data)
    _rename(f"espnet3-{request['program'].rpartition('.')[2]}"[:_LONGEST_NAME])
    _take_over(fds[:3])
    os.environ.clear()
    os.environ.update(request["environment"])
    if request["path"] is not None:
        sys.path[:] = request["path"]
    inherited = [str(fd) for fd in fds[3:]]
    for fd in fds[3:]:
        os.set_inheritable(fd, False)
    sys.argv[:] = ["-c", *inherited, *request["arguments"]]
    # Not this process's: what the user's code starts may look there for what to import.
    sys.modules["__main__"] = ModuleType("__main__")
    sys.exit(importlib.import_module(request["program"]).main())


@contextmanager
def _signals_ignored() -> Iterator[None]:
    previous = {number: signal.signal(number, signal.SIG_IGN) for number in _IGNORED}
    yield
    for number, handler in previous.items():
        signal.signal(number, handler)


def _rename(name: str) -> None:
    # Its command line stays that of the process from which it was forked.
    with suppress(OSError), open(_OWN_NAME, "w") as file:
        file.write(name)


def _take_over(fds: Sequence[int]) -> None:
    """Make working directory and streams those of a process that starts now."""
    folder, out, error = fds
    os.fchdir(folder)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(out, 1)
    os.dup2(error, 2)
    for fd in set(fds):
        os.close(fd)
    # Unbuffered, so that the log of a killed process has its last lines.
    sys.stdout = sys.__stdout__ = _unbuffered(1, sys.stdout)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _unbuffered(2, sys.stderr)  # type: ignore[misc]


def _unbuffered(fd: int, like: Any) -> io.TextIOWrapper:
    raw: Any = io.FileIO(fd, "wb", closefd=False)
    return io.TextIOWrapper(raw, like.encoding, like.errors, write_through=True)
