"""A run that goes on from any checkpoint does exactly what the undisturbed one did after it."""

import os

import lightning.pytorch as pl
import pytest
import torch

from tests.helpers.checkpoint_parts import Module, run
from tests.helpers.exhaustive import pairs

CASES = {
    "no validation": {},
    "each epoch": {"valid": True},
    "within epochs": {"valid": True, "val_check_interval": 2},
    "by batches": {"valid": True, "val_check_interval": 3, "check_val_every_n_epoch": None},
    "every second epoch": {"valid": True, "check_val_every_n_epoch": 2},
}
LENGTHS = {"max_epochs": {"max_epochs": 2}, "max_steps": {"max_steps": 7, "max_epochs": -1}}


class Copies(pl.Callback):
    """Keeps all that is written, and what a signal would write at the end of each batch."""

    def __init__(self, folder):
        self.folder = folder
        self.paths = []

    def on_save_checkpoint(self, trainer, pl_module, checkpoint):
        checkpoint["n_events"] = len(pl_module.events)

    def on_train_batch_end(self, trainer, pl_module, *args):
        if not any(p.grad is not None for p in pl_module.parameters()):
            self.paths.append(self.folder / f"{len(self.paths)}.ckpt")
            trainer.save_checkpoint(self.paths[-1])
        self.keep_last()

    def on_train_batch_start(self, *args):
        self.keep_last()

    def on_train_end(self, *args):
        self.keep_last()

    def keep_last(self):
        last = self.folder / "whole" / "last.ckpt"
        inodes = [path.stat().st_ino for path in self.paths]
        if last.exists() and last.stat().st_ino not in inodes:
            self.paths.append(self.folder / f"{len(self.paths)}.ckpt")
            os.link(last, self.paths[-1])


@pytest.mark.parametrize(("case", "length"), pairs(CASES, LENGTHS))
def test_every_checkpoint_leads_to_the_same_end(tmp_path, case, length):
    options = {**CASES[case], **LENGTHS[length]}
    n_accumulate = 2 if (case, length) == ("within epochs", "max_epochs") else 1
    copies = Copies(tmp_path)
    whole = run(tmp_path / "whole", module=Module(n_accumulate), callbacks=[copies], **options)
    assert len(copies.paths) >= 6
    steps = whole.trainer.fit_loop.epoch_loop._batches_that_stepped
    for path in copies.paths:
        saved = torch.load(path, weights_only=True)
        is_finished = saved["global_step"] == options.get("max_steps")
        resumed = run(tmp_path / path.stem, module=Module(n_accumulate), ckpt_path=path, **options)
        rest = [] if is_finished else whole.events[saved["n_events"] :]
        assert resumed.events == rest, path.name
        assert is_finished or resumed.trainer.fit_loop.epoch_loop._batches_that_stepped == steps
        for name, value in whole.state_dict().items():
            assert torch.equal(value, resumed.state_dict()[name]), (path.name, name)
