import os
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from espnet3.components.data.errors import DataError
from espnet3.components.data.sources.shard_index import identity_of
from espnet3.components.data.sources.shard_source import Recent, ShardFile
from tests.helpers import clean_process


def test_only_the_most_recent_are_kept():
    made = []
    recent = Recent(2)
    for key in "aabacab":
        recent.get(key, lambda key=key: made.append(key) or key)
    assert made == ["a", "b", "c", "b"]
    assert len(recent) == 2


def test_what_is_larger_than_all_is_kept_alone():
    recent = Recent(10, cost=len)
    recent.get("a", lambda: "x" * 6)
    recent.get("b", lambda: "x" * 6)
    assert len(recent) == 1
    recent.get("c", lambda: "x" * 100)
    assert len(recent) == 1
    assert recent.get("c", lambda: "made again") == "x" * 100


def fork_with_an_open_one():
    recent = Recent(2)
    recent.get("a", os.getpid)
    assert len(pickle.loads(pickle.dumps(recent))) == 0
    if (child := os.fork()) == 0:
        os._exit(7 if recent.get("a", os.getpid) == os.getpid() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert recent.get("a", lambda: -1) == os.getpid()


def test_another_process_opens_its_own():
    clean_process.call(fork_with_an_open_one)


def test_a_handle_is_closed_with_its_last_use(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"0123456789")
    before = len(os.listdir("/proc/self/fd"))
    file = ShardFile(path, identity_of(path))
    assert file.read(3, 4) == b"3456"
    with pytest.raises(DataError, match=r"ends before byte 10. Copy or make it again"):
        file.read(8, 4)
    del file
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_shard_that_changed_is_not_read(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"0123456789")
    identity = identity_of(path)
    path.write_bytes(b"01234567890")
    with pytest.raises(DataError, match=r"has changed since the run began. Start again"):
        ShardFile(path, identity)
    path.unlink()
    with pytest.raises(DataError, match="cannot be opened: No such file"):
        ShardFile(path, identity)


def test_threads_may_share_it():
    recent = Recent(8)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def read(seed):
        keys = np.random.default_rng(seed).integers(0, 20, 1000).tolist()
        return all(recent.get(key, lambda: 2 * key) == 2 * key for key in keys)  # noqa: B023

    try:
        with ThreadPoolExecutor(8) as threads:
            assert all(threads.map(read, range(8)))
    finally:
        sys.setswitchinterval(interval)
    assert len(recent) == 8
