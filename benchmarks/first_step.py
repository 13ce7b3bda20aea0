"""How long `run.py --stages train` takes from the start of its process to the first step."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import Figure, seconds
from espnet3.trainer.reporting.history import read_history

LIMIT = 2.0
_PREFIX = "startup/"
_LEAST = 0.01

RUN = """\
from espnet3.cli.recipe import run_recipe
from espnet3.systems.base.system import BaseSystem

if __name__ == "__main__":
    run_recipe(BaseSystem)
"""

DATASET = """\
import numpy as np


class Dataset:
    def __len__(self):
        return 2000

    def durations(self):
        return 1 + np.arange(2000) % 10

    def __getitem__(self, index):
        return {"speech": np.ones((100 * (1 + index % 10), 80), np.float32)}
"""

MODEL = """\
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(80, 4, 320, batch_first=True)
        self.encoder = torch.nn.TransformerEncoder(layer, 4)

    def forward(self, speech, speech_lengths):
        loss = self.encoder(speech).square().mean()
        return loss, {"loss": loss.detach()}, len(speech)
"""

TRAINING = """\
exp_tag: start
dataset: {train: [{data_src_args: {}}], valid: [{data_src_args: {}}]}
dataloader: {train: {batch_seconds: 10}}
model: {_target_: src.model.Model}
optimizer: {_target_: torch.optim.AdamW, lr: 0.001}
trainer: {accelerator: cpu, devices: 1, max_steps: 1, limit_val_batches: 1}
"""

FILES = {
    "run.py": RUN,
    "dataset/__init__.py": DATASET,
    "src/__init__.py": "",
    "src/model.py": MODEL,
    "conf/training.yaml": TRAINING,
}


def first_step(folder: Path) -> dict[str, float]:
    """Train a new recipe in a new process; return seconds by part, what precedes `train` first."""
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    begin = time.time()
    _run(["run.py", "--stages", "train", "--training_config", "conf/training.yaml"], folder)
    entries = read_history(folder / "exp" / "start")
    start = next(entry for entry in entries if f"{_PREFIX}total" in entry.values)
    parts = {name.removeprefix(_PREFIX): value for name, value in start.values.items()}
    total = start.time - begin
    return {"before the stage": total - parts.pop("total"), **parts}


def _run(arguments: list[str], folder: Path) -> None:
    command = [sys.executable, *arguments]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=folder, env=environ, check=True, capture_output=True)


def measure() -> Iterator[Figure]:
    """Compare with an import of Lightning, which is most of it, and tell the parts."""
    with tempfile.TemporaryDirectory() as folder:
        parts = first_step(Path(folder))
        bare = seconds(lambda: _run(["-c", "import lightning.pytorch"], Path(folder)))
    what = "train, from the start of the process to the first step; against import lightning"
    yield Figure(what, sum(parts.values()), "s", bare, LIMIT)
    for part, taken in parts.items():
        if taken >= _LEAST:
            yield Figure(f"beside: {part.replace('_', ' ')}", taken, "s")
