"""Trainings as jobs of a real Slurm, with a stand-in for the training itself."""

import subprocess
import sys

import pytest

from tests.cluster.launched_recipe import Recipe, shorten_delay

pytestmark = pytest.mark.cluster
_PATIENCE = 60.0  # seconds; other programs share the machine


@pytest.fixture
def recipe(slurm, tmp_path) -> Recipe:
    return Recipe(tmp_path / 'it\'s "my" 100% recipe', slurm)


@pytest.mark.parametrize("launcher", ["srun", "torchrun"])
def test_a_job_whose_time_is_up_goes_on_in_its_next_run(recipe, launcher):
    job_id = recipe.launch(f"launch.launcher={launcher}", "code=0")
    facts = recipe.facts(run=1)
    assert [each["rank"] for each in facts] == [0, 1, 2, 3]
    assert sorted(each["host"] for each in facts) == ["node1", "node1", "node2", "node2"]
    assert {(each["n"], each["gpus"], each["threads"]) for each in facts} == {(4, 2, "2")}

    recipe.tell("scancel", "--signal=USR1", job_id)  # as --signal=USR1@120 does it
    shorten_delay(recipe, job_id)
    assert {each["restart"] for each in recipe.facts(run=2)} == {"1"}
    ended = recipe.wait_for_end(job_id)
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("COMPLETED", "0:0", "1")
    assert recipe.log.count("ends\n") == 4
    assert "restart 1 of 10 resumes from the checkpoint" in recipe.log
    assert not list(recipe.folder.glob("exp/training/launch/*.restarts"))


def test_a_training_that_fails_is_not_restarted(recipe):
    (recipe.folder / "checkpoint").touch()
    ended = recipe.wait_for_end(recipe.launch("code=3"))
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("FAILED", "3:0", "0")


def test_a_cancelled_training_has_time_for_its_last_checkpoint(recipe):
    job_id = recipe.launch()
    recipe.facts(run=1)
    recipe.slurm.cancel(job_id)
    assert len(recipe.wait_for("last.*", 4)) == 4
    assert recipe.wait_for_end(job_id)["JobState"] == "CANCELLED"


def test_the_line_of_seed_000_is_told_what_it_lacks(recipe):
    script = recipe.folder / "train.sh"
    script.write_text(f"#!/bin/bash\nsrun {sys.executable} run.py\n")
    line = "sbatch --nodes=2 --gres=gpu:2 --cpus-per-task=8 train.sh"
    subprocess.run(line.split(), cwd=recipe.folder, env=recipe.slurm.env, check=True, timeout=30)
    first, _ = recipe.wait_for("refused.*", 2)
    recipe.slurm.wait_until_empty(_PATIENCE)
    corrected = "sbatch --nodes=2 --ntasks-per-node=2 --gres=gpu:2 --cpus-per-task=8 train.sh"
    assert "because the job was submitted without --ntasks-per-node" in first.read_text()
    assert f"Submit the job with: {corrected} ;" in first.read_text()


def test_a_partition_that_does_not_exist_is_told_at_once(recipe):
    with pytest.raises(AssertionError, match=r"sbatch refused a job .*invalid partition"):
        recipe.launch("launch.queue=gpus")
