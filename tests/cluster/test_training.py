"""A real training as a job of a real Slurm: 2 nodes x 2 tasks, stopped by a signal, resumed."""

import subprocess
import sys

import pytest
import torch

from tests.cluster.launched_recipe import Recipe as LaunchedRecipe
from tests.cluster.launched_recipe import shorten_delay
from tests.helpers.training_recipe import TrainingRecipe
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

LAUNCH = """\
launch:
  scheduler: slurm
  queue: cpu
  time: "00:10:00"
  cpus_per_task: 1
  environment: {GLOO_SOCKET_IFNAME: lo}
"""
SETTINGS = ("trainer.devices=2", "trainer.num_nodes=2", "trainer.strategy=ddp")
N_STEPS = 4  # of an epoch, on four ranks


class Recipe(LaunchedRecipe):
    """The recipe of the integration tests, and its job."""

    def __init__(self, folder, slurm) -> None:
        self.recipe = TrainingRecipe(folder)
        self.folder, self.slurm = folder, slurm
        (folder / "conf/launch_slurm.yaml").write_text(LAUNCH)

    @property
    def log(self) -> str:
        return "".join(log.read_text() for log in self.folder.glob("exp/tones/launch/*.log"))


@pytest.fixture
def recipe(slurm, tmp_path) -> Recipe:
    return Recipe(tmp_path / "it's a recipe", slurm)


def test_two_nodes_stop_at_the_signal_and_end_with_the_right_number_of_steps(recipe):
    # `resume: never` holds for the first start of a job only.
    settings = ("trainer.log_every_n_steps=1", "trainer.max_epochs=30", "resume=never")
    job_id = recipe.launch(*SETTINGS, *settings)
    wait_until(lambda: "Epoch 2/30" in recipe.log, 120)
    recipe.tell("scancel", "--signal=USR1", job_id)  # as --signal=USR1@120 does it
    shorten_delay(recipe, job_id)
    stopped = torch.load(recipe.recipe.exp_dir / "last.ckpt", weights_only=True)
    assert N_STEPS < stopped["global_step"] < N_STEPS * 30
    recipe.slurm.wait_until_empty(400)
    ended = recipe.job(job_id)
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("COMPLETED", "0:0", "1")
    assert "4 ranks" in recipe.log
    assert f"step {stopped['global_step']}, saved" in recipe.log  # went on from there
    last = torch.load(recipe.recipe.exp_dir / "last.ckpt", weights_only=True)
    assert last["global_step"] == N_STEPS * 30
    assert (recipe.recipe.exp_dir / "valid.loss.ave_2best.safetensors").exists()


def test_a_wrong_number_of_tasks_is_explained_before_the_training_starts(recipe):
    training = f"run.py --stages train --training_config conf/training.yaml {' '.join(SETTINGS)}"
    script = recipe.folder / "train.sh"
    script.write_text(f"#!/bin/bash\nsrun {sys.executable} {training}\n")
    line = "sbatch --nodes=2 --ntasks-per-node=1 --output=told train.sh"
    subprocess.run(line.split(), cwd=recipe.folder, env=recipe.slurm.env, check=True, timeout=30)
    recipe.slurm.wait_until_empty(250)
    told = (recipe.folder / "told").read_text()
    assert "trainer.devices is 2" in told
    assert "--nodes=2 --ntasks-per-node=2" in told
    assert "Traceback" not in told
    assert not list(recipe.recipe.exp_dir.glob("*.ckpt"))
    assert set(recipe.slurm.submitted().values()) == {"FAILED"}
