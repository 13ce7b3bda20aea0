"""Ctrl-C that came while Python ended an object was ignored, and the run went on to its end."""

import os
import signal
import time

import pytest

from espnet3.errors import RunInterrupted
from espnet3.parallel.signals import interruptible


class Interrupted:
    """As a Future of Dask that is dropped at the very moment."""

    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)


def run() -> None:
    with interruptible():
        Interrupted()
        time.sleep(10)


def test_an_interrupt_in_a_finalizer_still_ends_the_run():
    with pytest.raises(RunInterrupted):
        run()
