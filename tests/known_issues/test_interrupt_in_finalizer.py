"""Ctrl-C that came in a finalizer or a callback of Python's memory was ignored: the run went on."""

import gc
import os
import signal
import time
import weakref
from contextlib import contextmanager

import pytest

from espnet3.errors import RunInterrupted
from espnet3.parallel.signals import EndSignals, ReleaseClaims, interruptible


def signalled(phase: object = None, *_: object) -> None:
    """Get Ctrl-C at this very moment; once, though the collector calls at its begin and end."""
    if phase == "start":
        return
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.01)


class Dropped:
    """As a Future of Dask."""

    def __del__(self):
        signalled()


class Referred:
    pass


@contextmanager
def in_finalizer():
    Dropped()
    yield


@contextmanager
def in_callback_of_a_weak_reference():
    referred = Referred()
    reference = weakref.ref(referred, signalled)
    del referred
    yield
    del reference


@contextmanager
def in_callback_of_the_garbage_collector():
    """As Dask's, which measures how long a collection takes."""
    gc.callbacks.append(signalled)
    try:
        gc.collect()
        gc.callbacks.remove(signalled)
        yield
    finally:
        if signalled in gc.callbacks:
            gc.callbacks.remove(signalled)


MOMENTS = (in_finalizer, in_callback_of_a_weak_reference, in_callback_of_the_garbage_collector)


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.__name__)
def test_an_interrupt_that_python_ignores_still_ends_the_run(moment, capfd):
    with pytest.raises(RunInterrupted), interruptible(), moment():
        time.sleep(10)
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.__name__)
def test_a_signal_that_python_ignores_still_ends_a_detached_worker(moment, capfd):
    signals = EndSignals()
    with pytest.raises(ReleaseClaims), signals.installed(), signals.raised_at_once(), moment():
        time.sleep(10)
    assert "Traceback" not in capfd.readouterr().err
