"""`freeze: [encoder]` was taken without a word, and the log then said "all trainable"."""

import logging
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from espnet3.errors import ConfigError, StaleRunError
from espnet3.trainer import train
from tests.helpers.tones_recipe import TRAIN, call, write_recipe

SAMPLES = [{"x": torch.tensor([float(i % 5), 1.0]), "y": i % 2} for i in range(16)]
CONFIG = {
    "num_threads": 1,
    "optimizer": {"_target_": "torch.optim.AdamW", "lr": 0.1, "weight_decay": 0.1},
    "dataloader": {"train": {"batch_size": 4}},
    "best_model_criterion": [["valid/loss", 2, "min"]],
    "trainer": {
        "accelerator": "cpu", "devices": 1, "max_epochs": 2, "logger": False,
        "enable_progress_bar": False,
    },
}  # fmt: skip


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
        self.norm = nn.BatchNorm1d(4)
        self.output = nn.Linear(4, 2)

    def forward(self, x, y):
        assert not any(module.training for module in self.encoder.modules())
        hidden = self.norm(self.encoder(x))
        return nn.functional.cross_entropy(self.output(hidden), y)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Train in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    return tmp_path


def run(config=CONFIG, **more):
    return train({**config, "freeze": ["encoder.*"]}, train=SAMPLES, valid=SAMPLES, **more)


def test_weights_and_statistics_stay_in_checkpoints_and_averages():
    torch.manual_seed(1)
    model = Net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    averaged = run(model=model).load_into(Net()).state_dict()
    moved = {name for name in before if not torch.equal(before[name], averaged[name])}
    assert all(name.startswith(("norm.", "output.")) for name in moved)
    assert {"norm.running_mean", "output.weight"} <= moved
    state = torch.load("exp/training/last.ckpt", weights_only=True)["optimizer_states"][0]
    assert len(state["state"]) == 4  # weight and bias of norm and output


def test_a_training_goes_on_with_it_and_not_with_another():
    run(model=Net)
    assert len(run(model=Net, overrides=["trainer.max_epochs=3"]).history) == 3
    with pytest.raises(StaleRunError, match=r"freeze\.0: 'encoder\.\*' -> 'output'") as refused:
        train({**CONFIG, "freeze": "output"}, model=Net, train=SAMPLES, valid=SAMPLES)
    assert "freeze.0 cannot change in a resumed training" in str(refused.value)
    same = {**CONFIG, "freeze": "encoder.*"}  # one text is a list of one
    assert not train(same, model=Net, train=SAMPLES, valid=SAMPLES,
                     overrides=["trainer.max_epochs=3"]).was_trained  # fmt: skip


def test_weights_to_start_from_are_frozen_as_loaded():
    first = run(model=Net)
    second = run({**CONFIG, "init": str(first.weights)}, model=Net, exp_dir="b")
    one, other = (result.load_into(Net()).encoder.state_dict() for result in (first, second))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_optimizers_by_name_leave_it_out(caplog):
    sgd = {"_target_": "torch.optim.SGD", "lr": 0.1}

    class Two(Net):
        def forward(self, x, y):
            loss = super().forward(x, y)
            return {"a": {"loss": loss}, "b": {"loss": loss * 2}}

    config = {key: value for key, value in CONFIG.items() if key != "optimizer"} | {
        "best_model_criterion": [["valid/a/loss", 1, "min"]],
        "optimizers": {
            "a": {"optimizer": sgd, "params": ["norm"]},
            "b": {"optimizer": sgd, "params": ["output"]},
        },
    }
    assert run(config, model=Two).was_trained


def test_a_callback_that_sets_train_mode_does_not_undo_it():
    block = {"_target_": f"{__name__}.ToTrainMode"}
    config = {**CONFIG, "trainer": {**CONFIG["trainer"], "callbacks": [block]}}
    assert run(config, model=Net).was_trained


def ToTrainMode():
    import lightning.pytorch as pl

    class Callback(pl.Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            pl_module.model.train()

    return Callback()


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """Return a recipe."""
    folder = tmp_path_factory.mktemp("freeze") / "asr"
    write_recipe(folder)
    return folder


@pytest.fixture
def recipe(written, tmp_path) -> Path:
    """Return a copy of it."""
    return Path(shutil.copytree(written, tmp_path / "asr"))


def test_run_py_freezes_and_says_what(recipe, caplog, capfd):
    caplog.set_level(logging.INFO, logger="espnet3")
    assert call(recipe, *TRAIN, "freeze=[encoder.*]", "--dry-run") == 0
    assert "36 trainable" in capfd.readouterr().out
    assert call(recipe, *TRAIN, "freeze=[encoder.*]") == 0
    assert "Frozen: encoder (in eval mode); 208 of 244 parameters, 85%" in caplog.text
    assert "all trainable" not in caplog.text
    assert call(recipe, *TRAIN, "freeze=[decoder.*]", "exp_tag=b") == 1
    assert "Write: freeze: [encoder]" in capfd.readouterr().err
    assert call(recipe, *TRAIN, "freeze=[encoder]", "exp_tag=b") == 0
    assert call(recipe, *TRAIN, "init=xavier_uniform", "exp_tag=c") == 0
    assert "Weights by xavier_uniform: 2 drawn, 2 biases set to 0" in caplog.text
    assert call(recipe, *TRAIN, "init=xavier", "exp_tag=d") != 0
    assert "Write: init: xavier_" in capfd.readouterr().err


def test_a_model_that_is_frozen_whole_is_refused_before_anything_is_written():
    with pytest.raises(ConfigError, match="leaves nothing of Net to train"):
        train({**CONFIG, "freeze": "*"}, model=Net, train=SAMPLES, valid=SAMPLES)
    assert not Path("exp/training/last.ckpt").exists()
