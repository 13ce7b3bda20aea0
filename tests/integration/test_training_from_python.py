"""A script of its own that trains with two processes, twice: each call starts its second one."""

import os
import subprocess
import sys

import torch

SCRIPT = """\
import os

import torch
from torch import nn

from espnet3.trainer import train


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4))
        self.output = nn.Linear(4, 2)

    def forward(self, x, y):
        return nn.functional.cross_entropy(self.output(self.encoder(x)), y)


samples = [{"x": torch.tensor([float(i), 1.0]), "y": i % 2} for i in range(18)]
config = {
    "num_threads": 1,
    "freeze": ["encoder.*"],
    "optimizer": {"_target_": "torch.optim.SGD", "lr": 0.1},
    "dataloader": {"train": {"batch_size": 4}},
    "best_model_criterion": [["valid/loss", 1, "min"]],
    "trainer": {
        "accelerator": "cpu", "devices": 2, "strategy": "ddp", "max_epochs": 1, "logger": False,
    },
}
torch.manual_seed(os.getpid())  # an object begins with other weights in each process
first = train(config, model=Net(), train=samples, valid=samples)
second = train(config, model=Net, train=samples, valid=samples, exp_dir="exp/b")
print("last line of", os.environ.get("LOCAL_RANK"), first.weights, second.weights)
"""


def test_two_processes_from_a_script(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    process = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.returncode == 0, process.stderr
    stem = "valid.loss.ave_1best.safetensors"
    assert process.stdout == f"last line of None exp/training/{stem} exp/b/{stem}\n"
    assert process.stderr.count("2 ranks (cpu, DDP)") == 2
    for folder in ("training", "b"):
        checkpoint = torch.load(tmp_path / "exp" / folder / "last.ckpt", weights_only=True)
        assert checkpoint["espnet3"]["world_size"] == 2
        assert checkpoint["global_step"] == 3  # 18 samples, in steps of twice 4
        assert int(checkpoint["state_dict"]["model.encoder.1.num_batches_tracked"]) == 0
        assert (tmp_path / "exp" / folder / "train.rank1.log").is_file()
