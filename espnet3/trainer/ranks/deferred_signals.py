"""Signal handlers that let a training come to a good moment before it ends."""

import os
import signal
import threading
import time
from collections.abc import Mapping
from enum import Enum, auto
from types import FrameType
from typing import Any

import torch.distributed as dist

from espnet3.errors import ConfigError, RunInterrupted, suggest
from espnet3.trainer.launching.process_rank import process_rank

_SAME_CTRL_C_SECONDS = 2.0
"""A terminal and a launcher may both pass on one Ctrl-C."""


class Phase(Enum):
    """What a signal means at present."""

    STARTING = auto()  # there is nothing to save: end at once
    TRAINING = auto()  # take note of it
    SAVING = auto()  # the end has begun already
    FAILED = auto()  # likewise, but it may hang, so Ctrl-C ends at once


class DeferredSignals:
    """Handlers that only take note of a signal while training.

    Args:
        codes: the signals to handle, with the exit codes that they ask for.
    """

    def __init__(self, codes: Mapping[signal.Signals, int]) -> None:
        self.codes = codes
        self._owner = os.getpid()
        self._noted = 0.0
        self.phase = Phase.STARTING
        self.code: int | None = None
        """The exit code that the first signal asks for."""

    def install(self) -> dict[signal.Signals, Any]:
        """Put the handlers in place, and return those that were."""
        if threading.current_thread() is not threading.main_thread():
            return {}
        self._owner = os.getpid()
        return {number: signal.signal(number, self._handle) for number in self.codes}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._owner:
            _handle_in_worker(number)
            return
        is_ctrl_c, is_first = number == signal.SIGINT, self.code is None
        is_again = is_ctrl_c and time.monotonic() - self._noted > _SAME_CTRL_C_SECONDS
        if self.phase is Phase.SAVING or not (is_first or is_again):
            return
        if self.phase is Phase.FAILED and not is_ctrl_c:
            return
        self._noted = time.monotonic()
        self.code = self.code or self.codes[signal.Signals(number)]
        if self.phase is not Phase.TRAINING or not is_first:
            raise RunInterrupted(self.code)
        if is_ctrl_c and is_rank_0():
            # Not through logging or stderr, whose locks the main thread may hold.
            os.write(2, b"\nSaving after this step. Ctrl-C again: end at once, without saving.\n")


def _handle_in_worker(number: int) -> None:
    """Act in a forked process, such as a loader's: the training still needs it for a while."""
    if number == signal.SIGTERM:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def is_rank_0() -> bool:
    """Tell whether this process speaks for all."""
    return dist.get_rank() == 0 if dist.is_initialized() else process_rank().is_first


def signal_named(name: str) -> signal.Signals:
    """Return the signal of a name such as `SIGUSR1` or `USR1`."""
    full = name.upper() if name.upper().startswith("SIG") else f"SIG{name.upper()}"
    known = [one.name for one in signal.Signals]
    if full not in known or full in ("SIGKILL", "SIGSTOP"):
        raise ConfigError(
            f"requeue_signals has {name!r}, which is no signal to wait for.{suggest(full, known)} "
            "Write names as in requeue_signals: [SIGUSR1, SIGUSR2]"
        )
    return signal.Signals[full]
