"""A driver that was killed while it claimed a shard left a temp file in the folder of leases."""

import os
import subprocess

import pytest

from espnet3.io import atomic
from espnet3.shards.lease import Lease, Owner


@pytest.fixture
def dead_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def temp_of(lease: Lease, pid: int):
    temp = lease.folder / f".split.12.claim.tmp-{pid}-0b264ee9"
    temp.touch()
    return temp


def test_it_is_swept_at_once_when_its_process_is_gone(tmp_path, dead_pid):
    with Lease(tmp_path) as lease:
        dead, alive = temp_of(lease, dead_pid), temp_of(lease, os.getppid())
        lease.sweep()
        assert not dead.exists()
        assert alive.exists()


def test_it_stays_for_a_while_if_it_may_be_of_another_machine(tmp_path, dead_pid, monkeypatch):
    with Lease(tmp_path) as lease:
        temp = temp_of(lease, dead_pid)
        elsewhere = Owner("other", "other machine", 1, 1)
        monkeypatch.setattr(lease, "each_other", lambda: iter([elsewhere]))
        lease.sweep()
        assert temp.exists()


def test_a_process_whose_temp_file_was_swept_makes_it_again(tmp_path, monkeypatch):
    link, calls = os.link, []

    def swept_the_first_time(temp, path):
        calls.append(temp)
        if len(calls) == 1:
            os.unlink(temp)
        link(temp, path)

    monkeypatch.setattr(atomic.os, "link", swept_the_first_time)
    assert atomic.create_bytes(tmp_path / "claim", b"mine")
    assert [path.name for path in tmp_path.iterdir()] == ["claim"]
    assert (tmp_path / "claim").read_bytes() == b"mine"
