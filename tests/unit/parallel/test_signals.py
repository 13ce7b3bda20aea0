"""What must be whole is not interrupted in the middle."""

import os
import signal

import pytest

from espnet3.parallel.signals import uninterrupted


@pytest.fixture
def _ctrl_c():
    """Let SIGINT do what it does at a prompt: a shell's background, or a library, may change it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_ctrl_c")
def test_a_signal_waits_for_the_end_of_the_block():
    steps = []

    def submit():
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGINT)
            steps.append("submitted")
            steps.append("noted")
        steps.append("never")

    with pytest.raises(KeyboardInterrupt):
        submit()
    assert steps == ["submitted", "noted"]


def test_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM)
    with uninterrupted():
        pass
    assert signal.getsignal(signal.SIGTERM) is before
