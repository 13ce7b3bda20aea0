"""A run that goes on from a checkpoint logs, chooses and trains as if nothing had happened."""

import json

import lightning.pytorch as pl
import pytest
import torch

from espnet3.trainer.checkpointing.checkpoints import CheckpointKeeper
from espnet3.trainer.checkpointing.resume import RandomStates
from espnet3.trainer.config import CheckpointConfig, Criterion
from espnet3.trainer.module import TrainingModule
from espnet3.trainer.optimization.optimization_config import OptimizationConfig
from espnet3.trainer.reporting.history import read_history
from espnet3.trainer.reporting.loggers import History
from espnet3.trainer.reporting.summary import ThroughputMonitor
from espnet3.trainer.trainer import AtomicCheckpointIO
from tests.helpers.checkpoint_parts import Loader, Net

ADAM = {"_target_": "torch.optim.Adam", "lr": 0.05}
PLATEAU = {
    "_target_": "torch.optim.lr_scheduler.ReduceLROnPlateau",
    "patience": 0, "threshold": 0.9, "factor": 0.5,
}  # fmt: skip
CASES = {
    "log points within and across epochs": {"log_every_n_steps": 3},
    "no log point after the resume": {
        "log_every_n_steps": 5,
        "config": {
            "scheduler": PLATEAU, "scheduler_monitor": "train/loss", "scheduler_interval": "epoch",
        },
        "monitor": "train/loss",
    },
    "log points within an accumulation": {"log_every_n_steps": 1, "n_accumulated": 3},
    "validations within an accumulation": {
        "log_every_n_steps": 2, "n_accumulated": 3, "val_check_interval": 2,
    },
}  # fmt: skip


class Reporting(Net):
    def forward(self, x, y):
        return {"loss": super().forward(x, y), "mean": x.mean()}


class Killed(Exception):
    pass


class Kill(pl.Callback):
    """Ends the training before its n-th batch, as a signal 9 would."""

    def __init__(self, n: int) -> None:
        self.n_left = n

    def on_train_batch_start(self, *args) -> None:
        self.n_left -= 1
        if self.n_left == 0:
            raise Killed


def train(folder, *, kill_at=0, monitor="valid/loss", config=None, n_accumulated=1, **options):
    """Train, or go on from `last.ckpt`; return whether it came to its end."""
    pl.seed_everything(7, verbose=False)
    values = {"optimizer": ADAM, "trainer": {"accumulate_grad_batches": n_accumulated}}
    module = TrainingModule(
        Reporting(), OptimizationConfig.from_config({**values, **(config or {})})
    )
    keeper = CheckpointKeeper(
        folder, [Criterion(monitor, 2, "min")], CheckpointConfig(every_n_steps=2)
    )
    last = folder / "last.ckpt"
    trainer = pl.Trainer(
        accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, max_epochs=3,
        enable_model_summary=False, default_root_dir=folder, plugins=[AtomicCheckpointIO()],
        callbacks=[RandomStates(), ThroughputMonitor(), History(folder), keeper, Kill(kill_at)],
        **options,
    )  # fmt: skip
    loaders = Loader(7), Loader(2) if monitor == "valid/loss" else None
    try:
        trainer.fit(module, *loaders, ckpt_path=last if last.exists() else None)
    except Killed:
        return False
    return True


def end_of(folder):
    """Return the weights, the list of the best, and what was logged."""
    weights = torch.load(folder / "last.ckpt", weights_only=True)["state_dict"]
    lines = [
        (e.step, e.epoch, e.batch, {k: v for k, v in e.values.items() if k[:5] != "perf/"})
        for e in read_history(folder)
    ]
    best = json.loads((folder / "best.json").read_text())
    return {name: value.tolist() for name, value in weights.items()}, best, lines


@pytest.mark.parametrize("case", CASES)
def test_a_kill_changes_neither_weights_nor_choice_nor_history(tmp_path, case):
    assert train(tmp_path / "whole", **CASES[case])
    undisturbed = end_of(tmp_path / "whole")
    assert len(undisturbed[-1]) > 3
    for kill_at in (6, 7, 9, 20):
        folder = tmp_path / f"killed{kill_at}"
        assert not train(folder, kill_at=kill_at, **CASES[case])
        assert train(folder, **CASES[case])
        for found, expected in zip(end_of(folder), undisturbed, strict=True):
            assert found == expected, f"killed at batch {kill_at}"
