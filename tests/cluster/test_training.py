"""A real training as a job of a real Slurm: two nodes, DDP, stopped by a signal, resumed."""

import pytest
import torch

from tests.cluster.test_launch import Recipe as LaunchedRecipe
from tests.cluster.test_launch import shorten_delay
from tests.conftest import wait_until
from tests.integration.training_recipe import TrainingRecipe

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

LAUNCH = """\
launch:
  scheduler: slurm
  queue: cpu
  time: "00:10:00"
  cpus_per_task: 1
  environment: {GLOO_SOCKET_IFNAME: lo}
"""
SETTINGS = ("trainer.num_nodes=2", "trainer.strategy=ddp", "trainer.log_every_n_steps=1")


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
    job_id = recipe.launch(*SETTINGS, "trainer.max_epochs=60", "resume=never")
    wait_until(lambda: "Epoch 2/60" in recipe.log, 120)
    recipe.tell("scancel", "--signal=USR1", job_id)  # as --signal=USR1@120 does it
    shorten_delay(recipe, job_id)
    stopped = torch.load(recipe.recipe.exp_dir / "last.ckpt", weights_only=True)
    assert 7 < stopped["global_step"] < 420
    recipe.slurm.wait_until_empty(200)
    ended = recipe.job(job_id)
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("COMPLETED", "0:0", "1")
    assert "2 ranks" in recipe.log
    assert f"step {stopped['global_step']}, saved" in recipe.log  # went on from there
    last = torch.load(recipe.recipe.exp_dir / "last.ckpt", weights_only=True)
    assert last["global_step"] == 7 * 60
    assert (recipe.recipe.exp_dir / "valid.loss.ave_2best.safetensors").exists()
