"""What must be whole is not interrupted in the middle."""

import os
import signal

import pytest

from espnet3.parallel.signals import uninterrupted


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
