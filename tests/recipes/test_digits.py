"""The default recipe as its users run it: made, killed anywhere, resumed, and scored."""

import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from espnet3.components.data.data_organizer import DataSource
from espnet3.io.tables import read_jsonl

pytest.importorskip("espeakng_loader", reason="needs pip install -e '.[demo]'")
pytestmark = pytest.mark.timeout(600)  # it starts a dozen runs; a minute in all on two free cores

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "egs3" / "digits" / "asr"
STAGES = ["create_dataset", "train_tokenizer", "train", "average", "infer", "measure", "report"]
# What a tiny network hears is mostly nothing; its scores tell one from another.
DECODING = ("batch_seconds=6", "output_keys=[hyp,ref,speaker,accent,score]")
CONFIGS = ["--inference_config", "conf/inference.yaml", "--metrics_config", "conf/metrics.yaml"]
TINY = """
create_dataset: {n_train: 24, n_valid: 6, n_test: 8}
model: {encoder: {n_channels: 16, n_layers: 1}}
dataloader: {train: {num_workers: 0}}
trainer: {max_epochs: 3}
"""


class Recipe:
    """A copy of the recipe, run with a file of settings after its own."""

    def __init__(self, folder: Path, settings: str, *overrides: str) -> None:
        self.folder = folder
        self.overrides = overrides
        shutil.copytree(RECIPE, folder, ignore=shutil.ignore_patterns("data", "exp", "__pycache__"))
        (folder / "conf/more.yaml").write_text(settings)

    def start(self, *more: str) -> "subprocess.Popen[str]":
        """Run all stages, in a process group of its own."""
        training = ["--training_config", "conf/training.yaml", "conf/more.yaml"]
        command = ["run.py", "--stages", *STAGES, *training, *CONFIGS, *self.overrides, *more]
        return subprocess.Popen(
            [sys.executable, *command], cwd=self.folder, stderr=subprocess.STDOUT,
            stdout=subprocess.PIPE, text=True, start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    def run(self, *more: str, seconds: float = 500) -> str:
        """Return what the run told, which must succeed."""
        process = self.start(*more)
        told, _ = process.communicate(timeout=seconds)
        assert process.returncode == 0, told
        return told

    def kill_in(self, stage: str, delay: float) -> bool:
        """Kill all of a run some seconds after a stage began; tell whether it still ran."""
        process = self.start()
        assert process.stdout is not None
        for line in process.stdout:
            if f"Stage {stage} " in line:
                break
        # What is told meanwhile must be read, or the run would wait for that.
        reader = threading.Thread(target=process.stdout.read, daemon=True)
        reader.start()
        time.sleep(delay)
        was_running = process.poll() is None
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)
        reader.join(60)
        process.stdout.close()
        return was_running

    def corpus(self) -> dict[str, str]:
        return _digests(self.folder / "data/digits")

    def results(self) -> dict[str, object]:
        """Return all that must not depend on workers and interruptions."""
        exp = self.folder / "exp/training"
        texts = ("hyp.scp", "ref.scp", "score.scp", "WER.jsonl", "CER.txt", "WER.by_speaker.tsv")
        return {
            "corpus": self.corpus(),
            "tokenizer": _digests(exp / "tokenizer"),
            "weights": _digest(exp / "valid.loss.ave_3best.safetensors"),
            "validations": _validations(exp / "history.jsonl"),
            "texts": {
                f"{name}/{file}": _digest(exp / "inference" / name / file)
                for name in ("test_seen", "test_unseen")
                for file in texts
            },
            "rates": self.rates(),
        }

    def rates(self) -> dict[str, float]:
        metrics = json.loads((self.folder / "exp/training/inference/metrics.json").read_text())
        return {
            f"{metric} {name}": metrics[metric][name]["rate"]
            for metric in ("WER", "CER")
            for name in ("test_seen", "test_unseen")
        }


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _digests(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): _digest(path) for path in files}


def _validations(history: Path) -> list[dict[str, object]]:
    """Return what was logged of the model at each validation; the rest is about time."""
    found = []
    for entry in read_jsonl(history):
        values = {k: v for k, v in entry["values"].items() if k.startswith("valid/")}
        if values:
            found.append({"step": entry["step"], "epoch": entry["epoch"], **values})
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The recipe run once, with one worker, and what that told."""
    recipe = Recipe(tmp_path_factory.mktemp("one") / "it's my recipe", TINY, *DECODING)
    return recipe, recipe.run("parallel.n_workers=1")


def test_all_stages_run_and_a_report_is_written(undisturbed):
    recipe, told = undisturbed
    assert all(f"Stage {stage} " in told for stage in STAGES)
    assert re.search(r"WER +test_unseen +8 utterances", told), told
    page = (recipe.folder / "exp/training/inference/report.html").read_text()
    assert "test_unseen" in page


def test_run_again_it_says_for_each_stage_what_is_there_already(undisturbed):
    recipe, _ = undisturbed
    before = recipe.results()
    begin = time.monotonic()
    told = recipe.run("parallel.n_workers=1")
    print(f"{time.monotonic() - begin:.1f} s")
    table = {line.split()[0]: line for line in told.splitlines() if re.match(r"\w+ \(\d", line)}
    assert "all is there already" in told
    assert "skipped" in table["create_dataset"]
    assert "skipped" in table["train_tokenizer"]
    assert "skipped" in table["train"], table["train"]
    for name in ("test_seen", "test_unseen"):
        assert f"exp/training/inference/{name} is complete already" in told
    assert recipe.results() == before


def test_two_workers_make_the_same_corpus_and_hypotheses(undisturbed, tmp_path):
    recipe = Recipe(tmp_path / "two", TINY, *DECODING)
    recipe.run("parallel.n_workers=2")
    assert recipe.results() == undisturbed[0].results()


@pytest.mark.timeout(600)  # a run of the recipe for each stage
def test_killed_in_every_stage_it_ends_with_the_same_results(undisturbed, tmp_path):
    recipe = Recipe(tmp_path / "killed", TINY, "parallel.n_workers=2", *DECODING)
    chance = random.Random(0)
    seconds = {"create_dataset": 1.0, "train": 2.0, "infer": 2.0}
    n_killed = 0
    for stage in STAGES:
        n_killed += recipe.kill_in(stage, chance.uniform(0, seconds.get(stage, 0.1)))
    assert n_killed >= len(STAGES) - 2  # a stage may end before the signal comes
    recipe.run()
    assert recipe.results() == undisturbed[0].results()


def test_sets_share_no_long_strings_and_held_out_voices_are_not_trained():
    builder = DataSource(recipe_dir=RECIPE).load("DatasetBuilder")
    rows = sys.modules[builder.__module__]._corpus("unused", 1200, 200, 300).rows
    sets = {name: [row for row in rows if row["set"] == name] for name in _sets(rows)}
    trained = {row["text"] for row in sets["train"]}
    assert len(trained) > 800
    for name in ("valid", "test_seen", "test_unseen"):
        long = {row["text"] for row in sets[name] if len(row["text"].split()) >= 3}
        assert long
        assert not long & trained
    voices = {name: {row["speaker"] for row in own} for name, own in sets.items()}
    assert voices["train"] == voices["test_seen"]
    assert not voices["train"] & voices["test_unseen"]


def _sets(rows):
    return dict.fromkeys(row["set"] for row in rows)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_recipe_reaches_its_error_rates(tmp_path):
    recipe = Recipe(tmp_path / "digits", "seed: 0\n")
    begin = time.monotonic()
    recipe.run(seconds=1700)
    print(f"{time.monotonic() - begin:.0f} s: {recipe.rates()}")
    assert recipe.rates()["WER test_seen"] <= 3
    assert recipe.rates()["WER test_unseen"] <= 6
