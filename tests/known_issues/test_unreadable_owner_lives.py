"""An owner whose file cannot be read is judged by its heartbeat, and is not robbed."""

import os
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from espnet3.errors import FileSystemError
from espnet3.parallel.faults import record_deaths
from espnet3.shards.commit import begin_attempt
from espnet3.shards.lease import Lease, claims, find_owner, living_owners
from espnet3.shards.manifest import Manifest, publish_manifest
from espnet3.shards.plan import make_plan
from tests.helpers.unreachable_files import unreachable
from tests.helpers.waiting import wait_until

ROOT = Path(__file__).parents[2]
CODES = ["EACCES", "EIO", "ESTALE", "ETIMEDOUT", "EPERM"]
OLD = 3600.0


def publish_plan(root):
    plan = make_plan(12, 6)
    manifest = Manifest({}, 12, plan.bounds, plan.costs, None, {})
    return publish_manifest(root, manifest, range(12))


@pytest.fixture
def plan(tmp_path):
    return publish_plan(tmp_path)


@pytest.fixture
def shared_folder():
    """A run folder that two users may work in; pytest's own are closed to all but one."""
    with tempfile.TemporaryDirectory(prefix="espnet3-shared-") as name:
        root = Path(name)
        publish_plan(root)
        os.chown(root, 1001, 54321)
        root.chmod(0o2775)
        (root / "manifest.json").chmod(0o644)
        yield root


@pytest.fixture
def leases(tmp_path, plan):
    """Two owners whose hearts do not beat by themselves."""
    with (
        Lease(tmp_path, heartbeat=1000.0, timeout=60.0) as mine,
        Lease(tmp_path, heartbeat=1000.0, timeout=60.0) as other,
    ):
        yield mine, other


def file_of(lease: Lease) -> Path:
    return lease.folder / f"{lease.owner.owner_id}.owner"


def age(path: Path, seconds: float = OLD) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


@pytest.mark.parametrize("code", CODES)
def test_unreadable_owner_keeps_its_claim_while_its_heart_beats(leases, code):
    mine, other = leases
    assert other.claim("split.0")
    age(other.folder / "split.0.claim")
    with unreachable(f"{other.owner.owner_id}.owner$", code):
        assert not mine.claim("split.0")
        assert mine.is_held("split.0")
        mine.sweep()
        assert [owner.owner_id for owner in mine.others()] == [other.owner.owner_id]
    assert claims(mine.folder) == {"split.0": other.owner.owner_id}
    assert file_of(other).exists()


@pytest.mark.parametrize("code", CODES)
def test_unreadable_owner_is_dead_after_the_timeout(leases, code):
    mine, other = leases
    assert other.claim("split.0")
    age(file_of(other))
    with unreachable(f"{other.owner.owner_id}.owner$", code):
        assert mine.claim("split.0")
    assert claims(mine.folder) == {"split.0": mine.owner.owner_id}


def test_owner_of_whom_nothing_can_be_told_lives(leases):
    mine, other = leases
    assert other.claim("split.0")
    age(file_of(other))
    age(other.folder / "split.0.claim")
    with unreachable(f"{other.owner.owner_id}.owner$", "EIO", "open", "stat"):
        assert not mine.claim("split.0")
        mine.sweep()
    assert file_of(other).exists()


def test_owner_whose_file_is_gone_is_dead_once_its_claim_is_old(leases):
    mine, other = leases
    assert other.claim("split.0")
    file_of(other).unlink()
    assert not mine.claim("split.0"), "it may only be seen late"
    age(other.folder / "split.0.claim")
    assert mine.claim("split.0")


@pytest.mark.parametrize("code", CODES)
def test_unreadable_claim_is_somebodys_while_somebody_lives(leases, code):
    mine, other = leases
    assert other.claim("split.0")
    age(other.folder / "split.0.claim")
    with unreachable(r"split\.0\.claim$", code):
        assert not mine.claim("split.0")
        mine.sweep()
    assert claims(mine.folder) == {"split.0": other.owner.owner_id}
    age(file_of(other))
    with unreachable(r"split\.0\.claim$", code):
        assert mine.claim("split.0")


@pytest.mark.parametrize("code", CODES)
def test_attempt_of_an_unreadable_owner_is_not_buried(leases, plan, tmp_path, code):
    mine, other = leases
    attempt = plan.layout(tmp_path).new_attempt(0, other.owner.owner_id)
    attempt.mkdir()
    age(attempt)
    with unreachable(f"{other.owner.owner_id}.owner$", code):
        assert record_deaths(tmp_path, [attempt], mine) == []
    assert attempt.is_dir()


@pytest.mark.parametrize("code", CODES)
def test_attempt_that_cannot_be_looked_into_is_left_alone(leases, plan, tmp_path, code):
    mine, _ = leases
    attempt = begin_attempt(plan.layout(tmp_path), 0)
    age(attempt)
    with unreachable(r"\.part-", code, "list"):
        record_deaths(tmp_path, [attempt], mine)
    assert attempt.is_dir()


def test_owners_of_a_folder_that_cannot_be_listed_are_not_none(leases):
    mine, _ = leases
    with unreachable("leases$", "EACCES", "list"), pytest.raises(FileSystemError):
        living_owners(mine.folder)


def test_owner_file_of_a_newer_version_is_read(leases):
    mine, other = leases
    path = file_of(other)
    path.write_text(path.read_text().replace("{", '{"mood": "good", ', 1))
    assert mine.others() == [other.owner]


@pytest.mark.parametrize("pid", ["-1", "0", "true", '"7"', "1e3", str(10**30)])
def test_owner_file_with_an_odd_pid_harms_nobody(leases, pid):
    mine, other = leases
    path = file_of(other)
    path.write_text(path.read_text().replace(f'"pid": {os.getpid()}', f'"pid": {pid}'))
    assert find_owner(mine.folder, other.owner.owner_id, mine.now(), 60.0) is None


def test_heartbeats_are_compared_with_the_clock_of_the_folder(leases, monkeypatch):
    mine, _ = leases
    real = time.time
    for shift in (3600.0, -3600.0):
        monkeypatch.setattr(time, "time", lambda shift=shift: real() + shift)
        assert len(living_owners(mine.folder)) == 2
    monkeypatch.undo()


HELPER = """
import os, sys, time
from pathlib import Path
import pydantic, tempfile
from espnet3.io.shared_files import parse_record
from espnet3.schedulers import current_job
from espnet3.shards.commit import Done, begin_attempt, commit, finish_attempt, read_done
from espnet3.shards.lease import Lease
from espnet3.shards.manifest import load_manifest
from espnet3.shards.commit import Position

root, user, mask, role = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3], 8), sys.argv[4]
pydantic.TypeAdapter(Done).validate_json(b'{"run_id": "", "shard": 0, "start": 0, "stop": 0}')
current_job()  # imports what the other user may not read
os.setgroups([])
os.setgid(54321)
os.setuid(user)
os.umask(mask)
manifest = load_manifest(root)
layout = manifest.layout(root)
with Lease(root, timeout=60.0) as lease:
    assert lease.claim(f"split.{role}")
    start, stop = manifest.bounds[int(role) : int(role) + 2]
    attempt = begin_attempt(layout, int(role))
    (attempt / "wav").mkdir()
    for item in range(start, stop):
        (attempt / "wav" / f"{item}.wav").write_text("RIFF")
    (attempt / "private").write_text("for me")
    os.chmod(attempt / "private", 0o600)
    Position(attempt).close()
    print("ready", flush=True)
    sys.stdin.readline()
    print(sorted(o.owner_id for o in lease.others()), flush=True)
    for other in "01":
        if other != role:
            print(lease.claim(f"split.{other}"), flush=True)
    done = finish_attempt(attempt, Done(manifest.run_id, int(role), start, stop))
    commit(attempt, layout, done)
    print("committed", flush=True)
    sys.stdin.readline()
    for other in "01":
        for path in layout.shard(int(other)).rglob("*"):
            if path.is_file() and path.name != "private":
                path.read_bytes()
        assert read_done(layout.shard(int(other))).shard == int(other)
    print("read all", flush=True)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two users")
@pytest.mark.parametrize("masks", [("022", "077"), ("077", "022"), ("077", "077")])
def test_second_user_with_another_umask_robs_nobody_and_is_robbed_by_nobody(shared_folder, masks):
    users = []
    for role, mask in enumerate(masks):
        command = [sys.executable, "-c", HELPER, shared_folder, str(1001 + role), mask, str(role)]
        users.append(
            subprocess.Popen(
                list(map(str, command)),
                cwd=ROOT,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        )
    try:
        began = [user.stdout.readline() for user in users]
        assert began == ["ready\n", "ready\n"], [user.communicate()[1] for user in users]
        for user in users:
            user.stdin.write("go\n")
            user.stdin.flush()
        told = [[user.stdout.readline().strip() for _ in range(3)] for user in users]
        assert [lines[1:] for lines in told] == [["False", "committed"]] * 2
        assert all(len(lines[0]) == len("['0123456789abcdef']") for lines in told)
        for user in users:
            user.stdin.write("go\n")
            user.stdin.flush()
        ends = [user.communicate(timeout=60) for user in users]
        assert [end[0] for end in ends] == ["read all\n"] * 2, ends
        assert [user.returncode for user in users] == [0, 0]
    finally:
        for user in users:
            user.kill()
            user.communicate()
    private = [shared_folder / f"split.{role}" / "private" for role in range(2)]
    modes = [stat.S_IMODE(path.stat().st_mode) for path in private]
    assert [mode for mode, mask in zip(modes, masks, strict=True) if mask == "022"] == [
        0o600 for mask in masks if mask == "022"
    ]


@pytest.fixture
def mask_077():
    before = os.umask(0o077)
    yield
    os.umask(before)


def test_leases_are_readable_whatever_the_umask(tmp_path, plan, mask_077):
    os.chmod(tmp_path, 0o775)
    with Lease(tmp_path) as lease:
        assert lease.claim("split.0")
        wait_until(lambda: (lease.folder / "split.0.claim").exists())
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in lease.folder.iterdir()}
        assert set(modes.values()) == {0o644}, modes
        assert stat.S_IMODE(lease.folder.stat().st_mode) == 0o775


def test_leases_of_a_private_folder_stay_private(tmp_path, plan, mask_077):
    os.chmod(tmp_path, 0o700)
    with Lease(tmp_path) as lease:
        assert stat.S_IMODE(lease.folder.stat().st_mode) == 0o700


def test_taken_over_claim_is_readable_though_the_dead_ones_was_not(leases):
    mine, other = leases
    assert other.claim("split.0")
    os.chmod(other.folder / "split.0.claim", 0o600)
    age(file_of(other))
    assert mine.claim("split.0")
    assert stat.S_IMODE((mine.folder / "split.0.claim").stat().st_mode) == 0o644
