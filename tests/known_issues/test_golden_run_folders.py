"""Run folders that the version before wrote are continued, merged and read by this one."""

import json
import platform
import shutil
import subprocess
import sys

import pytest

from espnet3.cli.main import main
from espnet3.parallel.detached.handle import merge_detached
from espnet3.parallel.detached.overview import look
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
