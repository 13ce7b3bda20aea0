"""Runs of `job.py`, and the output of an undisturbed one to compare with."""

import pytest

from tests.helpers.job_runs import Job, undisturbed_output


@pytest.fixture
def job(tmp_path):
    """Return a function that makes a job in a folder of its own."""

    def make(name: str = 'it\'s "a" run', **settings) -> Job:
        return Job(tmp_path / name, **settings)

    return make


@pytest.fixture(scope="session")
def reference(tmp_path_factory) -> bytes:
    """Return the output of an undisturbed run."""
    return undisturbed_output(tmp_path_factory.mktemp("reference"))
