"""Why a worker without a driver ends before the run does, and the signals that say so."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# What schedulers send before they kill, by default or if one asks for a warning.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


class HandBack(BaseException):
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
        """Raise `HandBack` if a signal came."""
        if self.received is not None:
            raise HandBack(f"it got {self.received.name}")

    @contextmanager
    def raised_at_once(self) -> Iterator[None]:
        """Let a signal interrupt the code of the block, which does not call `check`."""
        self._may_raise = True  # first: one that comes between the two would not be noticed
        try:
            self.check()
            yield
        finally:
            self._may_raise = False

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
