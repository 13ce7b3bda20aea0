"""Commands of schedulers that are missing, late or refuse."""

import pytest

from espnet3.errors import ResourceError
from espnet3.schedulers import (
    OWN_SCHEDULERS,
    UnansweredError,
    base,
    current_job,
    known_scheduler,
    node_of_job,
    possible_schedulers,
)
from espnet3.schedulers.command import ask, call


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Return a function that makes a command."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def write(name: str, body: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)

    return write


def test_a_command_that_hangs_is_given_up(command):
    command("slow", "exec sleep 300")
    answer = call(["slow"], timeout=0.2)
    assert (answer.code, answer.failure) == (None, "late")
    assert "no answer" in answer.said


def test_a_command_that_is_not_there_is_no_error():
    assert call(["espnet3-no-such-command"]).failure == "missing"
    assert ask("espnet3-no-such-command") is None


def test_what_a_failing_command_prints_counts_only_if_that_is_meant(command):
    command("half", "echo all but one; exit 1")
    assert ask("half") is None
    assert ask("half", any_code=True) == "all but one\n"


def test_a_refused_job_is_told_in_the_words_of_the_scheduler(command):
    command("sbatch", "echo 'invalid partition' >&2; exit 1")
    with pytest.raises(ResourceError, match="invalid partition") as error:
        known_scheduler("slurm").submit_script("job.sh")
    assert not isinstance(error.value, UnansweredError)


@pytest.mark.parametrize("body", ["echo welcome", "exec sleep 300"])
def test_a_job_whose_number_is_not_told_may_be_there(command, body, monkeypatch):
    monkeypatch.setattr(base, "SUBMIT_SECONDS", 0.5)
    command("sbatch", body)
    with pytest.raises(UnansweredError):
        known_scheduler("slurm").submit_script("job.sh")


@pytest.mark.parametrize(
    ("env", "told", "number"),
    [
        ("slurm", "Submitted batch job 12", "12"),
        ("slurm", "12;cluster", "12"),
        ("pbs", "12.head", "12"),
        ("sge", 'Your job 12 ("dask-worker") has been submitted', "12"),
        ("lsf", "Job <12> is submitted to queue <gpu2>.", "12"),
        ("oar", "[ADMISSION RULE] 3 ok\nOAR_JOB_ID=12", "12"),
        ("htcondor", "1 job(s) submitted to cluster 12.", "12.0"),
        ("moab", "\nMoab.12", "12"),
        ("lsf", "welcome to node 7", ""),
    ],
)
def test_the_number_of_a_job_is_read(env, told, number):
    assert known_scheduler(env).job_id(told) == number


@pytest.mark.parametrize("text", ["-u alice", "--me", "", "0", "12; rm -rf x", "alice"])
def test_what_is_no_number_of_a_job_is_not_handed_to_a_command(text):
    assert not any(known_scheduler(env).is_job_id(text) for env in ("slurm", "lsf", "htcondor"))


def test_jobs_of_grid_engine_are_told_from_another_program_s_variable():
    sge = known_scheduler("sge")
    assert sge.current_job({"JOB_ID": "12"}) is None
    assert sge.current_job({"JOB_ID": "12", "SGE_ROOT": "/sge"}).job_id == "12"


def test_only_schedulers_whose_variables_are_there_are_asked():
    assert possible_schedulers(environ={"PATH": "/bin", "JOB_ID": "a printer's"}) == []
    assert node_of_job({"SLURMD_NODENAME": "node7"}) == "node7"


@pytest.mark.parametrize("env", OWN_SCHEDULERS)
def test_each_scheduler_is_found_by_the_variables_of_its_job(env):
    variables = dict.fromkeys(known_scheduler(env).job_variables, "12") | {"SGE_ROOT": "/sge"}
    job = current_job(variables)
    assert not known_scheduler(env).job_variables or (job is not None and job.job_id == "12")
