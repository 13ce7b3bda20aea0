"""A recipe with a tokenizer and a language model, run as `python run.py`."""

import os
import signal
import time

import pytest

from espnet3.components.text.tokenizer import load_tokenizer
from tests.helpers.training_recipe import RUN, TrainingRecipe

DATASET = """\
import time


class Dataset:
    def __init__(self, n=400, seconds=0.0):
        self.n, self.seconds = n, seconds

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return {"utt_id": f"utt{index}", "text": f"number {index * 7919 % 1000} of {self.n}"}
"""
MODEL = """\
import torch
from espnet3.components.text.tokenizer import load_tokenizer


class Bigrams(torch.nn.Module):
    def __init__(self, tokenizer):
        super().__init__()
        n_tokens = len(load_tokenizer(tokenizer).tokens)
        self.scores = torch.nn.Embedding(n_tokens, n_tokens)

    def forward(self, tokens, tokens_lengths):
        assert tokens.dtype == torch.int64
        n_steps = tokens_lengths - 1
        is_text = torch.arange(tokens.shape[1] - 1)[None] < n_steps[:, None]
        logits = self.scores(tokens[:, :-1].clamp(min=0))[is_text]
        loss = torch.nn.functional.cross_entropy(logits, tokens[:, 1:][is_text])
        return loss, {"loss": loss.detach(), "padding": 1 - is_text.float().mean()}, len(tokens)
"""
TRAINING = """\
exp_tag: tones
tokenizer: {model_type: bpe, vocab_size: 40, save_path: "${data_dir}/tokenizer"}
dataset:
  train: [{data_src_args: {n: 400}}]
  preprocessor:
    _target_: espnet3.systems.asr.preprocessor.Tokenize
    tokenizer: ${tokenizer.save_path}
"""
LANGUAGE_MODEL = """\
exp_tag: tones
tokenizer: {model_type: bpe, vocab_size: 40, save_path: "${data_dir}/tokenizer"}
dataset:
  train: [{data_src: text, data_src_args: {path: texts.txt}}]
  valid: [{data_src: text, data_src_args: {path: texts.txt}}]
  preprocessor:
    _target_: espnet3.systems.asr.preprocessor.Tokenize
    tokenizer: ${tokenizer.save_path}
dataloader: {train: {batch_size: 16, max_padding: 0.2}}
model: {_target_: src.model.Bigrams, tokenizer: "${tokenizer.save_path}"}
optimizer: {_target_: torch.optim.Adam, lr: 0.1}
trainer: {accelerator: cpu, devices: 1, max_epochs: 3, enable_progress_bar: false}
"""


@pytest.fixture
def recipe(awkward):
    made = TrainingRecipe(awkward)
    (awkward / "run.py").write_text(
        RUN.replace("base.system import BaseSystem", "asr.system import ASRSystem").replace(
            "BaseSystem", "ASRSystem"
        )
    )
    (awkward / "dataset/dataset.py").write_text(DATASET)
    (awkward / "src/model.py").write_text(MODEL)
    (awkward / "conf/training.yaml").write_text(TRAINING)
    return made


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def done_in(folder):
    return {path.parent.name: path.stat().st_mtime_ns for path in folder.glob("split.*/done")}


def test_killed_and_resumed_it_is_the_same_tokenizer_to_the_byte(recipe):
    tokenizer, texts = recipe.folder / "data/tokenizer", recipe.folder / "data/tokenizer_texts"
    stage = ("--stages", "train_tokenizer", "parallel.n_workers=2", "parallel.shards_per_worker=4")
    process = recipe.start(*stage, "dataset.train.0.data_src_args.seconds=0.02")
    deadline = time.monotonic() + 60
    while not any(texts.glob("split.*/done")) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not tokenizer.exists()
    kept = done_in(texts)
    assert kept
    output = recipe.run(*stage, "dataset.train.0.data_src_args.seconds=0.02")
    assert "40 tokens (bpe) from 400 texts" in output
    assert kept.items() <= done_in(texts).items()
    again = recipe.run(*stage, "dataset.train.0.data_src_args.seconds=0.02")
    assert "made from the same 400 texts" in again
    alone = recipe.folder / "alone"
    recipe.run("--stages", "train_tokenizer", f"tokenizer.save_path={alone.name}")
    assert files_of(alone) == files_of(tokenizer)


def test_a_language_model_trains_on_texts_alone(recipe):
    lines = [f"{'well ' * (i % 9)}number {i}" for i in range(200)]
    (recipe.folder / "texts.txt").write_text("\n".join(lines))
    (recipe.folder / "conf/training.yaml").write_text(LANGUAGE_MODEL)
    recipe.run("--stages", "train_tokenizer", "train")
    assert len(load_tokenizer(recipe.folder / "data/tokenizer").tokens) == 40
    history = (recipe.exp_dir / "history.jsonl").read_text()
    assert "valid/loss" in history
    output = recipe.run("--stages", "train_tokenizer", "tokenizer.vocab_size=42", code=1)
    assert "was trained with it as it is" in output
