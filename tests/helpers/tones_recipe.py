"""A recipe that trains on a few tones from files, called in this process."""

import json
import linecache
import os
import sys
from pathlib import Path

import numpy as np
import soundfile

from espnet3.cli.recipe import run_recipe
from espnet3.systems.base.system import BaseSystem
from tests.helpers.training_recipe import RUN

RATE = 1000
MODEL = """\
import numpy as np
import torch

GAIN = 1.0


class Tones(torch.nn.Module):
    def __init__(self, hidden=8, prior="data/prior.npy"):
        super().__init__()
        self.encoder = torch.nn.Conv1d(1, hidden, 25, stride=5)
        self.output = torch.nn.Linear(hidden, 4)
        self.register_buffer("prior", torch.from_numpy(np.load(prior)))

    def forward(self, speech, speech_lengths, label):
        features = GAIN * self.encoder(speech[:, None]).abs().mean(-1)
        loss = torch.nn.functional.cross_entropy(self.output(features) + self.prior, label)
        return loss, {"loss": loss.detach()}, len(label)
"""
STEPS = """\
import numpy as np


def louder(sample, rng):
    return {**sample, "speech": sample["speech"] * np.float32(rng.uniform(0.9, 1.1))}
"""
TRAINING = """\
seed: 3
exp_tag: tones

dataset:
  train:
    - data_src: jsonl
      data_src_args: {path: "${data_dir}/train.jsonl"}
      transform: src.steps.louder
  valid:
    - data_src: jsonl
      data_src_args: {path: "${data_dir}/valid.jsonl"}
  test:
    - {name: few, data_src: jsonl, data_src_args: {path: "${data_dir}/valid.jsonl"}}

dataloader:
  train: {batch_size: 8}

model: {_target_: src.model.Tones, hidden: 8, prior: data/prior.npy}
optimizer: {_target_: torch.optim.AdamW, lr: 0.01, weight_decay: 0.01}
scheduler: {_target_: torch.optim.lr_scheduler.StepLR, step_size: 100}
best_model_criterion: [[valid/loss, 1, min]]
num_threads: 1

trainer:
  accelerator: cpu
  devices: 1
  max_epochs: 1
  gradient_clip_val: 5.0
  logger: false
  enable_progress_bar: false
"""
INFERENCE = """\
dataset:
  test:
    - {name: few, data_src: jsonl, data_src_args: {path: "${data_dir}/valid.jsonl"}}
model: {_target_: src.guess.Guess, weights: "${exp_dir}/last.ckpt"}
input_key: speech
"""
GUESS = """\
class Guess:
    def __init__(self, weights, device="cpu"):
        open(weights, "rb").close()

    def __call__(self, speech):
        return "one"
"""


def write_set(folder: Path, name: str, n: int, rate: int = RATE, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    (folder / "audio").mkdir(parents=True, exist_ok=True)
    rows = []
    for i in range(n):
        samples = np.sin(np.arange(rate // 2) * (i % 4 + 1) / 5) + rng.normal(0, 0.05, rate // 2)
        soundfile.write(folder / "audio" / f"{name}{i}.wav", samples * 0.5, rate)
        row = {"utt_id": f"{name}{i}", "audio": f"audio/{name}{i}.wav", "label": i % 4}
        rows.append(json.dumps({**row, "text": f"tone {i % 4}", "duration": 0.5}))
    (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n")


def write_recipe(folder: Path) -> None:
    files = {
        "run.py": RUN,
        "src/__init__.py": "",
        "src/model.py": MODEL,
        "src/steps.py": STEPS,
        "src/guess.py": GUESS,
        "conf/training.yaml": TRAINING,
        "conf/inference.yaml": INFERENCE,
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    write_set(folder / "data", "train", 24)
    write_set(folder / "data", "valid", 8, seed=1)
    np.save(folder / "data" / "prior.npy", np.zeros(4, np.float32))


def call(folder: Path, *arguments: str, system: type = BaseSystem) -> int:
    """Run a recipe as a process of its own would: nothing of another one is loaded."""
    path, environ = list(sys.path), dict(os.environ)
    linecache.clearcache()
    try:
        return run_recipe(system, arguments, recipe_dir=folder)
    finally:
        os.chdir(folder.parent)
        sys.path[:] = path
        os.environ.clear()
        os.environ.update(environ)
        for name in [name for name in sys.modules if name.partition(".")[0] == "src"]:
            del sys.modules[name]


TRAIN = ("--stages", "train", "--training_config", "conf/training.yaml")
