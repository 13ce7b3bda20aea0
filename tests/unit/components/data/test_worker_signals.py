"""Workers of a loader and SIGTERM."""

import os
import signal
import subprocess
import sys

import pytest

WORKER = """
import sys, time
from espnet3.components.data.loader import outlive_sigterm
outlive_sigterm({seconds})
print("ready", flush=True)
while True:
    sys.stdin.readline()
    print("alive", flush=True)
"""


@pytest.mark.parametrize(("seconds", "lives"), [(60, True), (1, False)])
def test_a_worker_outlives_sigterm_for_a_while(seconds, lives):
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER.format(seconds=seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert worker.stdout.readline() == "ready\n"
        os.kill(worker.pid, signal.SIGTERM)
        worker.stdin.write("\n")
        worker.stdin.flush()
        assert worker.stdout.readline() == "alive\n"
        if not lives:
            assert worker.wait(60) == -signal.SIGALRM
    finally:
        worker.kill()
        worker.wait()
        worker.stdin.close()
        worker.stdout.close()
