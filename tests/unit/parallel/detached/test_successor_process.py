import os
import sys
import time
from dataclasses import asdict

import pytest

from benchmarks.file_operations import FileOperations
from espnet3.io.atomic import write_json
from espnet3.io.shared_files import FolderClock
from espnet3.parallel.detached import worker
from espnet3.parallel.detached.worker import Successors
from espnet3.shards.records import JobRecord, WorkerRecord, make_folders, takes_turn, write_job
from tests.helpers.waiting import wait_until

SCRIPT = """
import sys
from pathlib import Path
with open(Path(__file__).parent / "calls", "a") as file:
    print(*sys.argv[1:], file=file)
"""
SLOW = "import time; time.sleep(600)"


@pytest.fixture
def paths(tmp_path):
    (tmp_path / "run a").mkdir()
    return make_folders(tmp_path / "run a")


@pytest.fixture
def make(paths, monkeypatch):
    def make(env="slurm", job_id="7", trust=None, first_seconds=0.0):
        monkeypatch.setattr(worker, "_FIRST_SECONDS", first_seconds)
        return Successors([paths.root], env=env, job_id=job_id, generation=2, trust=trust)

    return make


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """Let a module of ours stand in for the one that talks to the scheduler."""
    (tmp_path / "stand_in_succeed.py").write_text(SCRIPT)
    monkeypatch.setattr(worker, "_SUCCESSOR_MAIN", "stand_in_succeed")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def read():
        path = tmp_path / "calls"
        return path.read_text().splitlines() if path.exists() else []

    return read


def test_it_gives_way_to_the_worker_that_starts_at_the_same_time(tmp_path, calls, make):
    (tmp_path / "stand_in_succeed.py").write_text(SLOW)
    successors = make()
    successors.tick()
    process = successors._process
    try:
        ours, its = (os.getpriority(os.PRIO_PROCESS, pid) for pid in (0, process.pid))
        assert its == min(ours + 10, 19)
    finally:
        process.kill()
        successors.close()


def test_it_runs_at_the_start_and_then_when_it_is_this_worker_s_turn(
    calls, make, paths, monkeypatch
):
    successors = make(trust="ann")
    for _ in range(3):
        successors.tick()
    wait_until(lambda: len(calls()) == 1, 60)
    assert calls() == [f"{paths.root} --env slurm --job 7 --generation 2 --trust ann --has-turn"]
    monkeypatch.setattr(worker, "_EVERY_SECONDS", 0.0)
    (turn,) = paths.folder.glob("watch.*")
    turn.unlink()  # as if a minute had passed
    wait_until(lambda: successors.tick() or len(calls()) > 1, 60)
    successors.close()


def test_where_nothing_is_to_be_done_a_minute_costs_one_look_and_no_process(
    calls, make, paths, monkeypatch
):
    successors = make()
    write_job(paths, JobRecord("slurm", "8", 0.0, after="7"))
    takes_turn(paths.root, FolderClock(paths.root).now())
    successors.tick()
    monkeypatch.setattr(worker, "_EVERY_SECONDS", 0.0)
    with FileOperations(paths.root) as operations:
        successors.tick()
    assert operations.counts == {"stat": 1}
    assert successors._process is None
    assert calls() == []


def test_one_without_a_successor_asks_less_and_less_often(calls, make, paths, monkeypatch):
    monkeypatch.setattr(worker, "takes_turn", lambda root, now: False)
    successors = make()
    monkeypatch.setattr(worker, "_EVERY_SECONDS", 0.0)
    real, passed, started = time.monotonic, 0.0, []
    monkeypatch.setattr(time, "monotonic", lambda: real() + passed)
    monkeypatch.setattr(successors, "_start", lambda: started.append(passed))
    for _ in range(120):
        successors._started = started[-1] + real() if started else float("-inf")
        successors.tick()
        passed += 60
    assert 12 <= len(started) <= 16, "every ten minutes in the end"


def test_only_one_worker_has_a_minute_s_turn(paths):
    assert [takes_turn(paths.root, 6000.0 + n) for n in range(3)] == [True, False, False]
    assert takes_turn(paths.root, 6060.0)
    assert takes_turn(paths.root, 6120.0)
    assert len(list(paths.folder.glob("watch.*"))) == 2, "older ones are removed"


def test_a_run_that_ends_within_the_first_second_starts_no_process(calls, make, paths):
    successors = make(first_seconds=60.0)
    with FileOperations(paths.root) as operations:
        successors.tick()
    assert operations.counts == {}
    successors.finish()
    successors.close()
    assert calls() == []


def test_a_worker_that_leaves_within_the_first_second_is_followed_all_the_same(calls, make):
    successors = make(first_seconds=60.0)
    successors.tick()
    assert calls() == []
    successors.close()
    assert len(calls()) == 1
    make(first_seconds=60.0).close()  # which never came to work
    assert len(calls()) == 1


def test_it_is_asked_once_more_at_the_end_of_a_run_with_a_job_that_may_wait(calls, make, paths):
    write_job(paths, JobRecord("slurm", "8", 0.0, after="7"))
    make().finish()
    assert len(calls()) == 1


def test_jobs_that_have_all_brought_a_worker_need_no_process_at_the_end(calls, make, paths):
    write_job(paths, JobRecord("slurm", "7", 0.0))
    record = WorkerRecord("ab", "n1", 1, 5.0, env="slurm", job_id="7", ended=9.0, exit_code=0)
    write_json(paths.workers / "ab.json", asdict(record))
    make().finish()
    assert calls() == []
    # The number of another is not known: it was being submitted when its submitter was killed.
    write_job(paths, JobRecord("slurm", "", 0.0, tag="0123456789ab"))
    make().finish()
    assert len(calls()) == 1


def test_a_worker_that_vanished_may_have_a_job_that_waits_again(calls, make, paths):
    write_job(paths, JobRecord("slurm", "7", 0.0))
    record = WorkerRecord("ab", "n1", 1, 5.0, env="slurm", job_id="7")
    write_json(paths.workers / "ab.json", asdict(record))
    make().finish()
    assert len(calls()) == 1


@pytest.mark.parametrize(("env", "job_id"), [("local", "7"), ("local_gpu", "7"), ("slurm", "")])
def test_processes_have_no_successors(calls, make, env, job_id):
    successors = make(env, job_id)
    successors.tick()
    successors.finish()
    successors.close()
    assert calls() == []


def test_its_failure_is_told_and_does_no_harm(make, paths, monkeypatch, caplog):
    monkeypatch.setattr(worker, "_SUCCESSOR_MAIN", "no_such_module_at_all")
    write_job(paths, JobRecord("slurm", "8", 0.0, after="7"))
    make().finish()
    assert "no successor: no_such_module_at_all ended with code 1" in caplog.text
    assert sys.executable  # still here


def test_one_that_hangs_is_ended(calls, make, monkeypatch, tmp_path, caplog):
    (tmp_path / "stand_in_succeed.py").write_text("import time; time.sleep(1000)")
    monkeypatch.setattr(worker, "_SUBMIT_SECONDS", 0.0)
    successors = make()
    successors.tick()
    successors.tick()
    assert "did not end in time" in caplog.text
