"""The Moonshine recipe as its users run it: stages in processes of their own, on real speech."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from espnet3.components.data.data_organizer import DataSource
from tests.helpers.waiting import wait_until

pytest.importorskip("onnxruntime", reason="needs pip install -e '.[moonshine]'")

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "egs3" / "moonshine" / "asr"
LIBRISPEECH = ROOT.parent / "shared" / "data" / "librispeech_sample"

pytestmark = [
    # Patient: the model takes seconds of CPU for each utterance.
    pytest.mark.timeout(360),
    pytest.mark.skipif(
        not DataSource(recipe_dir=RECIPE).load("DatasetBuilder")().is_source_prepared(),
        reason="needs pip install -e '.[moonshine]'",
    ),
]


class Recipe:
    """A copy of the recipe, with speech to decode."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(RECIPE, folder, ignore=shutil.ignore_patterns("data", "exp", "__pycache__"))
        # In a file, of which each stage reads what it needs.
        (folder / "conf" / "two.yaml").write_text("batch_size: 2\n")
        self.test_set, more = "two_cities", ["conf/two.yaml"]
        if LIBRISPEECH.is_dir():
            _link_utterances(folder / "corpus")
            self.test_set, more = "librispeech", ["conf/librispeech.yaml", "dataset_dir=corpus"]
        inference = ["--inference_config", "conf/inference.yaml", *more]
        self.options = [*inference, "--metrics_config", "conf/metrics.yaml"]
        self.run("create_dataset", *inference)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Run `python run.py --stages WORDS...` from another folder."""
        command = [sys.executable, str(self.folder / "run.py"), "--stages", *words]
        return subprocess.Popen(
            command, cwd=self.folder.parent, stderr=subprocess.STDOUT, stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    def run(self, *words: str) -> str:
        """Return what the run told, which must succeed."""
        process = self.start(*words)
        told, _ = process.communicate(timeout=300)
        assert process.returncode == 0, told
        return told

    def decode(self, tag: str, n_workers: int) -> str:
        return self.run(*self.words(tag, n_workers))

    def words(self, tag: str, n_workers: int) -> list[str]:
        workers = f"parallel.n_workers={n_workers}"
        return ["infer", "measure", *self.options, f"exp_tag={tag}", workers]

    def results(self, tag: str) -> Path:
        return self.folder / "exp" / tag / "inference" / self.test_set

    def hypotheses(self, tag: str) -> bytes:
        return (self.results(tag) / "hyp.scp").read_bytes()

    def done_shards(self, tag: str) -> dict[Path, int]:
        """Return the committed shards, not those of attempts, and when they were finished."""
        files = self.results(tag).glob("split.*/done")
        committed = [file for file in files if "part" not in file.parent.name]
        return {file: file.stat().st_mtime_ns for file in committed}


def _link_utterances(folder: Path) -> None:
    """Make a corpus of 28 utterances."""
    for file in sorted(LIBRISPEECH.rglob("*.trans.txt")):
        lines = file.read_text().splitlines(keepends=True)[:45:3]
        chapter = folder / file.parent.parent.name / file.parent.name
        chapter.mkdir(parents=True)
        (chapter / file.name).write_text("".join(lines))
        for line in lines:
            flac = file.with_name(f"{line.split()[0]}.flac")
            (chapter / flac.name).symlink_to(flac)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return Recipe(tmp_path_factory.mktemp("moonshine") / 'it\'s "my" recipe')


@pytest.fixture(scope="module")
def one_worker(recipe):
    """Decode and measure in one process, and return what that told."""
    return recipe.decode("one", n_workers=1)


def test_real_speech_is_decoded_and_measured(recipe, one_worker):
    told = re.search(r"WER +(\w+) .*? Err ([\d.]+) .*RTF ([\d.]+)", one_worker)
    assert told, one_worker
    print(told[0])
    metrics = json.loads((recipe.results("one").parent / "metrics.json").read_text())
    assert float(told[2]) == pytest.approx(metrics["WER"][told[1]]["rate"], abs=0.01)
    assert float(told[2]) < 8
    assert float(told[3]) < 1


@pytest.mark.exhaustive  # as in test_digits.py, with a model that loads for seconds
def test_two_workers_write_the_same_bytes(recipe, one_worker):
    recipe.decode("two", n_workers=2)
    assert recipe.hypotheses("two") == recipe.hypotheses("one")


@pytest.mark.exhaustive  # as in test_digits.py, with a model that loads for seconds
def test_a_run_killed_in_the_middle_goes_on_to_the_same_bytes(recipe, one_worker):
    process = recipe.start(*recipe.words("killed", n_workers=2))
    wait_until(lambda: recipe.done_shards("killed") or process.poll() is not None, seconds=60)
    process.kill()
    process.communicate(timeout=60)
    done = recipe.done_shards("killed")
    assert done
    assert not (recipe.results("killed") / "hyp.scp").exists()
    recipe.decode("killed", n_workers=1)
    assert done.items() <= recipe.done_shards("killed").items()
    assert recipe.hypotheses("killed") == recipe.hypotheses("one")


def test_another_setting_of_the_model_is_refused_and_named(recipe, one_worker):
    words = [*recipe.words("one", n_workers=1), "model.max_tokens_per_second=5"]
    process = recipe.start(*words)
    told, _ = process.communicate(timeout=300)
    assert process.returncode == 1, told
    assert "model.max_tokens_per_second: 6.5 -> 5" in told


def test_one_command_makes_the_data_decodes_and_measures(recipe):
    files = ["--config", "conf/inference.yaml", "conf/metrics.yaml"]
    told = recipe.run("create_dataset", "infer", "measure", *files, "exp_tag=all")
    assert re.search(r"WER +two_cities +10 utterances +119 words", told), told
    assert (recipe.folder / "exp" / "all" / "inference" / "RESULTS.md").is_file()
