"""A job is noted before it is submitted: whatever happens in between, others know of it."""

import json
import os
import subprocess
import sys
import time

import pytest

from espnet3.errors import ResourceError
from espnet3.parallel.detached import job_script
from espnet3.parallel.detached import submit as submit_module
from espnet3.parallel.detached.control import cancel_runs
from espnet3.parallel.detached.explain import explain_run
from espnet3.parallel.detached.overview import look
from espnet3.parallel.detached.submit import submit_workers
from espnet3.parallel.detached.successor_main import load_config
from espnet3.parallel.detached.workforce import count_workforce, read_workforce
from espnet3.shards.records import JobRecord, complete_own_job, read_jobs, write_job
from tests.helpers.slurm_stand_in import ALL, crewed


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    with crewed(tmp_path, monkeypatch) as (slurm, run):
        yield slurm, run, load_config(run.root, "slurm")


class Killed(BaseException):
    """What ends a process at any line."""


def submitting(run):
    return [job for job in read_jobs(run.paths, submitting=True) if job.is_submitting]


@pytest.fixture
def lost(cluster, monkeypatch):
    """A job was submitted, and who did so was ended before it knew the number."""
    slurm, run, config = cluster
    real = job_script.submit_job

    def killed(job, env):
        real(job, env)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(job_script, "submit_job", killed)
        with pytest.raises(Killed):
            submit_workers([run.root], config, 1)
    assert slurm.n_submitted == 1
    (record,) = submitting(run)
    return slurm, run, record


def test_a_submission_that_is_cut_off_leaves_a_record(lost):
    _, run, record = lost
    assert (record.env, record.job_id) == ("slurm", "")
    assert record.tag in record.script
    assert read_workforce(run.root).n_present == 4  # just now: it counts as on its way


def old(run, record):
    """Let it have happened an hour ago."""
    path = run.paths.jobs / f"{record.key}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "submitted": time.time() - 3600}))


def test_status_explain_and_cancel_know_of_it(lost):
    slurm, run, record = lost
    old(run, record)
    slurm.says(ALL)
    assert [job for job in look(run.root).workforce.jobs if job.record.is_submitting]
    (finding,) = [each for each in explain_run(run.root) if "may exist" in each.told]
    assert "squeue --me" in finding.told
    assert record.tag in finding.fix
    slurm.says({})
    (cancelled,) = cancel_runs([run.root], patience=0.0)
    assert any("may exist" in problem and "squeue" in problem for problem in cancelled.problems)


def test_a_scheduler_that_can_be_asked_tells_its_number(lost):
    slurm, run, record = lost
    old(run, record)
    (slurm.here / "comments").write_text(f"{'101':<40}espnet3:{record.tag}\n{'55':<40}other\n")
    slurm.says({**ALL, "101": "PENDING"})
    found = {job.record.job_id: job for job in look(run.root).workforce.jobs}
    assert found["101"].state.phase == "pending"
    cancel_runs([run.root], patience=0.0)
    assert "101" in slurm.cancelled


def test_the_job_itself_notes_its_number(lost):
    _, run, record = lost
    complete_own_job(run.paths, "slurm", record.tag, "101")
    assert submitting(run) == []
    assert {job.job_id for job in read_jobs(run.paths)} >= {"101"}
    complete_own_job(run.paths, "slurm", record.tag, "101")  # a job that is started again
    assert len(read_jobs(run.paths)) == 7


def test_a_worker_that_starts_notes_its_number(lost):
    slurm, run, record = lost
    run.paths.stop.write_text('{"kind": "cancelled", "reason": "enough"}')
    words = ["--env", "slurm", "--job", "101", "--tag", record.tag]
    command = [sys.executable, "-m", "espnet3.parallel.detached.work", str(run.root), *words]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    assert submitting(run) == []
    assert "101" in {job.job_id for job in read_jobs(run.paths)}
    assert f"--tag {record.tag}" in (slurm.here / "scripts").read_text()


def test_it_counts_as_there_for_who_submits_what_is_missing(lost):
    slurm, run, record = lost
    old(run, record)
    slurm.says({**ALL, "11": "CANCELLED", "12": "CANCELLED", "13": "CANCELLED"})
    assert count_workforce(run.root, "slurm") == 4


def test_a_refused_job_leaves_no_record(cluster):
    slurm, run, config = cluster
    (slurm.here / "refusal").write_text("sbatch: error: invalid partition specified: gpu\n")
    with pytest.raises(ResourceError, match="invalid partition"):
        submit_workers([run.root], config, 1)
    assert submitting(run) == []
    assert len(list(run.paths.jobs.glob("*.json"))) == 6


@pytest.mark.parametrize("said", ["", "sbatch: slow today", "Queued.\n"])
def test_an_answer_without_a_number_leaves_a_record(cluster, said):
    slurm, run, config = cluster
    (slurm.here / "odd").write_text(said)
    with pytest.raises(ResourceError, match="did not tell the number"):
        submit_workers([run.root], config, 1)
    assert len(submitting(run)) == 1


def test_a_number_that_cannot_be_noted_is_told_and_the_job_is_known(cluster, monkeypatch, caplog):
    _, run, config = cluster
    real, calls = submit_module._note, []

    def full(record, roots):
        calls.append(record)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        real(record, roots)

    monkeypatch.setattr(submit_module, "_note", full)
    (record,) = submit_workers([run.root], config, 1)
    assert record.job_id == "101"
    assert "Job 101" in caplog.text
    assert len(submitting(run)) == 1


def test_a_record_that_cannot_be_written_first_submits_nothing(cluster, monkeypatch):
    slurm, run, config = cluster

    def full(record, roots):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(submit_module, "_note", full)
    with pytest.raises(OSError, match="No space"):
        submit_workers([run.root], config, 1)
    assert slurm.n_submitted == 0


def test_records_of_the_version_before_are_read(cluster):
    _, run, _ = cluster
    before = {"env": "slurm", "job_id": "77", "submitted": 5.0, "host": "login1", "machine": "",
              "started": 0, "walltime": 3600.0, "after": "", "generation": 0, "log": "",
              "script": "", "others": [], "gpu": ""}  # fmt: skip
    (run.paths.jobs / "slurm-77.json").write_text(json.dumps(before))
    assert "77" in {job.job_id for job in read_jobs(run.paths)}


def test_both_records_of_one_job_are_one(cluster):
    _, run, _ = cluster
    write_job(run.paths, JobRecord("slurm", "", 5.0, tag="abc"))
    write_job(run.paths, JobRecord("slurm", "90", 5.0, tag="abc"))
    assert len(read_jobs(run.paths, submitting=True)) == 7
    assert submitting(run) == []


def test_a_user_s_own_comment_stays(cluster):
    _, run, config = cluster
    options = {**config.options, "job_extra_directives": ["--comment=mine"]}
    (record,) = submit_workers([run.root], config.model_copy(update={"options": options}), 1)
    assert record.script.count("--comment") == 1
    assert os.environ.get("SBATCH_COMMENT") is None
