import json
import os
import signal
import socket
import threading
import time
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest

from benchmarks.file_operations import FileOperations
from espnet3.errors import RunFolderError
from espnet3.schedulers import node_name
from espnet3.shards import lease as lease_module
from espnet3.shards.lease import (
    HEARTBEAT,
    TIMEOUT,
    Lease,
    Owner,
    claims,
    living_owners,
    start_time,
)

DRIVER = """
    import os, sys
    from pathlib import Path
    from espnet3.shards.lease import Lease
    lease = Lease(Path(sys.argv[1]), heartbeat=1000, timeout=60)
    lease.__enter__()
    assert lease.claim("split.0")
    print(lease.owner.owner_id, flush=True)
    sys.stdin.readline()
    lease.__exit__()
"""


def quiet_lease(root: Path, **values: float) -> Lease:
    """A lease whose heart does not beat by itself."""
    return Lease(root, **{"heartbeat": 1000.0, "timeout": 60.0, **values})


def owner_file(lease: Lease) -> Path:
    return lease.folder / f"{lease.owner.owner_id}.owner"


def age(lease: Lease, seconds: float = 61.0) -> None:
    path = owner_file(lease)
    mtime = path.stat().st_mtime - seconds
    os.utime(path, (mtime, mtime))


def rewrite(lease: Lease, **values: object) -> None:
    """Let the owner file say something else, its heartbeat as fresh as before."""
    path = owner_file(lease)
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def claim_of_nobody(lease: Lease, name: str) -> None:
    """A claim that has been there for long, of an owner who is not."""
    path = lease.folder / f"{name}.claim"
    path.write_text("0" * 16)
    os.utime(path, (0, 0))


def wait_until(condition) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.002)


@pytest.fixture
def mine(folder):
    with quiet_lease(folder) as lease:
        yield lease


@pytest.fixture
def other(folder):
    with quiet_lease(folder) as lease:
        yield lease


def test_living_owner_keeps_its_claim_from_others(mine, other):
    assert mine.claim("split.0")
    assert mine.claim("split.0"), "a second look at one's own claim"
    assert not other.claim("split.0")
    assert other.claim("split.1")
    assert claims(mine.folder) == {
        "split.0": mine.owner.owner_id,
        "split.1": other.owner.owner_id,
    }


def test_released_claim_is_free_at_once(mine, other):
    mine.claim("split.0")
    other.release("split.0")  # not its own: nothing happens
    assert not other.claim("split.0")
    mine.release("split.0")
    mine.release("split.0")
    assert other.claim("split.0")


def test_end_of_a_lease_leaves_only_what_others_hold(folder, mine):
    mine.claim("split.1")
    with quiet_lease(folder) as lease:
        lease.claim("split.0")
        lease.claim("merge")
    assert sorted(os.listdir(mine.folder)) == sorted([owner_file(mine).name, "split.1.claim"])


def test_lease_ends_also_after_an_exception_and_its_thread_with_it(folder):
    lease = quiet_lease(folder)

    def fail() -> None:
        with lease:
            lease.claim("split.0")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert os.listdir(lease.folder) == []
    assert not any("_beat" in thread.name for thread in threading.enumerate())


def test_owner_without_a_heartbeat_loses_its_claim(mine, other):
    other.claim("split.0")
    age(other, 59)
    assert not mine.claim("split.0")
    age(other)
    assert mine.claim("split.0")
    assert claims(mine.folder) == {"split.0": mine.owner.owner_id}
    assert not other.claim("split.0")


def test_heart_beats_by_itself(folder):
    with quiet_lease(folder, heartbeat=0.005) as lease:
        age(lease)
        old = owner_file(lease).stat().st_mtime
        wait_until(lambda: owner_file(lease).stat().st_mtime > old + 60)
        assert living_owners(lease.folder) == [lease.owner]


def test_owner_that_was_swept_while_suspended_is_back_with_its_next_heartbeat(mine, other):
    age(other)
    mine.sweep()
    assert mine.others() == []
    other.beat()
    assert mine.others() == [other.owner]


def test_heartbeat_that_cannot_be_written_is_a_warning(folder, mine, caplog):
    owner_file(mine).unlink()
    mine.folder.rename(folder / "elsewhere")
    mine.beat()
    assert "No heartbeat could be written" in caplog.text
    (folder / "elsewhere").rename(mine.folder)


def test_clock_of_the_file_system_decides_and_not_that_of_this_machine(mine, other, monkeypatch):
    other.claim("split.0")
    monkeypatch.setattr(time, "time", lambda: 4e9)
    assert not mine.claim("split.0")
    assert mine.others() == [other.owner]


def test_process_that_is_gone_loses_its_claim_though_the_heartbeat_is_fresh(mine, spawn):
    process = spawn(DRIVER, mine.folder.parent)
    owner_id = process.stdout.readline().strip()
    assert not mine.claim("split.0")
    assert [owner.owner_id for owner in mine.others()] == [owner_id]
    process.kill()
    wait_until(lambda: mine.claim("split.0"))  # not reaped yet: a zombie of the kernel is dead
    assert mine.others() == []
    assert process.wait(30) == -signal.SIGKILL
    mine.sweep()
    assert not (mine.folder / f"{owner_id}.owner").exists()
    assert claims(mine.folder) == {"split.0": mine.owner.owner_id}


def test_process_that_ends_well_leaves_nothing(mine, spawn):
    process = spawn(DRIVER, mine.folder.parent)
    assert process.stdout.readline()
    process.communicate("\n", timeout=30)
    assert process.returncode == 0
    assert os.listdir(mine.folder) == [owner_file(mine).name]


def test_stopped_process_keeps_its_claim_as_long_as_its_heartbeat_is_fresh(mine, spawn):
    process = spawn(DRIVER, mine.folder.parent)
    owner_id = process.stdout.readline().strip()
    process.send_signal(signal.SIGSTOP)
    assert not mine.claim("split.0")
    path = mine.folder / f"{owner_id}.owner"
    os.utime(path, (0, 0))
    assert mine.claim("split.0")
    process.send_signal(signal.SIGCONT)
    process.communicate("\n", timeout=30)
    assert claims(mine.folder) == {"split.0": mine.owner.owner_id}, "its end must not free ours"


def test_pid_that_was_given_to_another_process_does_not_keep_the_claim(mine, other):
    other.claim("split.0")
    rewrite(other, started=other.owner.started - 1)
    assert mine.others() == []
    assert mine.claim("split.0")


def test_owner_on_another_machine_is_judged_by_its_heartbeat_alone(mine, other):
    other.claim("split.0")
    rewrite(other, machine="another", pid=2**22 + 1, started=1)
    assert not mine.claim("split.0")
    age(other)
    assert mine.claim("split.0")


def test_process_that_one_may_not_look_at_is_judged_by_its_heartbeat(mine, other, monkeypatch):
    other.claim("split.0")
    monkeypatch.setattr(lease_module, "start_time", lambda pid: 0)
    assert not mine.claim("split.0")
    monkeypatch.setattr(lease_module, "start_time", lambda pid: None)
    assert mine.claim("split.0")


def test_start_time_names_a_process_and_is_none_when_it_is_gone(spawn):
    process = spawn("import sys; sys.stdin.readline()")
    started = start_time(process.pid)
    assert started is not None
    assert started >= (start_time(os.getpid()) or 0) > 0
    process.kill()
    process.wait()
    assert start_time(process.pid) is None


def test_start_time_without_proc_tells_at_least_who_is_there(spawn, monkeypatch):
    def hidden(path: Path) -> str:
        raise FileNotFoundError(path)

    process = spawn("pass")
    process.wait()
    monkeypatch.setattr(Path, "read_text", hidden)
    assert start_time(os.getpid()) == 0
    assert start_time(process.pid) is None

    def forbidden(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", forbidden)
    assert start_time(1) == 0


@pytest.mark.parametrize("content", ["", "{", "[]", '{"host": "x"}', "\xff"])
def test_damaged_owner_file_is_a_dead_owner(mine, other, content):
    other.claim("split.0")
    owner_file(other).write_text(content, encoding="latin-1")
    assert mine.others() == []
    assert mine.claim("split.0")


@pytest.mark.parametrize("content", ["", "x", "../../etc", "a" * 500, "\xff\xfe", "a\nb"])
def test_damaged_claim_is_nobodys(mine, content):
    (mine.folder / "split.0.claim").write_text(content, encoding="latin-1")
    assert mine.claim("split.0")
    assert claims(mine.folder) == {"split.0": mine.owner.owner_id}


def test_claim_of_an_owner_that_never_was_is_nobodys(mine):
    claim_of_nobody(mine, "split.0")
    assert mine.claim("split.0")


def test_claim_of_an_owner_whose_file_is_not_to_be_seen_yet_stays_its_own(mine, other):
    other.claim("split.0")
    hidden = owner_file(other).rename(mine.folder / "hidden")
    assert not mine.claim("split.0")
    mine.sweep()
    assert claims(mine.folder) == {"split.0": other.owner.owner_id}
    old = time.time() - 61
    os.utime(mine.folder / "split.0.claim", (old, old))
    assert mine.claim("split.0")
    hidden.rename(owner_file(other))


def test_claim_that_is_there_but_not_to_be_seen_yet_is_not_ours(mine, other, monkeypatch):
    other.claim("split.0")
    monkeypatch.setattr(lease_module, "_read_claim", lambda path: None)
    assert not mine.claim("split.0")
    monkeypatch.undo()
    assert claims(mine.folder) == {"split.0": other.owner.owner_id}


def test_heartbeat_is_asked_of_the_server_and_not_of_what_is_remembered(mine, other, monkeypatch):
    other.claim("split.0")
    rewrite(other, machine="another")
    real = os.stat

    def remembered(path: object, **values: object) -> os.stat_result:
        found = list(real(path, **values))
        found[8] -= 1000  # st_mtime
        return os.stat_result(found)

    monkeypatch.setattr(os, "stat", remembered)
    assert not mine.claim("split.0")


def test_look_at_a_claim_tells_whether_its_owner_lives_and_changes_nothing(mine, other):
    assert not mine.is_held("split.0")
    other.claim("split.0")
    assert mine.is_held("split.0")
    age(other)
    assert not mine.is_held("split.0")
    assert claims(mine.folder) == {"split.0": other.owner.owner_id}


def test_sweep_removes_what_the_dead_left_and_nothing_of_the_living(folder, mine, other):
    mine.claim("split.0")
    other.claim("split.1")
    dead = quiet_lease(folder)
    with dead:
        dead.claim("split.2")
        (mine.folder / f"split.1.taken-{'0' * 16}").write_text(dead.owner.owner_id)
        (mine.folder / f"split.3.taken-{'0' * 16}").write_text(other.owner.owner_id)
        old, fresh = (mine.folder / f".x.claim.tmp-1-0000000{k}" for k in range(2))
        old.touch()
        fresh.touch()
        os.utime(old, (0, 0))
        age(dead)
        mine.sweep()
    left = {path.name for path in mine.folder.iterdir()}
    assert left == {
        owner_file(mine).name, owner_file(other).name, "split.0.claim", "split.1.claim",
        f"split.3.taken-{'0' * 16}", fresh.name,
    }  # fmt: skip


def test_sweep_leaves_the_temp_file_of_a_mark_that_another_process_is_making(mine):
    temp = mine.folder / f".split.0.taken-{'0' * 16}.tmp-1-0123abcd"
    temp.touch()
    mine.sweep()
    assert temp.exists()


def test_driver_that_comes_in_while_another_sweeps_is_not_swept(folder, mine, monkeypatch):
    newcomer = quiet_lease(folder)
    real = lease_module.names_in

    def come_in_first(path: Path) -> list[str]:
        monkeypatch.undo()
        newcomer.__enter__()
        assert newcomer.claim("split.0")
        return real(path)

    monkeypatch.setattr(lease_module, "names_in", come_in_first)
    mine.sweep()
    assert mine.others() == [newcomer.owner]
    assert claims(mine.folder) == {"split.0": newcomer.owner.owner_id}
    newcomer.__exit__()


def test_one_who_is_late_to_a_dead_claim_does_not_take_it_from_the_one_who_was_quicker(
    mine, other, monkeypatch
):
    claim_of_nobody(mine, "split.0")
    real = Lease._take_from

    def other_first(self: Lease, holder: str, path: Path, content: bytes | None) -> bool:
        monkeypatch.undo()
        assert other.claim("split.0")
        return real(self, holder, path, content)

    monkeypatch.setattr(Lease, "_take_from", other_first)
    assert not mine.claim("split.0")
    assert claims(mine.folder) == {"split.0": other.owner.owner_id}


def test_dead_claim_that_another_is_just_taking_is_left_to_it(mine, other):
    claim_of_nobody(mine, "split.0")
    mark = mine.folder / f"split.0.taken-{'0' * 16}"
    mark.write_text(other.owner.owner_id)
    assert not mine.claim("split.0")
    age(other)  # it died in the act
    assert mine.claim("split.0")
    assert not mark.exists()


def test_node_has_the_name_that_its_scheduler_knows(monkeypatch):
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    assert node_name() == socket.gethostname()
    monkeypatch.setenv("SLURMD_NODENAME", "node7")
    assert node_name() == Owner.of_this_process().host == "node7"


def test_owner_says_who_it_is(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setenv("PBS_JOBID", "12.server")
    owner = Owner.of_this_process()
    assert str(owner) == f"{owner.host}:{os.getpid()} (job 12.server)"
    monkeypatch.delenv("PBS_JOBID")
    assert str(Owner.of_this_process()) == f"{owner.host}:{os.getpid()}"


def test_folder_without_leases_has_no_owners_and_no_claims(folder):
    assert living_owners(folder / "leases") == []
    assert claims(folder / "leases") == {}


CLAIMER = """
    import sys
    from pathlib import Path
    from espnet3.shards.lease import Lease
    with Lease(Path(sys.argv[2]), heartbeat=1000, timeout=60) as lease:
        go()
        for number in range(60):
            if sys.argv[3] == "sweep" and sys.argv[1] == "0":
                lease.sweep()
            if lease.claim(f"split.{number}"):
                print(number)
        go()
"""


def test_many_processes_that_claim_at_once_agree_on_one(folder, race):
    printed = race(CLAIMER, 4, folder, "", n_goes=2)
    assert Counter(chain(*printed)) == {str(number): 1 for number in range(60)}
    assert os.listdir(folder / "leases") == []


def test_many_processes_that_take_over_dead_claims_at_once_agree_on_one(folder, mine, race):
    for number in range(60):
        claim_of_nobody(mine, f"split.{number}")
    printed = race(CLAIMER, 4, folder, "", n_goes=2)
    assert Counter(chain(*printed)) == {str(number): 1 for number in range(60)}
    assert os.listdir(mine.folder) == [owner_file(mine).name]


def test_nobody_claims_twice_while_another_process_sweeps(folder, mine, race):
    for number in range(60):
        claim_of_nobody(mine, f"split.{number}")
    printed = race(CLAIMER, 4, folder, "sweep", n_goes=2)
    assert max(Counter(chain(*printed)).values()) == 1
    assert os.listdir(mine.folder) == [owner_file(mine).name]


def silence(lease: Lease, seconds: float) -> None:
    """Let it be as if nothing had reached the file system for a while."""
    age(lease, seconds)
    lease._beat -= seconds
    then, since = lease._clock
    lease._clock = (then - seconds, since - seconds)


def test_after_an_outage_of_the_file_system_others_have_time_to_come_back(folder):
    with Lease(folder) as mine, Lease(folder) as other:
        assert other.claim("split.0")
        for lease in (mine, other):
            silence(lease, 300)
        assert mine.is_held("split.0"), "ours cannot be heard either"
        mine.beat()
        assert mine.is_held("split.0")
        assert other.owner in mine.others()
        mine._gap_until = time.monotonic()  # it did not come back in time
        assert not mine.is_held("split.0")
        assert mine.claim("split.0")


def test_after_an_outage_one_who_was_silent_before_is_dead(folder):
    with Lease(folder) as mine, Lease(folder) as other:
        assert other.claim("split.0")
        silence(mine, 300)
        silence(other, 300 + 61)
        mine.beat()
        assert mine.claim("split.0")


def test_a_machine_that_was_asleep_takes_nobody_for_dead_at_once(folder):
    with Lease(folder) as mine, Lease(folder) as other:
        assert other.claim("split.0")
        age(other, 3600)
        then, since = mine._clock
        mine._clock = (then - 3660, since - 60)  # the monotonic clock stood still for an hour
        mine.beat()
        assert not mine.claim("split.0")


def test_hour_of_heartbeats_is_a_few_hundred_operations(folder, monkeypatch):
    real, passed = time.monotonic, 0.0
    monkeypatch.setattr(time, "monotonic", lambda: real() + passed)
    with Lease(folder, heartbeat=1000) as lease, FileOperations(folder) as operations:
        for _ in range(int(3600 / HEARTBEAT)):
            passed += HEARTBEAT
            lease.beat()
    assert operations.counts["utime"] == 240
    assert operations.counts["stat"] <= 61, "the clock of the file system is looked at now and then"
    assert TIMEOUT >= 4 * HEARTBEAT, "a few may get lost"


@pytest.mark.parametrize(("version", "told"), [("0.1.0", "0.1.0"), ("", "an earlier version")])
def test_living_owner_of_another_version_is_refused_with_the_lines_to_type(
    mine, other, version, told
):
    mine.refuse_other_versions()
    rewrite(other, version=version)
    with pytest.raises(RunFolderError, match=f"ESPnet3 {told}, and this is") as error:
        mine.refuse_other_versions()
    assert "espnet3 wait" in error.value.fix
    assert "espnet3 cancel" in error.value.fix
    rewrite(other, machine="another")
    age(other)
    mine.refuse_other_versions()  # it is dead, and its folder is continued
