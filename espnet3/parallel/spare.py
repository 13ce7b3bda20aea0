"""Spare processes: forked while this one has no threads, each becomes a program when it is needed.

A detached worker needs two processes soon after its start: the child that does the work, and the
program that submits its successor. Each would be a Python that imports what this one has imported.
Nothing of the user's is loaded when a spare is forked (ADR 27).
"""

import gc
import importlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import ModuleType
from typing import Any, NoReturn

NAME = "espnet3-spare"
"""Of one that waits, as `top` and `ps -o comm` show it."""
_OWN_NAME = "/proc/self/comm"
_LONGEST_NAME = 15
_MESSAGE_BYTES = 1_000_000  # more than the kernel lets through
_ANSWER_SECONDS = 5.0
_LOOK_SECONDS = (0.0005, 0.05)
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
        pause, longest = _LOOK_SECONDS
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
                if not self._link.recv(1):  # that it has a session of its own
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
    _rename(NAME)
    os.setsid()  # the terminal's Ctrl-C is not for it; its group is killed with all it started
    with _signals_ignored():
        try:
            link.send(b"!")
            data, fds, _, _ = socket.recv_fds(link, _MESSAGE_BYTES, 4)
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
