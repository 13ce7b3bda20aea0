import pytest

from espnet3.config.load import load_config
from espnet3.trainer.launching.launch_check import check_training


@pytest.fixture
def training(tmp_path):
    def make(text: str):
        file = tmp_path / "training.yaml"
        file.write_text(text)
        return load_config(file, below={"exp_dir": "exp"})

    return make


def test_without_a_trainer_block_there_is_nothing_to_say(training):
    assert check_training(training("seed: 1\n")) == []


def test_a_block_that_fits_this_machine_is_ok(training):
    (finding,) = check_training(training("trainer: {accelerator: cpu, devices: 2}\n"), {})
    assert finding.level == "ok", finding
    assert "trainer.devices is 2" in finding.told


@pytest.mark.parametrize(
    ("environ", "trains_here", "level"),
    [({}, True, "problem"), ({}, False, "warning"), ({"SLURM_JOB_ID": "7"}, False, "problem")],
)
def test_processes_that_nobody_starts_are_told(training, environ, trains_here, level):
    loaded = training("trainer: {accelerator: cpu, devices: 1, num_nodes: 2}\n")
    (finding,) = check_training(loaded, environ, trains_here=trains_here)
    assert finding.level == level
    assert "runs alone" in finding.told


def test_a_word_that_lightning_does_not_have_is_a_problem(training):
    (finding,) = check_training(training("trainer: {strategy: dpp}\n"), {}, trains_here=False)
    assert finding.level == "problem"
    assert "Did you mean 'ddp'?" in finding.fix


def test_a_launch_block_brings_its_own_allocation(training, tmp_path):
    text = "trainer: {accelerator: gpu, devices: 2, num_nodes: 2}\nlaunch: {scheduler: slurm}\n"
    (tmp_path / "run.py").touch()
    (finding,) = check_training(training(text), {}, recipe_dir=str(tmp_path))
    assert finding.level == "ok", finding
    assert "ask slurm for 2 nodes x 2 processes, 2 GPUs on each node" in finding.told


def test_a_launch_block_that_is_wrong_is_a_problem(training):
    text = "trainer: {accelerator: gpu, devices: 2}\nlaunch: {scheduler: slrum}\n"
    (finding,) = check_training(training(text), {})
    assert finding.level == "problem"
