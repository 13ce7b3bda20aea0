"""Chains of jobs: who came before, whose successor is gone, and when it is no use to go on."""

import json
import os
from dataclasses import replace

import pytest

from espnet3.errors import RunFolderError
from espnet3.parallel.detached.description import user_name
from espnet3.parallel.detached.successor_main import (
    is_fruitless,
    last_ended,
    load_config,
    predecessors,
    waiting_successors,
    without_successor,
)
from espnet3.parallel.detached.workforce import Job, Workforce
from espnet3.schedulers import JobState
from espnet3.shards.lease import Lease
from espnet3.shards.records import (
    CrashNote,
    JobRecord,
    WorkerRecord,
    make_folders,
    write_death,
    write_job,
    write_worker,
)

CHAIN = [
    JobRecord("slurm", str(number), 100.0 * number, after=str(number - 1) if number > 1 else "")
    for number in range(1, 6)
]


def worker(number, **facts):
    return WorkerRecord(f"{number:016x}", "n1", 1, 100.0 * number, "slurm", str(number), **facts)


@pytest.fixture
def paths(tmp_path):
    made = make_folders(tmp_path)
    for job in CHAIN:
        write_job(made, job)
    return made


def test_the_last_three_before_a_job_are_found(paths):
    assert [job.job_id for job in predecessors(paths.root, "slurm", "5")] == ["4", "3", "2"]
    assert [job.job_id for job in predecessors(paths.root, "slurm", "2")] == ["1"]
    assert predecessors(paths.root, "slurm", "1") == []
    assert predecessors(paths.root, "slurm", "77") == []


def test_three_jobs_without_a_shard_are_fruitless_and_two_are_not(paths):
    for number in (2, 3, 4):
        write_worker(paths, worker(number))
    assert is_fruitless(paths.root, predecessors(paths.root, "slurm", "5"))
    assert not is_fruitless(paths.root, predecessors(paths.root, "slurm", "3"))


def test_three_jobs_that_brought_no_worker_are_fruitless(paths):
    assert is_fruitless(paths.root, predecessors(paths.root, "slurm", "5"))


@pytest.mark.parametrize("helper", [worker(3, n_shards=1), worker(9, n_shards=2, ended=250.0)])
def test_what_one_of_them_or_another_finished_meanwhile_counts(paths, helper):
    for number in (2, 4):
        write_worker(paths, worker(number))
    write_worker(paths, helper)
    assert not is_fruitless(paths.root, predecessors(paths.root, "slurm", "5"))


def test_what_was_finished_before_does_not_count(paths):
    for number in (2, 3, 4):
        write_worker(paths, worker(number))
    write_worker(paths, worker(1, n_shards=7, ended=150.0))
    assert is_fruitless(paths.root, predecessors(paths.root, "slurm", "5"))


def test_a_death_at_a_certain_batch_counts_for_it_will_end(paths):
    for number in (2, 3, 4):
        write_worker(paths, worker(number))
    write_death(paths, CrashNote(0, "n1", "killed", time=250.0))
    assert is_fruitless(paths.root, predecessors(paths.root, "slurm", "5"))
    write_death(paths, CrashNote(0, "n1", "killed", start=4, stop=8, time=250.0))
    assert not is_fruitless(paths.root, predecessors(paths.root, "slurm", "5"))


def test_a_job_that_was_told_to_end_did_not_fail(paths):
    for number in (2, 4):
        write_worker(paths, worker(number))
    write_worker(paths, worker(3, ended=310.0, reason="it got SIGTERM", exit_code=0))
    assert not is_fruitless(paths.root, predecessors(paths.root, "slurm", "5"))


def workforce_of(*jobs):
    return Workforce([], [Job(record, JobState(phase, ""), **how) for record, phase, how in jobs])


def test_a_job_at_work_whose_successor_was_cancelled_is_found():
    first, second = CHAIN[0], CHAIN[1]
    at_work = {"has_living_worker": True, "workers": (worker(1),)}
    gone = workforce_of((first, "running", at_work), (second, "ended", {}))
    assert without_successor(gone, "slurm") == [first]
    waiting = workforce_of((first, "running", at_work), (second, "pending", {}))
    assert without_successor(waiting, "slurm") == []
    # It has only begun: it will submit its successor itself.
    new = workforce_of((first, "running", at_work))
    assert without_successor(new, "slurm") == []


def test_the_last_that_ended_are_those_submitted_last():
    jobs = [(record, "ended", {}) for record in CHAIN[:4]] + [(CHAIN[4], "pending", {})]
    assert [job.job_id for job in last_ended(workforce_of(*jobs), "slurm")] == ["4", "3", "2"]
    assert last_ended(workforce_of(*jobs), "sge") == []


def test_a_job_that_was_cancelled_while_it_waited_says_nothing_of_the_work():
    first = (CHAIN[0], "running", {"has_living_worker": True, "workers": (worker(1),)})
    assert last_ended(workforce_of(first, (CHAIN[1], "ended", {})), "slurm") == []
    workforce = Workforce([], [Job(CHAIN[0], JobState("ended", "CANCELLED by 0"))])
    assert last_ended(workforce, "slurm") == []
    died = Workforce([], [Job(CHAIN[0], JobState("ended", "FAILED", "exit code 127"))])
    assert last_ended(died, "slurm") == [CHAIN[0]]


def write_block(path, **values):
    path.write_text(json.dumps({"env": "slurm", "mode": "async", **values}))
    path.chmod(0o644)


def test_workers_follow_with_the_config_of_their_backend(paths):
    write_block(paths.parallel("slurm"), n_workers=7)
    assert load_config(paths.root, "slurm").n_workers == 7


def describe(paths, **values):
    block = {"env": "slurm", "mode": "async", "n_workers": 3, **values}
    description = {"run_id": "", "name": "", "python": "", "cwd": "", "sys_path": [], "policy": {}}
    paths.run.write_text(json.dumps({**description, "parallel": block}))
    paths.run.chmod(0o644)


def test_a_block_that_others_could_have_written_is_not_submitted(paths):
    """Its options are commands of a job."""
    describe(paths)
    write_block(paths.parallel("slurm"), n_workers=7)
    paths.parallel("slurm").chmod(0o666)
    assert load_config(paths.root, "slurm").n_workers == 3
    assert load_config(paths.root, "slurm", trust=user_name(os.getuid())).n_workers == 7
    paths.run.chmod(0o666)
    with pytest.raises(RunFolderError, match="could have been changed by anybody"):
        load_config(paths.root, "slurm")


def test_jobs_of_one_backend_are_not_followed_by_those_of_another(paths):
    describe(paths, env="local")
    with pytest.raises(RunFolderError, match=r"espnet3 resume .* --env slurm"):
        load_config(paths.root, "slurm")


def test_successors_wait_for_those_at_work_and_for_nobody_else(tmp_path):
    with Lease(tmp_path) as lease:
        paths = make_folders(tmp_path)
        write_worker(paths, worker(1, ended=150.0))
        write_worker(paths, replace(worker(2), owner_id=lease.owner.owner_id))
        records = [*CHAIN[:3], JobRecord("slurm", "9", 300.0, after="8")]
        assert [job.job_id for job in waiting_successors(tmp_path, records)] == ["3"]
    assert waiting_successors(tmp_path, records) == []
