"""Asking for jobs and ending them: by records that others may have written."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from espnet3.errors import ConfigError
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.detached.job_script import (
    WorkerJob,
    job_environment,
    make_job,
    walltime_of,
)
from espnet3.parallel.detached.submit import (
    cancel_jobs,
    job_states,
    process_state,
    start_process,
    submit_workers,
)
from espnet3.schedulers import known_scheduler
from espnet3.shards.lease import machine_id, start_time
from espnet3.shards.records import JobRecord
from tests.helpers.waiting import wait_until

OPTIONS = {"cores": 1, "memory": "1GB"}


@pytest.fixture
def process():
    """Return a process that looks like a worker."""
    words = ["-c", "import time; time.sleep(600)", "espnet3.parallel.detached.work"]
    with subprocess.Popen([sys.executable, *words]) as started:
        # The kernel lets us continue a moment before it shows the words of a new program.
        wait_until(lambda: Path(f"/proc/{started.pid}/cmdline").read_bytes())
        yield started
        started.kill()


def record_of(pid, **changes):
    started = start_time(pid)
    record = JobRecord("local", str(pid), 1.0, "here", machine_id(), started or 0)
    return replace(record, **changes)


def test_a_worker_of_this_machine_is_asked_to_end(process):
    record = record_of(process.pid)
    assert job_states([record])[record.key].phase == "running"
    assert cancel_jobs([record]) == []
    assert process.wait(60) == -signal.SIGTERM
    assert job_states([record])[record.key].phase == "ended"
    assert cancel_jobs([record]) == []


def test_a_number_that_another_process_has_by_now_is_left_alone(process):
    record = record_of(process.pid, started=start_time(process.pid) + 1)
    assert process_state(record).phase == "ended"
    assert cancel_jobs([record]) == []
    assert process.poll() is None


def test_a_process_that_is_no_worker_is_not_killed():
    with subprocess.Popen(["sleep", "600"]) as sleeper:
        told = cancel_jobs([record_of(sleeper.pid)])
        assert sleeper.poll() is None
        sleeper.kill()
    assert "is no worker of ESPnet3" in told[0]


def test_a_process_of_another_machine_sees_the_mark(process):
    record = record_of(process.pid, machine="another kernel", host="elsewhere")
    assert job_states([record])[record.key].phase == "unknown"
    assert "runs on elsewhere" in cancel_jobs([record])[0]
    assert process.poll() is None


@pytest.mark.parametrize("job_id", ["-u alice", "--me", "", "12; rm -rf x"])
def test_what_is_no_number_of_a_job_is_not_handed_to_a_command(job_id, tmp_path, monkeypatch):
    command = tmp_path / "scancel"
    command.write_text(f"#!/bin/sh\ntouch {tmp_path}/called\n")
    command.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert "is no number of a job" in cancel_jobs([JobRecord("slurm", job_id, 1.0)])[0]
    assert not (tmp_path / "called").exists()
    assert "'nowhere'" in cancel_jobs([JobRecord("nowhere", "12", 1.0)])[0]


def test_without_the_commands_of_a_scheduler_it_says_what_to_type(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    record = JobRecord("slurm", "12", 1.0, host="login1")
    assert job_states([record])[record.key].phase == "unknown"
    assert cancel_jobs([record]) == ["scancel is not there: type scancel 12 on login1, say"]


def test_several_workers_in_a_job_are_refused_with_what_to_write():
    options = {**OPTIONS, "processes": 4}
    config = ParallelConfig(env="slurm", mode="async", n_workers=2, options=options)
    with pytest.raises(ConfigError, match=r"set parallel.n_workers: 8, or parallel.mode: sync"):
        make_job(config, WorkerJob(()), 0.0)


def test_an_unknown_option_is_refused_as_in_a_run_that_waits():
    config = ParallelConfig(env="slurm", mode="async", options={**OPTIONS, "wall_time": "1:00:00"})
    with pytest.raises(ConfigError, match=r"options\.wall_time is no option.*'walltime'"):
        make_job(config, WorkerJob(()), 0.0)


def test_the_walltime_that_dask_jobqueue_adds_is_known():
    config = ParallelConfig(env="slurm", mode="async", options=OPTIONS)
    assert walltime_of(config) == 1800.0
    config = ParallelConfig(env="slurm", mode="async", options={**OPTIONS, "walltime": "00:02:00"})
    assert walltime_of(config) == 120.0


def test_what_a_job_hands_on_does_not_grow_and_asks_for_nothing(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/a:/b:/a:/b")
    monkeypatch.setenv("SLURM_MEM_PER_CPU", "100")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    monkeypatch.setenv("SBATCH_ACCOUNT", "my-lab")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    found = job_environment(known_scheduler("slurm"))
    assert found["PYTHONPATH"] == "/a:/b"
    assert found["SLURM_CONF"] == "/etc/slurm.conf"
    assert found["SBATCH_ACCOUNT"] == "my-lab"
    assert "SLURM_MEM_PER_CPU" not in found
    assert "CUDA_VISIBLE_DEVICES" not in found


def test_a_process_imports_nothing_from_where_it_is_started(tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("raise SystemExit('not meant for this program')\n")
    monkeypatch.chdir(tmp_path)
    record = start_process(ParallelConfig(env="local"), ["--help"], tmp_path, {})
    deadline = time.monotonic() + 60
    while process_state(record).phase == "running" and time.monotonic() < deadline:
        time.sleep(0.1)
    assert "usage: " in (tmp_path / "detached-local.out").read_text()


def test_logs_stay_in_one_place_whoever_submits_the_next_job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "sbatch").write_text("#!/bin/sh\ncat >/dev/null 2>&1\necho 7\n")
    (commands / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
    options = {**OPTIONS, "log_directory": "logs/jobs"}
    config = ParallelConfig(env="slurm", mode="async", options=options)
    (tmp_path / "run").mkdir()
    submit_workers([tmp_path / "run"], config, 1)
    kept = json.loads((tmp_path / "run/detached/parallel-slurm.json").read_text())
    assert kept["options"]["log_directory"] == str(tmp_path / "logs/jobs")
