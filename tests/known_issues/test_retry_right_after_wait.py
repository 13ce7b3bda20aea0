"""`retry` right after `wait` was refused while the merger still removed leftovers of the run."""

import threading

import pytest

from espnet3.errors import RunFolderError
from espnet3.parallel.base_runner import BaseRunner
from espnet3.parallel.detached.control import refuse_merging
from espnet3.parallel.env_provider import EnvironmentProvider
from espnet3.shards.lease import Lease


class _Provider(EnvironmentProvider):
    def build_env_local(self):
        return {}

    def build_worker_setup_fn(self):
        return dict


class _Runner(BaseRunner):
    @staticmethod
    def forward(idx, **env):
        return {"id": idx}


@pytest.fixture
def complete(tmp_path):
    _Runner(_Provider(None), output_dir=tmp_path / "out")(range(4))
    return tmp_path / "out"


def test_retry_waits_for_the_merger_of_a_complete_run(complete):
    with Lease(complete) as merger, Lease(complete) as ours:
        assert merger.claim("merge")
        threading.Timer(0.3, merger.release, ["merge"]).start()
        refuse_merging(complete, ours)
        assert not merger.claim("merge")


def test_retry_is_refused_while_a_run_is_merged(complete):
    (complete / "_SUCCESS.json").unlink()
    with Lease(complete) as merger, Lease(complete) as ours:
        assert merger.claim("merge")
        with pytest.raises(RunFolderError, match="merged"):
            refuse_merging(complete, ours)
