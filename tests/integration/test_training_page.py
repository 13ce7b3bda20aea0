"""The recipe that docs/training.md shows, file by file, trains as it says."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from espnet3.trainer.reporting.history import read_history
from tests.helpers.training_recipe import RUN

PAGE = Path(__file__).parents[2] / "docs" / "training.md"
NAMED = re.compile(r"```(?:yaml|python)\n# (\S+\.(?:yaml|py))\n(.*?)```", re.DOTALL)
SMALL = ("model.hidden=8", "trainer.max_epochs=1", "trainer.accelerator=cpu")


def write_corpus(folder: Path, n_utterances: int) -> None:
    """Write noise with texts as a Kaldi directory."""
    random = np.random.default_rng(len(folder.name))
    (folder / "wav").mkdir(parents=True)
    lines = {"wav.scp": [], "text": []}
    for number in range(n_utterances):
        utt_id, path = f"{folder.name}-{number:02}", folder / "wav" / f"{number}.wav"
        soundfile.write(path, random.normal(scale=0.1, size=16000 + 800 * number), 16000)
        lines["wav.scp"].append(f"{utt_id} {path}\n")
        lines["text"].append(f"{utt_id} it's {'abc'[number % 3]}\n")
    for name, rows in lines.items():
        (folder / name).write_text("".join(rows))


def run(recipe: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=recipe, text=True, timeout=150,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, "COLUMNS": "200", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> Path:
    """Return the recipe of the page, with a corpus of noise and its shards."""
    folder = tmp_path_factory.mktemp("page") / "it's a corpus" / "asr"
    files = {"run.py": RUN, "src/__init__.py": "", **dict(NAMED.findall(PAGE.read_text()))}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    write_corpus(folder / "data" / "train", 12)
    write_corpus(folder / "data" / "valid", 4)
    run(folder, "make_shards.py")
    return folder


def test_the_page_has_the_files_that_it_speaks_of(recipe):
    for name in ("conf/training.yaml", "conf/gan.yaml", "conf/finetune.yaml", "src/model.py"):
        assert (recipe / name).is_file()
    assert len(list((recipe / "data" / "parquet").glob("*.parquet"))) == 3
    assert len(list((recipe / "data" / "shards").glob("*.tar"))) == 1


@pytest.fixture(scope="module")
def output_of_training(recipe) -> str:
    return run(
        recipe, "run.py", "--stages", "collect_stats-average",
        "--training_config", "conf/training.yaml", *SMALL,
    )  # fmt: skip


def test_statistics_training_and_average_of_the_complete_config(recipe, output_of_training):
    assert "Trained 2 steps" in output_of_training  # three batches, two of which are one step
    exp = recipe / "exp"
    speed = next(e.values for e in read_history(exp / "training") if "train/loss" in e.values)
    # Twelve utterances from files, and as many in shards, which come twice.
    per_batch = speed["perf/samples_per_second"] * speed["perf/step_seconds"]
    assert round(3 * per_batch) == 12 + 2 * 12
    assert np.load(exp / "stats" / "train" / "feats_stats.npz")["mean"].shape == (257,)
    averaged = exp / "training" / "valid.loss.ave_3best.json"
    assert json.loads(averaged.read_text())["n_averaged"] == 1
    for name in ("last.ckpt", "curves.png", "best.json", "valid.active.ave_1best.safetensors"):
        assert (exp / "training" / name).is_file()
    logged = (exp / "training" / "history.jsonl").read_text()
    for name in ("valid/active", "lr/optimizer", "grad_norm/optimizer", "perf/data_wait_share"):
        assert f'"{name}"' in logged


@pytest.mark.usefixtures("output_of_training")
def test_fine_tuning_leaves_out_what_the_config_says(recipe):
    output = run(
        recipe, "run.py", "--stages", "train",
        "--training_config", "conf/frozen.yaml", "conf/callbacks.yaml", *SMALL,
    )  # fmt: skip
    assert re.search(r"Weights from \S+ave_3best.safetensors: \d+ of \d+ loaded", output)
    assert "2 excluded: output" in output
    assert "Frozen: encoder (in eval mode)" in output
    for name in ("last.ckpt", "csv", "tensorboard"):
        assert (recipe / "exp" / "frozen" / name).exists()


def test_the_gan_updates_its_generator_half_as_often(recipe):
    output = run(
        recipe, "run.py", "--stages", "train", "--training_config", "conf/gan.yaml",
        "trainer.max_epochs=2", "trainer.accelerator=cpu",
    )  # fmt: skip
    assert "Trained 6 steps" in output
    states = torch.load(recipe / "exp" / "gan" / "last.ckpt", weights_only=True)["optimizer_states"]
    assert [int(state["state"][0]["step"]) for state in states] == [6, 3]
    logged = (recipe / "exp" / "gan" / "history.jsonl").read_text()
    for name in ("train/generator/loss", "valid/discriminator/loss", "grad_norm/generator"):
        assert f'"{name}"' in logged


def test_plain_pytorch_trains_as_printed(recipe):
    output = run(recipe, "plain.py")
    assert "exp/plain/valid.accuracy.ave_1best.safetensors" in output
    assert (recipe / "exp" / "plain" / "training.json").is_file()
