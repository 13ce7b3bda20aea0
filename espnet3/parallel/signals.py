"""Interrupt drivers and detached workers within seconds, so that what is finished is kept.

A driver ends by Ctrl-C, SIGTERM or `espnet3 cancel`; a detached worker by the signals that
schedulers send before they kill, and hands its shard back.
"""

import logging
import os
import shlex
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from espnet3.errors import RunInterrupted

logger = logging.getLogger(__name__)
# Slurm kills 30 s after SIGTERM by default (KillWait): longer cleaning up would be cut off.
_GRACE_SECONDS = 4.0
_CLEAN_UP_SECONDS = 30.0
_SOON_SECONDS = 0.02
_HANDLED = (signal.SIGINT, signal.SIGTERM)
# What schedulers send before they kill, by default or if one asks for a warning.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


class Interruption:
    """Lets another thread interrupt the block of `interruptible`, wherever its code is."""

    def __init__(self) -> None:
        self.reason = ""
        """Why another thread interrupted the block; empty if it did not."""
        self._is_main = threading.current_thread() is threading.main_thread()

    def interrupt(self, reason: str) -> None:
        """Raise `RunInterrupted` in the block: at once in the main thread, else at `check`."""
        self.reason = reason
        if self._is_main:
            # To that thread, not only to the process: a call that it sleeps in must return.
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    def check(self) -> None:
        """Raise what could not be raised at once: signals reach only the main thread."""
        if self.reason and not self._is_main:
            raise RunInterrupted(1)


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Turn SIGINT and SIGTERM into `RunInterrupted` inside the block.

    Python handles a signal only between two of its own instructions. So that a long call into C
    cannot hold Ctrl-C up, the process is ended after four seconds; what was finished is on disk.
    Cleaning up, such as cancelling jobs of a busy scheduler, may take half a minute. Outside the
    main thread, where signals cannot be handled, this does nothing.
    """
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    watchdog = _Watchdog(interruption)
    received: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        watchdog.was_handled.set()
        received.append(number)
        for handled in _HANDLED:  # one is enough: cleaning up must not be interrupted
            signal.signal(handled, signal.SIG_IGN)
        raise RunInterrupted(128 + number)

    def listen_again() -> int:
        for number in _HANDLED:
            signal.signal(number, interrupt)
        return received[-1]

    previous = {number: signal.signal(number, interrupt) for number in _HANDLED}
    try:
        with sent_again_if_ignored(RunInterrupted, listen_again):
            yield interruption
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        watchdog.close()


@contextmanager
def sent_again_if_ignored(kind: type[BaseException], listen: Callable[[], int]) -> Iterator[None]:
    """Send a signal again if Python ignored what its handler raised.

    That happens in a finalizer, and in a callback of the garbage collector (Dask has one) or of a
    weak reference: Python calls its hook for unraisable errors, and continues.

    Args:
        kind: what the handler raises.
        listen: makes the handler ready, and returns the signal.
    """
    previous = sys.unraisablehook

    def repeat(ignored: "sys.UnraisableHookArgs") -> None:
        if not isinstance(ignored.exc_value, kind):
            previous(ignored)
            return
        # Not at once: this is still inside of what ignores errors.
        threading.Timer(_SOON_SECONDS, os.kill, (os.getpid(), listen())).start()

    sys.unraisablehook = repeat
    try:
        yield
    finally:
        sys.unraisablehook = previous


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let SIGINT and SIGTERM wait until the end of the block, which must be short.

    For what must be whole: a job that was submitted, and the note of its number.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    previous = {
        number: signal.signal(number, lambda number, frame: received.append(number))
        for number in _HANDLED
    }
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        if received:
            # Not called directly: the handler may be SIG_DFL, which is no function.
            signal.raise_signal(received[0])


@contextmanager
def handler_kept(number: int) -> Iterator[None]:
    """Undo what a library does to a signal in the block: the run has a handler of its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(number)
    try:
        yield
    finally:
        signal.signal(number, handler)


class _Watchdog:
    """A thread that the interpreter wakes at once when a signal arrives, whatever the code does."""

    def __init__(self, interruption: Interruption) -> None:
        self._interruption = interruption
        self._reader, self._writer = socket.socketpair()
        # As `set_wakeup_fd` demands: the interpreter writes to it inside a signal handler.
        self._writer.setblocking(False)
        self._previous = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self.was_handled = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="interrupt", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while data := self._reader.recv(1):
            if data[0] in _HANDLED and not self._ends_in_time():
                self._exit(128 + data[0])

    def _exit(self, code: int) -> NoReturn:
        if self._interruption.reason:  # this is the last chance to report it
            sys.stderr.write(f"{self._interruption.reason}\n")
            sys.stderr.flush()
        # `sys.exit` would end this thread only, while the main one is stuck in C.
        os._exit(1 if self._interruption.reason else code)

    def _ends_in_time(self) -> bool:
        return self.was_handled.wait(_GRACE_SECONDS) and self._closed.wait(_CLEAN_UP_SECONDS)

    def close(self) -> None:
        self.was_handled.set()
        self._closed.set()
        # Before the socket is closed: its number may soon be that of another file.
        signal.set_wakeup_fd(self._previous)
        # The thread reads an end of file, and ends.
        self._writer.close()
        self._thread.join()
        self._reader.close()


def say_how_to_resume(output_dir: Path | None) -> None:
    """Tell after an interrupt what is kept, and what to type."""
    if output_dir is None:
        logger.warning("Interrupted. Results were in memory only; set output_dir to resume.")
        return
    # Not `sys.argv`, from which Python has taken its own options, such as `-m`.
    command = shlex.join([Path(sys.executable).name, *sys.orig_argv[1:]])
    logger.warning("Interrupted. Finished shards are kept; to resume, run again: %s", command)


class ReleaseClaims(BaseException):
    """Leave the run folder to others: what is not finished goes back.

    No `Exception`: a `merge` of the user's that catches those must not hold it up.

    Args:
        reason: in words, for the log and the worker's record.
        code: the exit code of the process.
        ends_all: whether this is about the worker, and not only about one of its folders.
    """

    def __init__(self, reason: str, *, code: int = 0, ends_all: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code
        self.ends_all = ends_all


class EndSignals:
    """Remembers the first signal that asks this process to end."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._may_raise = False

    def check(self) -> None:
        """Raise `ReleaseClaims` if a signal came."""
        if self.received is not None:
            raise ReleaseClaims(f"it got {self.received.name}")

    @contextmanager
    def raised_at_once(self) -> Iterator[None]:
        """Let a signal interrupt the code of the block, which does not call `check`."""
        self._may_raise = True  # first: one that comes between the two would not be noticed
        try:
            self.check()
            with sent_again_if_ignored(ReleaseClaims, self._listen_again):
                yield
        finally:
            self._may_raise = False

    def _listen_again(self) -> int:
        self._may_raise = True
        return self.received or signal.SIGTERM

    @contextmanager
    def installed(self) -> Iterator["EndSignals"]:
        """Listen inside the block; outside of the main thread this does nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        previous = {number: signal.signal(number, self._note) for number in SIGNALS}
        try:
            yield self
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or signal.Signals(number)
        if self._may_raise:
            self._may_raise = False  # once: cleaning up must not be interrupted
            self.check()
