import os
import time

import pytest

from benchmarks.file_operations import FileOperations
from espnet3.parallel.detached.workforce import read_workforce
from espnet3.schedulers import JobState
from espnet3.shards.lease import Lease, machine_id
from espnet3.shards.records import (
    JobRecord,
    WorkerRecord,
    make_folders,
    read_jobs,
    read_workers,
    write_job,
    write_worker,
)

NOW = time.time()
PENDING = JobState("pending", "PENDING", "Priority")
RUNNING = JobState("running", "RUNNING")
ENDED = JobState("ended", "TIMEOUT")


@pytest.fixture
def paths(tmp_path):
    """An empty folder for records."""
    return make_folders(tmp_path)


def job(paths, job_id: str, submitted: float = NOW - 300, **more) -> None:
    write_job(paths, JobRecord(more.pop("env", "slurm"), job_id, submitted, **more))


def worker(paths, owner_id: str, **more) -> None:
    facts = {"host": "node1", "pid": 7, "started": NOW - 200, "env": "slurm", **more}
    write_worker(paths, WorkerRecord(owner_id, **facts))


def workforce(paths, **states):
    """Read the workforce; the scheduler tells of the named jobs, and asked ones are noted."""
    asked = []

    def ask(records):
        asked.extend(record.job_id for record in records)
        return {r.key: states[f"j{r.job_id}"] for r in records if f"j{r.job_id}" in states}

    found = read_workforce(paths.root, ask)
    return found, asked


def test_only_what_the_folder_does_not_tell_is_asked(paths):
    for number in ("1", "2", "3", "4"):
        job(paths, number)
    with Lease(paths.root) as lease:
        worker(paths, lease.owner.owner_id, job_id="1")
        worker(paths, "a" * 16, job_id="2", ended=NOW, exit_code=0)
        worker(paths, "b" * 16, job_id="3")  # gone without a word
        found, asked = workforce(paths, j3=ENDED, j4=PENDING)
    assert asked == ["3", "4"]
    assert [job.state.phase for job in found.jobs] == ["running", "ended", "ended", "pending"]
    assert [worker.is_lost for worker in found.workers].count(True) == 1
    assert found.n_present == 2


def test_a_successor_waits_for_the_queue_once_its_predecessor_is_gone(paths):
    job(paths, "1")
    job(paths, "2", after="1")
    found, _ = workforce(paths, j1=RUNNING, j2=PENDING)
    assert found.waiting == []
    assert [job.record.job_id for job in found.starting] == ["1"]
    found, _ = workforce(paths, j1=ENDED, j2=PENDING)
    assert [job.record.job_id for job in found.waiting] == ["2"]


def test_a_job_that_was_just_submitted_is_on_its_way_though_nobody_knows_it(paths):
    job(paths, "1", submitted=time.time())
    job(paths, "2", submitted=NOW - 3600)
    found, _ = workforce(paths)
    assert [job.record.job_id for job in found.starting] == ["1"]
    assert found.n_present == 1


def test_processes_are_told_by_pid_and_time(paths):
    here = {"env": "local", "machine": machine_id()}
    job(paths, "7", submitted=NOW - 100_000, **here)  # the number was used again since
    worker(paths, "a" * 16, env="local", job_id="", ended=NOW, exit_code=0, pid=7)
    found, asked = workforce(paths)
    assert (found.jobs[0].workers, asked) == ((), ["7"])
    job(paths, "7", submitted=NOW - 203, **here)
    found, asked = workforce(paths)
    assert ([w.owner_id for w in found.jobs[0].workers], asked) == (["a" * 16], [])


def test_a_requeued_job_brings_several_workers(paths):
    job(paths, "1")
    worker(paths, "a" * 16, job_id="1")
    worker(paths, "b" * 16, job_id="1", started=NOW - 20)
    found, _ = workforce(paths, j1=PENDING)
    assert [w.owner_id for w in found.jobs[0].workers] == ["a" * 16, "b" * 16]
    assert found.n_present == 1


def test_a_driver_that_waits_is_a_worker_without_a_record(paths):
    with Lease(paths.root):
        found, _ = workforce(paths)
    assert [worker.record.pid for worker in found.living] == [os.getpid()]


def test_backends_are_told_apart(paths):
    job(paths, "1")
    job(paths, "2", env="sge")
    found, _ = workforce(paths, j1=PENDING, j2=PENDING)
    assert (found.n_present, found.of_env("sge").n_present) == (2, 1)


def test_what_did_not_change_is_read_once(paths):
    job(paths, "1")
    worker(paths, "a" * 16, ended=NOW)
    worker(paths, "b" * 16)
    known = {}
    assert len(read_jobs(paths, known)) == 1
    assert len(read_workers(paths, known)) == 2
    with FileOperations(paths.root) as operations:
        assert len(read_jobs(paths, known)) == 1
        assert len(read_workers(paths, known)) == 2
    assert operations.counts == {"list": 2}
    (paths.jobs / "slurm-1.json").write_text("damaged since")
    worker(paths, "b" * 16, ended=NOW, reason="done")
    assert [job.job_id for job in read_jobs(paths, known)] == ["1"]
    assert {w.reason for w in read_workers(paths, known)} == {"", "done"}
