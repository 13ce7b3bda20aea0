import os
import signal
import time

import pytest

from espnet3.parallel.faults import stopped_by
from espnet3.parallel.signals import SIGNALS, EndSignals, ReleaseClaims
from espnet3.shards.records import StopMark


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_remembered_until_one_looks(number):
    with EndSignals().installed() as signals:
        signals.check()
        os.kill(os.getpid(), number)
        time.sleep(0.01)
        with pytest.raises(ReleaseClaims, match=signal.Signals(number).name) as end:
            signals.check()
    assert end.value.code == 0
    assert end.value.ends_all


def sleep_until_signalled(signals):
    with signals.raised_at_once():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)


def test_what_does_not_look_is_interrupted_once():
    with EndSignals().installed() as signals:
        with pytest.raises(ReleaseClaims, match="SIGTERM"):
            sleep_until_signalled(signals)
        os.kill(os.getpid(), signal.SIGTERM)  # cleaning up is not disturbed
        time.sleep(0.01)


class SignalledLate(EndSignals):
    """Gets a signal just when it has looked for one."""

    def check(self):
        super().check()
        if self.received is None:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)


def test_a_signal_between_the_look_and_the_work_is_not_missed():
    with SignalledLate().installed() as signals:
        with pytest.raises(ReleaseClaims, match="SIGTERM"), signals.raised_at_once():
            pytest.fail("the work began")


def test_handlers_are_put_back():
    before = signal.getsignal(signal.SIGUSR1)
    with EndSignals().installed():
        assert signal.getsignal(signal.SIGUSR1) != before
    assert signal.getsignal(signal.SIGUSR1) == before


def test_who_cancelled_a_run_is_said_once():
    said = stopped_by(StopMark("cancelled", "cancelled by me@login1", "me@login1"))
    assert said.reason == "the run was cancelled by me@login1"
    said = stopped_by(StopMark("cancelled", "wrong beam", "me@login1"))
    assert said.reason == "the run was cancelled by me@login1: wrong beam"
