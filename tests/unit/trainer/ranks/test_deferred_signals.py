"""Signals before, in and after a training."""

import os
import signal
import threading

import pytest

from espnet3.errors import RunInterrupted
from espnet3.trainer.ranks import preemption
from espnet3.trainer.ranks.preemption import DeferredSignals, Phase
from tests.helpers import clean_process

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGUSR1: 75}


@pytest.fixture
def signals():
    signals = DeferredSignals(CODES)
    previous = signals.install()
    yield signals
    for number, handler in previous.items():
        signal.signal(number, handler)


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize(("number", "code"), CODES.items())
def test_before_the_training_a_signal_ends_at_once(signals, number, code):
    with pytest.raises(RunInterrupted) as caught:
        send(number)
    assert caught.value.code == code


@pytest.mark.parametrize(("number", "code"), CODES.items())
def test_in_the_training_it_is_noted(signals, number, code, capfd):
    signals.phase = Phase.TRAINING
    send(number)
    assert signals.code == code
    assert ("Ctrl-C again" in capfd.readouterr().err) == (number == signal.SIGINT)


def test_the_first_signal_decides(signals):
    signals.phase = Phase.TRAINING
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR1):
        send(number)
    assert signals.code == 75


def test_a_second_ctrl_c_ends_at_once(signals, monkeypatch):
    signals.phase = Phase.TRAINING
    send(signal.SIGINT)
    send(signal.SIGINT)  # the same one, passed on by a launcher
    monkeypatch.setattr(preemption, "_SAME_CTRL_C_SECONDS", -1.0)
    with pytest.raises(RunInterrupted) as caught:
        send(signal.SIGINT)
    assert caught.value.code == 130


def test_while_it_saves_nothing_interrupts(signals):
    signals.phase = Phase.SAVING
    for number in CODES:
        send(number)
    assert signals.code is None


def test_after_a_failure_only_ctrl_c_counts(signals):
    signals.phase = Phase.FAILED
    send(signal.SIGTERM)
    send(signal.SIGUSR1)
    with pytest.raises(RunInterrupted):
        send(signal.SIGINT)


@pytest.mark.parametrize(
    ("number", "expected"), [(signal.SIGUSR1, 7), (signal.SIGINT, 7), (signal.SIGTERM, -15)]
)
def test_a_forked_worker_ignores_what_is_meant_for_the_training(number, expected):
    assert clean_process.call(send_to_a_fork, number) == (expected, None)


def send_to_a_fork(number):
    signals = DeferredSignals(CODES)
    signals.install()
    pid = os.fork()
    if pid == 0:
        send(number)
        os._exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), signals.code


def test_other_threads_leave_signals_alone():
    found = []
    thread = threading.Thread(target=lambda: found.append(DeferredSignals(CODES).install()))
    thread.start()
    thread.join()
    assert found == [{}]
