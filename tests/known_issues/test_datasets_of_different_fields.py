"""Datasets with different fields are not combined without a word."""

import json
import re

import numpy as np
import pytest
import soundfile

from espnet3.systems.base import datasets
from tests.helpers.shipped_recipes import ShippedRecipe

NETWORK = """
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, speech, speech_lengths, **others):
        loss = (self.scale * speech.mean()).abs()
        return loss, {"loss": loss.detach()}, len(speech)


def collate(samples):
    speech = torch.stack([torch.as_tensor(sample["speech"]) for sample in samples])
    return {"speech": speech, "speech_lengths": torch.full([len(samples)], 800)}


def same(sample):
    return {"utt_id": sample["utt_id"], "speech": sample["speech"], "text": sample.get("text", "")}


def needs_text(sample):
    return {**sample, "n_words": len(sample["text"].split())}
"""
TRAINING = """
dataset:
  train:
    - {data_src: jsonl, data_src_args: {path: data/a.jsonl}}
    - {data_src: jsonl, data_src_args: {path: data/b.jsonl}}
  valid:
    - {data_src: jsonl, data_src_args: {path: data/a.jsonl}}
dataloader: {train: {batch_size: 2}}
model: {_target_: src.net.Model}
optimizer: {_target_: torch.optim.SGD, lr: 0.1}
trainer: {accelerator: cpu, max_steps: 2, enable_progress_bar: false}
"""
TRAIN = ("--stages", "train", "--training_config", "conf/mixed.yaml")


@pytest.fixture
def recipe(tmp_path):
    datasets._warn.cache_clear()
    recipe = ShippedRecipe("TEMPLATE/asr", tmp_path / "asr")
    recipe.add("src/net.py", NETWORK)
    recipe.add("conf/mixed.yaml", TRAINING)
    for name, extra in (("a", {"text": "one two"}), ("b", {})):
        rows = []
        for i in range(4):
            soundfile.write(recipe.folder / f"data/{name}{i}.wav", np.zeros(800), 8000)
            rows.append({"utt_id": f"{name}{i}", "audio": f"{name}{i}.wav", **extra})
        text = "".join(f"{json.dumps(row)}\n" for row in rows)
        (recipe.folder / f"data/{name}.jsonl").write_text(text)
    return recipe


def test_what_no_batch_can_be_made_of_is_refused_before_anything_starts(recipe, capfd):
    recipe.run_here(recipe.system, *TRAIN, code=1)
    told = capfd.readouterr().err
    assert "dataset.train.0 (set in conf/mixed.yaml:4) has text" in told
    assert "dataset.train.1 (set in conf/mixed.yaml:5) has not" in told
    assert not (recipe.folder / "exp").exists()
    line = re.search(r"'(dataloader\.collate_fn=.*)'", told)[1]
    recipe.run_here(recipe.system, *TRAIN, line)
    assert (recipe.folder / "exp/mixed/last.ckpt").exists()


@pytest.mark.parametrize(
    "words",
    [["dataloader.collate_fn=src.net.collate"], ["dataloader.train.batch_size=1"]],
    ids=["a function of one's own", "samples alone"],
)
def test_where_a_batch_may_be_made_it_is_told_once(recipe, caplog, words):
    recipe.run_here(recipe.system, *TRAIN, *words)
    assert caplog.text.count("have different fields") == 1
    assert "dataset.train.1 (set in conf/mixed.yaml:5) has not" in caplog.text


def test_what_a_transform_makes_alike_is_no_difference(recipe, caplog):
    recipe.run_here(recipe.system, *TRAIN, "dataset.preprocessor=src.net.same")
    assert "different fields" not in caplog.text


def test_a_transform_that_misses_a_field_is_told(recipe, caplog):
    """As the tokens of a recogniser, of texts that one dataset does not have."""
    words = ("dataset.preprocessor=src.net.needs_text", "--dry-run")
    recipe.run_here(recipe.system, *TRAIN, *words)
    assert "dataset.train.1 (set in conf/mixed.yaml:5) has not. A sample cannot be" in caplog.text


def test_the_statistics_tell_it_as_well(recipe, caplog):
    words = ("--stages", "collect_stats", *TRAIN[2:], "--dry-run")
    recipe.run_here(recipe.system, *words)
    assert "have different fields" in caplog.text
