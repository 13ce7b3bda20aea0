"""A small recipe that trains a recogniser of tones, run as `python run.py`."""

import os
import subprocess
import sys
from pathlib import Path

RUN = """\
import sys

from espnet3.cli.recipe import run_recipe
from espnet3.systems.base.system import BaseSystem

if __name__ == "__main__":
    sys.exit(run_recipe(BaseSystem))
"""

DATASET = '''\
"""Tones of several pitches and lengths, made when they are asked for."""

import numpy as np

RATE = 1000


class Dataset:
    def __init__(self, n=60, first=0, corrupt=None, path="data/broken.wav"):
        self.n, self.first, self.corrupt, self.path = n, first, corrupt, path
        self.seconds = 0.2 + np.random.default_rng(first).gamma(4.0, 0.1, n).clip(0, 1.5)

    def __len__(self):
        return self.n

    def durations(self):
        return self.seconds

    def __getitem__(self, index):
        if index == self.corrupt:
            from espnet3.components.data.audio import read_audio

            read_audio(self.path)
        rng = np.random.default_rng([self.first, index])
        label = index % 4
        time = np.arange(int(self.seconds[index] * RATE)) / RATE
        speech = np.sin(2 * np.pi * 40 * (label + 1) * time) + 0.1 * rng.normal(size=len(time))
        return {
            "utt_id": f"utt{self.first + index}",
            "speech": speech.astype(np.float32),
            "label": label,
        }
'''

MODEL = '''\
"""A small classifier; what each batch holds is written down where a test asks for it."""

import os

import torch


class Tones(torch.nn.Module):
    def __init__(self, hidden=16, dropout=0.1):
        super().__init__()
        self.encoder = torch.nn.Conv1d(1, hidden, 25, stride=5)
        self.dropout = torch.nn.Dropout(dropout)
        self.output = torch.nn.Linear(hidden, 4)

    def forward(self, speech, speech_lengths, label, utt_id=None):
        self._note(utt_id)
        features = self.encoder(speech[:, None]).abs().mean(-1)
        logits = self.output(self.dropout(features))
        loss = torch.nn.functional.cross_entropy(logits, label)
        accuracy = (logits.argmax(-1) == label).float().mean()
        return loss, {"loss": loss.detach(), "acc": accuracy}, len(label)

    def collect_feats(self, speech, speech_lengths, **others):
        return {"feats": speech[:, :, None], "feats_lengths": speech_lengths}

    def _note(self, utt_id):
        folder = os.environ.get("NOTE_BATCHES")
        if folder and self.training:
            rank = os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))
            with open(os.path.join(folder, f"rank{rank}.txt"), "a") as file:
                file.write(" ".join(utt_id) + "\\n")
'''

TRAINING = """\
seed: 3
exp_tag: tones

dataset:
  train:
    - data_src_args: {n: 60}
  valid:
    - data_src_args: {n: 20, first: 1000}

dataloader:
  train: {batch_seconds: 4, max_padding: 0.3}
  valid: {batch_size: 8}

model: {_target_: src.model.Tones}
optimizer: {_target_: torch.optim.AdamW, lr: 0.01}
scheduler: {_target_: torch.optim.lr_scheduler.StepLR, step_size: 20, gamma: 0.5}
best_model_criterion: [[valid/loss, 2, min]]

trainer:
  accelerator: cpu
  devices: 1
  max_epochs: 3
  log_every_n_steps: 5
  enable_progress_bar: false
"""

FILES = {
    "run.py": RUN,
    "dataset/__init__.py": "from .dataset import Dataset\n",
    "dataset/dataset.py": DATASET,
    "src/__init__.py": "",
    "src/model.py": MODEL,
    "conf/training.yaml": TRAINING,
}


class TrainingRecipe:
    """The recipe in a folder with an awkward name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, text in FILES.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    @property
    def exp_dir(self) -> Path:
        return self.folder / "exp" / "tones"

    def start(
        self, *arguments, program=(sys.executable,), from_above=False, **environ
    ) -> subprocess.Popen:
        """Start the recipe in its folder, or with relative paths in the folder above."""
        inside = Path(self.folder.name if from_above else ".")
        return subprocess.Popen(
            [
                *map(str, program), str(inside / "run.py"),
                "--training_config", str(inside / "conf/training.yaml"), *map(str, arguments),
            ],
            cwd=self.folder.parent if from_above else self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "COLUMNS": "200", "OMP_NUM_THREADS": "1", **environ},
            start_new_session=True,  # so that a test can signal all of its processes
        )  # fmt: skip

    def run(self, *arguments, code=0, seconds=120, **how) -> str:
        """Run to the end, and return what was printed."""
        process = self.start(*arguments, **how)
        output, _ = process.communicate(timeout=seconds)
        assert process.returncode == code, output
        return output

    def train(self, *overrides, **how) -> str:
        return self.run("--stages", "train", *overrides, **how)
