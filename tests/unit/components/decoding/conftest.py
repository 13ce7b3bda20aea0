"""What tests of decoders share."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest


@pytest.fixture
def in_threads():
    """Return a function that calls another one in four threads that keep changing places."""
    before = sys.getswitchinterval()

    def run(function):
        sys.setswitchinterval(1e-6)
        with ThreadPoolExecutor(4) as threads:
            return [one.result() for one in [threads.submit(function) for _ in range(4)]]

    yield run
    sys.setswitchinterval(before)
