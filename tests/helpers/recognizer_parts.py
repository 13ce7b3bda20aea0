"""A small recogniser with random weights, in the folder of a recipe that seems trained."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import soundfile
import torch
from omegaconf import OmegaConf
from safetensors.torch import save_file

from espnet3.components.text.tokenizer import CharacterTokenizer
from espnet3.config.instantiate import instantiate

RATE = 8000
WEIGHTS = "valid.loss.ave_3best.safetensors"
MODELS, DECODING = "espnet3.components.models", "espnet3.components.decoding"
TEXTS = ["one two three", "four five", "six seven eight nine", "zero", "two two"]

RUN = """\
import sys

from espnet3.cli.recipe import run_recipe
from espnet3.systems.asr.system import ASRSystem

if __name__ == "__main__":
    sys.exit(run_recipe(ASRSystem))
"""

INFERENCE = f"""\
dataset:
  test:
    - name: dev
      data_src: jsonl
      data_src_args: {{path: "${{data_dir}}/dev.jsonl"}}
model:
  _target_: espnet3.systems.asr.inference.Speech2Text
  weights: ${{exp_dir}}/{WEIGHTS}
  decoder: {{_target_: {DECODING}.ctc_beam.PrefixBeamCTC, beam_size: 4}}
  n_best: 2
input_key: speech
output_fn: espnet3.systems.asr.inference.output_fn
output_keys: [hyp, ref, score, nbest]
batch_seconds: 4
parallel: {{env: local, n_workers: 2}}
"""

METRICS = """\
metrics:
  - metric: {_target_: espnet3.systems.asr.metrics.wer.WER}
"""

PUBLICATION = """\
pack:
  name: tiny_asr
  license: cc-by-4.0
  language: en
  description: Hears digits that nobody said.
  data: Noise, made by us.
upload:
  repo_id: tester/tiny_asr
"""

TRAINING = "exp_tag: training\ntrainer: {max_epochs: 1}\noptimizer: {_target_: torch.optim.Adam}\n"


def model_block(tokenizer="./data/tokenizer", **more):
    return {
        "_target_": "espnet3.systems.asr.model.ASRModel",
        "tokenizer": tokenizer,
        "frontend": {"_target_": f"{MODELS}.log_mel.LogMel", "sample_rate": RATE, "n_mels": 20},
        "normalize": {"_target_": f"{MODELS}.normalization.UtteranceNormalization"},
        "encoder": {
            "_target_": f"{MODELS}.tdnn.TDNN",
            "input_size": 20,
            "n_channels": 16,
            "n_layers": 2,
            "subsampling": 4,
        },
        **more,
    }


def make_experiment(recipe: Path, block=None, name="training") -> Path:
    """Write what `train` leaves behind: config.yaml, and weights that say something."""
    recipe.mkdir(parents=True, exist_ok=True)
    CharacterTokenizer.from_texts(TEXTS).save(recipe / "data/tokenizer")
    exp_dir = recipe / "exp" / name
    exp_dir.mkdir(parents=True)
    block = block or model_block()
    torch.manual_seed(3)
    before = os.getcwd()
    os.chdir(recipe)
    try:
        model = instantiate(block)
    finally:
        os.chdir(before)
    weights = model.state_dict()
    if "ctc.weight" in weights:
        weights["ctc.weight"] *= 6  # decided, so that rounding does not show in the text
        weights["ctc.bias"][[1, -1]] = -20  # no unknown token
        often = model.tokenizer.tokens.index("u")
        weights["ctc.weight"][[2, often]] = weights["ctc.weight"][[often, 2]]  # several words
    save_file(weights, exp_dir / WEIGHTS)
    config = {"recipe_dir": ".", "exp_dir": f"./exp/{name}", "model": block, "hub": {"token": "x"}}
    OmegaConf.save(OmegaConf.create(config), exp_dir / "config.yaml")
    return exp_dir


def noise(seconds=1.5, seed=0):
    """Return samples whose colour changes, so that a random network hears something in them."""
    rng = np.random.default_rng(seed)
    time = np.arange(int(seconds * RATE)) / RATE
    pitch = 300 * (1 + np.cumsum(rng.integers(0, 2, int(seconds * 10) + 1)))
    tone = np.sin(2 * np.pi * pitch[(time * 10).astype(int)] * time)
    return (0.3 * tone + 0.05 * rng.normal(size=len(time))).astype(np.float32)


def make_recipe(folder: Path) -> Path:
    """Write a recipe whose training is done, with a test set of five files."""
    make_experiment(folder)
    rows = []
    for i, text in enumerate(TEXTS):
        soundfile.write(folder / f"data/utt{i}.wav", noise(0.5 + 0.4 * i, seed=i), RATE)
        rows.append(f'{{"utt_id": "utt{i}", "audio": "utt{i}.wav", "text": "{text}"}}\n')
    (folder / "data/dev.jsonl").write_text("".join(rows))
    configs = {"inference": INFERENCE, "metrics": METRICS, "publication": PUBLICATION}
    (folder / "conf").mkdir()
    for name, text in {**configs, "training": TRAINING}.items():
        (folder / f"conf/{name}.yaml").write_text(text)
    (folder / "run.py").write_text(RUN)
    return folder


def run(recipe: Path, *arguments, code=0, **environ) -> str:
    """Run the recipe as a user would, and return what it printed."""
    kinds = ("training", "inference", "metrics", "publication")
    configs = [word for kind in kinds for word in (f"--{kind}_config", f"conf/{kind}.yaml")]
    process = subprocess.run(
        [sys.executable, "run.py", *map(str, arguments), *configs],
        cwd=recipe,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", **environ},
    )
    output = process.stdout + process.stderr
    assert process.returncode == code, output
    return output
