"""Odd and damaged audio in the stages of a recipe: what is sound is done, the rest is listed."""

import json
import os
import sys
from pathlib import Path

import pytest

from espnet3.cli.recipe import run_recipe
from espnet3.shards.merge import read_failures
from espnet3.systems.base.system import BaseSystem
from tests.helpers.bad_audio import GOOD, OF_ANOTHER_FORM, UNREADABLE, tone, write_all

MODEL = '''\
"""A model that tells how long its input is, and one that can be trained."""

import numpy as np
import torch


class Length:
    def __init__(self, device="cpu"):
        pass

    def __call__(self, speech):
        if isinstance(speech, list):
            return [self(one) for one in speech]
        assert speech.dtype == np.float32
        return f"{len(speech)} {speech.ndim}"


class Level(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, speech, speech_lengths, **others):
        loss = (self.scale * speech.square().mean() - 0.1).square().mean()
        return loss, {"loss": loss.detach()}, len(speech)
'''

NAMES = [*GOOD, *OF_ANOTHER_FORM, *UNREADABLE, "folder.wav"]
FORM = "{path: data, sample_rate: 16000, channel: mix, resample: true}"
INFERENCE = f"""\
exp_tag: test
dataset:
  test:
    - name: odd
      data_src: kaldi
      data_src_args: {FORM}
model: {{_target_: src.model.Length}}
batch_seconds: 2
device: cpu
runner: {{on_error: skip}}
parallel: {{env: local, n_workers: 2}}
"""

TRAINING = f"""\
exp_tag: train
dataset:
  train:
    - data_src: kaldi
      data_src_args: {FORM}
  valid:
    - data_src: jsonl
      data_src_args: {{path: data/valid.jsonl, sample_rate: 16000, channel: mix, resample: true}}
dataloader:
  train: {{batch_seconds: 2, max_padding: 0.9, on_error: skip}}
model: {{_target_: src.model.Level}}
optimizer: {{_target_: torch.optim.AdamW, lr: 0.001}}
trainer: {{accelerator: cpu, devices: 1, max_epochs: 1, enable_progress_bar: false, logger: false}}
"""

RECOGNISER = {
    "_target_": "espnet3.systems.asr.model.ASRModel",
    "tokenizer": "tokenizer",
    "frontend": {"_target_": "espnet3.components.models.log_mel.LogMel", "n_mels": 20},
    "normalize": {"_target_": "espnet3.components.models.normalization.UtteranceNormalization"},
}
ENCODERS = {
    "tdnn": {"_target_": "espnet3.components.models.tdnn.TDNN", "n_channels": 8, "n_layers": 2},
    "conformer": {
        "_target_": "espnet3.components.models.conformer.Conformer",
        "hidden": 8,
        "n_layers": 1,
        "n_heads": 2,
    },
}


class Recipe:
    """A recipe whose data is all that is odd, below a folder with an awkward name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        write_all(folder / "data" / "wav")
        for path, text in {
            "src/__init__.py": "",
            "src/model.py": MODEL,
            "conf/inference.yaml": INFERENCE,
            "conf/training.yaml": TRAINING,
            "data/wav.scp": "".join(f"{name} data/wav/{name}\n" for name in NAMES),
            "data/text": "".join(f"{name} hello\n" for name in NAMES),
            "data/valid.jsonl": "".join(
                json.dumps({"audio": f"wav/{name}"}) + "\n" for name in ("plain.wav", "44100.wav")
            ),
        }.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)

    def infer(self, *words, code=0) -> str:
        return self._run("infer", "inference", *words, code=code)

    def train(self, *words, code=0) -> str:
        return self._run("train", "training", *words, code=code)

    def _run(self, stage, kind, *words, code) -> str:
        """Run a stage in this process, and return its log."""
        config = [f"--{kind}_config", f"conf/{kind}.yaml"]
        arguments = ["--stages", stage, *config, *words]
        assert run_recipe(BaseSystem, arguments, recipe_dir=self.folder) == code
        tag = next((w.partition("=")[2] for w in words if w.startswith("exp_tag=")), None)
        tag = tag or {"infer": "test", "train": "train"}[stage]
        return (self.folder / "exp" / tag / f"{stage}.log").read_text()

    def hypotheses(self, tag: str) -> dict[str, str]:
        lines = (self.folder / "exp" / tag / "inference" / "odd" / "hyp.scp").read_text()
        return dict(line.partition(" ")[::2] for line in lines.splitlines())

    def failures(self, tag: str) -> list[str]:
        return [r["error"] for r in read_failures(self.folder / "exp" / tag / "inference" / "odd")]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    before, path, here = dict(os.environ), list(sys.path), Path.cwd()
    os.environ["OMP_NUM_THREADS"] = "1"
    recipe = Recipe(tmp_path_factory.mktemp("bad audio") / "it's asr")
    yield recipe
    os.chdir(here)
    os.environ.clear()
    os.environ.update(before)
    sys.path[:] = path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(recipe.folder)):
            del sys.modules[name]


def assert_each_is_told(failures: list[str], names) -> None:
    assert len(failures) == len(names)
    for name in names:
        told = [error for error in failures if f"/{name} " in error]
        assert len(told) == 1, (name, failures)
        assert f"wav.scp:{NAMES.index(name) + 1} ({name})" in told[0]
        assert UNREADABLE.get(name, (None, ""))[1] in told[0]


def test_inference_finishes_what_can_be_read_and_lists_the_rest(recipe):
    told = recipe.infer()
    found = recipe.hypotheses("test")
    assert found.keys() == {*GOOD, *OF_ANOTHER_FORM}
    seconds = {"without_samples.wav": 0, "one_sample.wav": 1 / 16000, "short.wav": 0.05}
    for name, text in found.items():
        assert text == f"{len(tone(seconds.get(name, 0.5)))} 1", name
    assert_each_is_told(recipe.failures("test"), [*UNREADABLE, "folder.wav"])
    assert f"Failed items: {len(UNREADABLE) + 1};" in told


def test_by_default_another_form_is_refused_item_by_item(recipe):
    form = "dataset.test.0.data_src_args.{}"
    recipe.infer("exp_tag=strict", form.format("resample=false"), form.format("channel=only"))
    assert recipe.hypotheses("strict").keys() == GOOD.keys()
    failures = recipe.failures("strict")
    assert_each_is_told(failures, [*OF_ANOTHER_FORM, *UNREADABLE, "folder.wav"])
    advice = {"stereo.wav": "channel: mix", "44100.wav": "resample: true"}
    for name, line in advice.items():
        assert any(name in error and line in error for error in failures)


def test_without_skip_nothing_is_decoded_and_a_bad_file_is_named(recipe):
    told = recipe.infer("exp_tag=raise", "runner.on_error=raise", code=1)
    assert "durations of" in told
    assert "wav/empty.wav is empty" in told


def test_training_goes_on_without_what_cannot_be_read(recipe):
    told = recipe.train()
    left_out = [line for line in told.splitlines() if "left out item" in line]
    for name in [*UNREADABLE, "folder.wav"]:
        assert any(f"/{name} " in line for line in left_out), (name, told)
    assert not any(f"/{name} " in line for line in left_out for name in (*GOOD, *OF_ANOTHER_FORM))
    assert (recipe.folder / "exp/train/last.ckpt").is_file()


def test_training_without_skip_names_the_file_before_the_first_step(recipe):
    told = recipe.train("dataloader.train.on_error=raise", "exp_tag=raise", code=1)
    assert "wav/empty.wav is empty" in told
    assert not (recipe.folder / "exp/raise/last.ckpt").exists()


@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_recogniser_survives_whatever_can_be_read(recipe, encoder):
    folder = recipe.folder / encoder
    _write_experiment(folder, encoder)
    recipe.infer(
        f"exp_tag={encoder}_asr", "model._target_=espnet3.systems.asr.inference.Speech2Text",
        f"model.weights={encoder}/w.safetensors", "output_keys=[hyp, ref]",
        "output_fn=espnet3.systems.asr.inference.output_fn",
    )  # fmt: skip
    found = recipe.hypotheses(f"{encoder}_asr")
    # Without a sample there is nothing to recognise, which is told; one sample is enough.
    assert found.keys() == {*GOOD, *OF_ANOTHER_FORM} - {"without_samples.wav"}
    failures = recipe.failures(f"{encoder}_asr")
    assert_each_is_told(
        [error for error in failures if "without_samples" not in error],
        [*UNREADABLE, "folder.wav"],
    )
    assert [e for e in failures if "without_samples" in e] == [
        "without_samples.wav: The speech has no samples. Leave it out, or make it again."
    ]


def _write_experiment(folder: Path, encoder: str) -> None:
    """Write a recogniser of random weights as a training would leave it."""
    import torch
    from omegaconf import OmegaConf
    from safetensors.torch import save_file

    from espnet3.components.text.tokenizer import CharacterTokenizer
    from espnet3.config.instantiate import instantiate

    tokens = ("<blank>", "<unk>", "<space>", *"ehlo", "<sos/eos>")
    CharacterTokenizer(tokens).save(folder / "tokenizer")
    config = {
        **RECOGNISER,
        "tokenizer": str(folder / "tokenizer"),
        "encoder": {**ENCODERS[encoder], "input_size": 20, "subsampling": 4},
    }
    torch.manual_seed(0)
    model = instantiate(OmegaConf.create(config), key="model")
    save_file(model.state_dict(), folder / "w.safetensors")
    OmegaConf.save(OmegaConf.create({"model": config}), folder / "config.yaml")
