"""A checkpoint of an earlier version could no longer be resumed once a callback was renamed.

Lightning keys the state of callbacks by class name, and skips what it does not find. The folder
`golden/training` was written before the modules of `trainer` were regrouped, by
`python -m tests.known_issues.test_golden_checkpoint`; writing it again gives up what it guards.
"""

import functools
import json
import pickletools
import shutil
import signal
import zipfile
from contextlib import suppress
from pathlib import Path

import torch
from torch import nn

import espnet3.trainer
from espnet3.errors import RunInterrupted

GOLDEN = Path(__file__).parent / "golden" / "training"
KEPT = ("last.ckpt", "best.json", "history.jsonl", "epoch1_step7.ckpt")
INTERRUPTED_AT = 20  # batches, with those of validations: in the middle of the second epoch

CONFIG = {
    "seed": 5,
    "num_threads": 1,
    "optimizers": {
        "encoder": {
            "optimizer": {"_target_": "torch.optim.AdamW", "lr": 0.02}, "params": ["encoder"],
        },
        "output": {
            "optimizer": {"_target_": "torch.optim.SGD", "lr": 0.1, "momentum": 0.9},
            "params": ["output"],
        },
    },
    "schedulers": {
        "encoder": {
            "scheduler": {"_target_": "torch.optim.lr_scheduler.ExponentialLR", "gamma": 0.97},
            "interval": "step",
        },
        "output": {
            "scheduler": {"_target_": "torch.optim.lr_scheduler.ReduceLROnPlateau", "patience": 0},
            "monitor": "valid/encoder/loss", "interval": "epoch",
        },
    },
    "best_model_criterion": [["valid/encoder/loss", 1, "min"]],
    "dataloader": {"train": {"batch_size": 4}, "valid": {"batch_size": 8}},
    "trainer": {
        "accelerator": "cpu", "devices": 1, "max_epochs": 4, "logger": False,
        "enable_progress_bar": False, "num_sanity_val_steps": 0, "log_every_n_steps": 3,
        "accumulate_grad_batches": 2, "gradient_clip_val": 1.0,
        "callbacks": [
            {
                "_target_": "lightning.pytorch.callbacks.EarlyStopping",
                "monitor": "valid/encoder/loss", "patience": 9,
            },
        ],
    },
}  # fmt: skip


class Miniature(nn.Module):
    """A model with dropout, a normalisation that counts batches, and two optimizers."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.2))
        self.output = nn.Linear(4, 2)

    def forward(self, points, labels, points_lengths):
        logits = self.output(self.encoder(points))
        loss = nn.functional.cross_entropy(logits, labels)
        return {"encoder": {"loss": loss}, "output": {"loss": loss * 2}}


def samples(n, seed):
    points = torch.randn(n, 3, generator=torch.Generator().manual_seed(seed))
    return [{"points": point, "labels": int(point.sum() > 0)} for point in points]


def train(folder):
    return espnet3.trainer.train(
        CONFIG, model=Miniature, train=samples(50, 0), valid=samples(16, 1), exp_dir=folder
    )


def interrupt(folder):
    """Train until a signal ends it in the middle of an epoch, as a scheduler does."""
    forward, calls = Miniature.forward, iter(range(INTERRUPTED_AT))

    @functools.wraps(forward)
    def interrupted(*args, **options):
        if next(calls, None) is None:
            signal.raise_signal(signal.SIGTERM)
        return forward(*args, **options)

    Miniature.forward = interrupted
    try:
        with suppress(RunInterrupted):
            train(folder)
    finally:
        Miniature.forward = forward


def weights(path):
    return torch.load(path, weights_only=True)["state_dict"]


def test_it_resumes_to_the_weights_of_an_uninterrupted_run(tmp_path):
    golden = torch.load(GOLDEN / "last.ckpt", weights_only=True)
    assert golden["epoch"] == 1
    assert 0 < golden["loops"]["fit_loop"]["epoch_loop.batch_progress"]["current"]["ready"] < 13
    interrupt(tmp_path / "again")
    shutil.copytree(GOLDEN, tmp_path / "golden")
    train(tmp_path / "golden")
    train(tmp_path / "whole")

    # Another processor may round otherwise, which the weights at the interruption show.
    again = weights(tmp_path / "again" / "last.ckpt")
    is_same = all(torch.equal(golden["state_dict"][name], again[name]) for name in again)
    tolerance = {"rtol": 0, "atol": 0} if is_same else {"rtol": 1e-4, "atol": 1e-5}
    resumed = weights(tmp_path / "golden" / "last.ckpt")
    torch.testing.assert_close(resumed, weights(tmp_path / "whole" / "last.ckpt"), **tolerance)


def test_the_state_of_every_callback_finds_its_owner(tmp_path):
    shutil.copytree(GOLDEN, tmp_path / "golden")
    train(tmp_path / "golden")
    before = torch.load(GOLDEN / "last.ckpt", weights_only=True)
    after = torch.load(tmp_path / "golden" / "last.ckpt", weights_only=True)
    assert list(after["callbacks"]) == list(before["callbacks"])
    assert after.keys() == before.keys()
    assert [len(one["state"]) for one in after["optimizer_states"]] == [4, 2]
    history = (tmp_path / "golden" / "history.jsonl").read_text().splitlines()
    golden = (GOLDEN / "history.jsonl").read_text().splitlines()
    assert history[: len(golden)] == golden
    epochs = [json.loads(line)["epoch"] for line in history]
    assert epochs == sorted(epochs)
    assert epochs[-1] == 4


def test_a_checkpoint_names_no_module_of_ours(tmp_path):
    interrupt(tmp_path)
    for path in (tmp_path / "last.ckpt", GOLDEN / "last.ckpt"):
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith(".pkl")]
            code = [op for name in names for op in pickletools.genops(archive.read(name))]
        used = {arg for op, arg, _ in code if op.name in ("GLOBAL", "STACK_GLOBAL")}
        texts = {arg for _, arg, _ in code if isinstance(arg, str)}
        assert used
        assert not [text for text in used | texts if str(text).startswith("espnet3.")]


def main():
    """Write the folder."""
    shutil.rmtree(GOLDEN, ignore_errors=True)
    interrupt(GOLDEN)
    for path in GOLDEN.iterdir():
        if path.name not in KEPT:
            path.unlink()


if __name__ == "__main__":
    main()
