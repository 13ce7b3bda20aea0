"""The recipe of commands: its grammar, its corpus, and a hybrid with a language model."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from espnet3.components.data.data_organizer import DataSource
from espnet3.io.scp import load_scp

pytest.importorskip("espeakng_loader", reason="needs pip install -e '.[demo]'")

RECIPE = Path(__file__).parents[2] / "egs3" / "commands" / "asr"


@pytest.fixture(scope="module")
def builder():
    return sys.modules[DataSource(recipe_dir=RECIPE).load("DatasetBuilder").__module__]


def test_the_grammar_has_69_words_and_no_sign_of_its_own_syntax(builder):
    texts = [builder.draw_command(Random(seed)) for seed in range(20_000)]
    words = {word for text in texts for word in text.split()}
    assert len(words) == 69
    assert all(re.fullmatch("[a-z]+( [a-z]+)*", text) for text in texts)
    assert len(set(texts)) > 3000


def test_a_command_is_spoken_at_eight_kilohertz_and_at_the_loudness_of_its_row(builder):
    row = builder._plan("train", 7)
    loud = {**row, "spoken": {**row["spoken"], "gain_db": 0.0}}
    speech, reference = builder.make_audio(row), builder.make_audio(loud)
    assert 0.5 < len(speech) / 8000 < 6
    gain = row["spoken"]["gain_db"]
    assert abs(speech).max() / abs(reference).max() == pytest.approx(10 ** (gain / 20), rel=1e-3)


def test_every_set_has_every_voice_and_the_held_out_ones_are_not_trained(builder):
    rows = builder._corpus("unused", 2400, 200, 300).rows
    voices = {
        name: {row["speaker"] for row in rows if row["set"] == name} for name in builder.VOICES
    }
    assert voices["train"] == set(builder.SEEN)
    assert voices["test_unseen"] == set(builder.HELD_OUT)
    assert not voices["train"] & voices["test_unseen"]


TINY = """
create_dataset: {n_train: 24, n_valid: 6, n_test: 6}
model: {encoder: {n_channels: 16, n_layers: 1}, decoder: {n_layers: 1, n_heads: 2, hidden: 16}}
dataloader: {train: {num_workers: 0}}
trainer: {max_epochs: 1}
"""


@pytest.mark.exhaustive  # as in test_digits.py, with another model
@pytest.mark.timeout(600)
def test_a_hybrid_with_a_language_model_goes_from_the_corpus_to_a_number(tmp_path):
    recipe = tmp_path / "commands"
    ignored = shutil.ignore_patterns("data", "exp", "__pycache__")
    shutil.copytree(RECIPE, recipe, ignore=ignored)
    (recipe / "conf/tiny.yaml").write_text(TINY)
    training = ["--training_config", "conf/training_hybrid.yaml", "conf/tiny.yaml"]
    metrics = ["--metrics_config", "conf/metrics.yaml"]
    _run(recipe, "create_dataset", "train_tokenizer", "train", *training)
    _run(recipe, "train", "--training_config", "conf/training_lm.yaml", "trainer.max_epochs=1")
    for name in ("inference_joint", "inference_beam"):
        inference = ["--inference_config", f"conf/{name}.yaml", "parallel.n_workers=1"]
        told = _run(recipe, "infer", "measure", *training, *inference, *metrics)
        assert re.search(r"WER +test_unseen +6 utterances", told), told
    beam = recipe / "exp/training_hybrid/inference_beam/test_seen"
    assert [len(json.loads(line)) for line in load_scp(beam / "nbest.scp").values()] == [5] * 6


def _run(recipe: Path, *words: str) -> str:
    run = subprocess.run(
        [sys.executable, "run.py", "--stages", *words],
        cwd=recipe, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return run.stderr + run.stdout
