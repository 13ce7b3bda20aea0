"""Dependencies and exclusions beside what the user says."""

import pytest

from espnet3.schedulers import known_scheduler


def test_a_first_job_waits_for_nobody():
    assert known_scheduler("slurm").with_dependency(["--gres=gpu:1"], "") == ["--gres=gpu:1"]


@pytest.mark.parametrize("users", ["--exclude=n09,n1[0-2]", "-x n09,n1[0-2]", "-xn09,n1[0-2]"])
def test_nodes_that_the_user_excludes_stay_excluded(users):
    found = known_scheduler("slurm").with_exclusion([users, "--gres=gpu:1"], ["bad1"])
    assert found[-1] == "--exclude=n09,n1[0-2],bad1"


def test_what_the_user_says_of_hosts_on_grid_engine_stays():
    users = ["-l gpu=1,h=big*"]
    assert known_scheduler("sge").with_exclusion(users, ["bad1"]) == users
    assert known_scheduler("sge").with_exclusion(["-l h_vmem=8G"], ["bad1"])[-1] == "-l h=!bad1"


def test_requirements_of_the_user_still_hold_on_htcondor():
    found = known_scheduler("htcondor").with_exclusion({"Requirements": "HasGpu || Big"}, ["bad1"])
    assert found == {"Requirements": '(HasGpu || Big) && (Machine != "bad1")'}


@pytest.mark.parametrize("env", ["pbs", "moab", "oar"])
def test_schedulers_that_cannot_be_told_are_not(env):
    assert known_scheduler(env).with_exclusion(["-V"], ["bad1"]) == ["-V"]


def test_a_name_that_is_none_is_never_written_into_a_script():
    assert known_scheduler("slurm").with_exclusion([], ["n1\n#SBATCH --wrap=evil", "a b"]) == []


def test_a_job_of_htcondor_stays_until_it_is_content():
    found = known_scheduler("htcondor").with_restart({}, None)
    assert found == {"on_exit_remove": "(ExitBySignal == False) && (ExitCode != 75)"}
    users = {"on_exit_remove": "True"}
    assert known_scheduler("htcondor").with_restart(users, None) == users
    assert known_scheduler("slurm").with_restart(["--gres=gpu:1"], None) == ["--gres=gpu:1"]
