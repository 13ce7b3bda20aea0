"""Run folders that the version before wrote are continued, merged and read by this one."""

import json
import platform
import shlex
import shutil
import subprocess
import sys
from contextlib import ExitStack

import pytest

from espnet3.cli.main import main
from espnet3.parallel.detached.handle import merge_detached
from espnet3.parallel.detached.overview import look
from espnet3.shards.lease import Lease, owner_path
from espnet3.shards.manifest import require_manifest
from espnet3.shards.merge import check_complete
from espnet3.shards.status import read_status
from tests.known_issues.golden.folders import run_program, unpack

TEXT = "".join(f'"utt{number}"\n' for number in range(12) if number != 9)
of_this_python = pytest.mark.skipif(
    platform.python_version_tuple()[:2] != ("3", "11"), reason="code.pkl is of Python 3.11"
)


@pytest.fixture
def golden(tmp_path):
    def make(name):
        folder = tmp_path / "a 'golden' run" / "run"
        unpack(name, folder)
        return folder

    return make


def work(folder):
    command = [sys.executable, "-m", "espnet3.parallel.detached.work", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def assert_finished(folder):
    assert (folder / "results.jsonl").read_text() == TEXT
    status = read_status(folder)
    assert (status.state, status.n_done, status.n_failed) == ("complete", 12, 1)
    assert not [path for path in folder.iterdir() if ".part-" in path.name]


def test_a_finished_run_answers_without_computing(golden):
    folder = golden("sync_finished")
    done = run_program(folder, "sync", GOLDEN_DIES_AT="0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(folder / "results.jsonl")
    assert_finished(folder)


def test_a_finished_run_is_merged_again_after_its_output_is_lost(golden):
    folder = golden("sync_finished")
    (folder / "results.jsonl").unlink()
    done = run_program(folder, "sync", GOLDEN_DIES_AT="0")
    assert done.returncode == 0, done.stderr
    assert_finished(folder)


@pytest.mark.parametrize("name", ["sync_half", "detached_half"])
def test_a_driver_continues_half_a_run(golden, name):
    folder = golden(name)
    done = run_program(folder, "sync", GOLDEN_DIES_AT="0")  # in a shard that is done
    assert done.returncode == 0, done.stderr
    assert_finished(folder)


@of_this_python
def test_a_detached_worker_continues_half_a_run(golden):
    folder = golden("detached_half")
    done = work(folder)
    assert done.returncode == 0, done.stderr
    assert_finished(folder)
    (note,) = [json.loads(p.read_text()) for p in (folder / "detached" / "deaths").glob("*.json")]
    assert (note["start"], note["kind"]) == (7, "died")


@of_this_python
def test_a_detached_run_without_its_merge_is_merged(golden):
    folder = golden("detached_half")
    assert work(folder).returncode == 0
    (folder / "_SUCCESS.json").unlink()
    (folder / "results.jsonl").unlink()
    assert merge_detached(folder) == folder / "results.jsonl"
    assert_finished(folder)


@pytest.mark.parametrize(
    ("name", "state", "n_done"),
    [
        ("sync_finished", "complete", 12),
        ("sync_half", "stopped", 6),
        ("detached_half", "stopped", 6),
    ],
)
def test_a_run_folder_is_looked_at(golden, capsys, name, state, n_done):
    folder = golden(name)
    seen = look(folder)
    assert (seen.state, seen.status.n_done) == (state, n_done)
    for command in ("status", "explain", "logs"):
        assert main([command, str(folder)]) == 0
    assert "12" in capsys.readouterr().out


def test_what_is_committed_is_proven(golden):
    folder = golden("sync_finished")
    check_complete(folder, require_manifest(folder))
    shutil.rmtree(folder / "split.3")
    done = run_program(folder, "sync")
    assert done.returncode == 0, done.stderr
    assert_finished(folder)


@pytest.fixture
def version_at_work():
    """Return a function that lets an owner of another version live in a folder."""
    with ExitStack() as open_leases:

        def start(folder, version, n_dead=0):
            lease = open_leases.enter_context(Lease(folder))
            path = owner_path(lease.folder, lease.owner.owner_id)
            values = {**json.loads(path.read_text()), "version": version}
            path.write_text(json.dumps(values))
            for number in range(n_dead):
                name = f"{number:016x}"
                dead = owner_path(lease.folder, name)
                dead.write_text(json.dumps({**values, "owner_id": name, "pid": 2**22 - 1}))

        yield start


@pytest.mark.parametrize("version", ["0.1.0", ""])
@pytest.mark.parametrize("line", ["resume", "retry --failed", "merge"])
def test_no_command_adds_to_a_run_in_which_another_version_works(
    golden, version_at_work, capsys, line, version
):
    folder = golden("detached_half")
    version_at_work(folder, version, n_dead=6)
    before = sorted(path.name for path in folder.rglob("*"))
    assert main([*line.split(), str(folder)]) == 1
    told = " ".join(capsys.readouterr().err.split())
    assert f"with ESPnet3 {version or 'an earlier version'}, and this is" in told
    assert "Two versions do not share a run folder" in told
    assert f"espnet3 wait {shlex.quote(str(folder))}" in told
    assert sorted(path.name for path in folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("name", "line", "fix"),
    [("sync_finished", "tidy", "wait"), ("detached_half", "merge --join", "status")],
)
def test_what_refuses_all_company_refuses_another_version(
    golden, version_at_work, capsys, name, line, fix
):
    folder = golden(name)
    version_at_work(folder, "0.1.0")
    assert main([*line.split(), str(folder)]) == 1
    told = " ".join(capsys.readouterr().err.split())
    assert "is working in" in told
    assert f"espnet3 {fix} {shlex.quote(str(folder))}" in told


def test_what_only_reads_shows_a_run_of_another_version(golden, version_at_work, capsys):
    folder = golden("detached_half")
    version_at_work(folder, "0.1.0")
    assert main(["status", str(folder)]) == 0
    assert "12" in capsys.readouterr().out
