"""The end of a training by `EarlyStopping` was silent."""

import logging

import pytest
import torch
from torch import nn

from espnet3.trainer import train

SAMPLES = [{"x": torch.tensor([float(i)]), "y": torch.tensor(0.0)} for i in range(4)]
STOPPING = {"_target_": "lightning.pytorch.callbacks.EarlyStopping", "monitor": "valid/loss"}


class Worse(nn.Module):
    """Its loss is 1, 2, 3, ... in the validations, but for the second, which is the best."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.register_buffer("n", torch.zeros(()))

    def forward(self, x, y):
        if not self.training:
            self.n += 1
        value = 0.5 if self.n == 2 else float(self.n)
        return self.layer(x).sum() * 0 + value


@pytest.fixture
def run(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    caplog.set_level(logging.INFO, logger="espnet3")

    def run_with(*overrides: str, **stopping) -> str:
        config = {
            "num_threads": 1,
            "optimizer": {"_target_": "torch.optim.SGD", "lr": 0.1},
            "dataloader": {"train": {"batch_size": 4}},
            "trainer": {
                "accelerator": "cpu", "max_epochs": 20, "logger": False,
                "num_sanity_val_steps": 0, "enable_progress_bar": False,
                "callbacks": [{**STOPPING, **stopping}],
            },
        }  # fmt: skip
        caplog.clear()
        train(config, model=Worse, train=SAMPLES, valid=SAMPLES, overrides=overrides)
        lines = [message for message in caplog.messages if message.startswith("EarlyStopping")]
        return "\n".join(lines)

    return run_with


def test_it_says_by_which_metric_and_what_was_best(run):
    assert run(patience=3) == (
        "EarlyStopping ended the training after epoch 5: valid/loss was not better in 3 checks "
        "(patience: 3). Best valid/loss: 0.5, at epoch 2"
    )


def test_a_limit_is_named(run):
    told = run(stopping_threshold=0.6)
    assert "after epoch 2: stopping threshold reached: valid/loss = 0.5 < 0.6." in told


def test_a_training_that_ends_by_itself_says_nothing(run):
    assert run("trainer.max_epochs=3", patience=10) == ""


def test_another_patience_counts_in_a_training_that_goes_on(run):
    assert run("trainer.max_epochs=3", patience=10) == ""
    told = run(patience=2)
    assert "EarlyStopping of valid/loss now waits for 2 checks, and not for 10 as before" in told
    assert "after epoch 4: valid/loss was not better in 2 checks (patience: 2)" in told
