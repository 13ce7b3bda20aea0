"""Constants and decorated helpers of a recipe's `src/` went unnoticed, also those of output_fn."""

import shutil
import sys

import pytest

from espnet3.config.load import load_config
from espnet3.errors import StaleRunError
from espnet3.systems.base.inference import infer
from espnet3.systems.base.training_fingerprint import describe_targets
from tests.helpers.exhaustive import few

CONFIG = """
dataset:
  test: [{name: digits, data_src: tests.helpers.inference_parts, data_src_args: {n: 3}}]
model: {_target_: own_src.model.Shouter}
output_fn: own_src.output.finish
"""
MODEL = """
import functools
import numpy as np
from tests.helpers.inference_parts import Speller

GAINS = np.array([1.0, 2.0])

@functools.lru_cache
def mark(n):
    return "!" * n

class Shouter(Speller):
    def __call__(self, speech):
        return super().__call__(speech) + mark(1) + str(GAINS[0])
"""
OUTPUT = """
import re
from types import SimpleNamespace
from .words import WORDS

PATTERN = re.compile("[0-9]+")
STYLE = SimpleNamespace(end="")

def finish(data, model_output, idx):
    return {"hyp": PATTERN.sub("", model_output) + WORDS.get(idx, "") + STYLE.end}
"""
WORDS = "WORDS = {i: '' for i in range(5000)}\n"


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """Return a recipe, and a function that decodes with what its files say now."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    folder = tmp_path / "a recipe"
    (folder / "own_src").mkdir(parents=True)
    (folder / "inference.yaml").write_text(CONFIG)
    texts = {"__init__": "", "model": MODEL, "output": OUTPUT, "words": WORDS}
    for name, text in texts.items():
        (folder / "own_src" / f"{name}.py").write_text(text)

    def run(*overrides, folder=folder):
        _forget()
        with monkeypatch.context() as patch:
            patch.syspath_prepend(folder)
            below = {"recipe_dir": str(folder), "inference_dir": str(folder / "out")}
            return infer(load_config(folder / "inference.yaml", overrides, below=below))

    yield folder, run
    _forget()


def _forget():
    for name in [name for name in sys.modules if name.partition(".")[0] == "own_src"]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("file", "old", "new", "key"),
    few(
        [
            ("model", "2.0", "3.0", "model.GAINS"),
            ("model", '"!" * n', '"?" * n', "model.mark"),
            ("output", "[0-9]+", "[0-8]+", "output.PATTERN"),
            ("output", 'end=""', 'end="."', "output.STYLE"),
            ("words", "5000", "5001", "words.WORDS"),
        ],
        2,
    ),
)
def test_a_change_is_refused_by_its_name_and_can_be_accepted(recipe, file, old, new, key):
    folder, run = recipe
    first = run()
    path = folder / "own_src" / f"{file}.py"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(StaleRunError, match=rf"\n  code\.own_src\.{key}: the (code|value) changed"):
        run()
    for accepted in (f"code.own_src.{key}", "code.own_src", "code"):
        assert run(f"runner.accept_changes=[{accepted}]") == first


def test_the_code_of_a_recipe_that_moved_is_the_same(recipe, tmp_path):
    folder, run = recipe
    model = folder / "own_src" / "model.py"
    model.write_text(
        model.read_text() + "\nfrom pathlib import Path\nHERE = Path(__file__).parent\n"
    )
    run()
    results = (folder / "out" / "digits" / "hyp.scp").read_bytes()
    moved = tmp_path / "elsewhere"
    shutil.move(folder, moved)
    run("runner.accept_changes=[config.recipe_dir]", folder=moved)
    assert (moved / "out" / "digits" / "hyp.scp").read_bytes() == results


def test_a_training_config_names_its_code_by_other_blocks(recipe, monkeypatch):
    folder, _ = recipe
    monkeypatch.syspath_prepend(folder)
    _forget()
    config = {
        "model": {"_target_": "own_src.model.Shouter"},
        "dataloader": {"collate_fn": "own_src.output.finish"},
    }
    found = describe_targets(config, [], blocks=("model", "dataloader.collate_fn"))
    assert {"own_src.model.mark", "own_src.output.finish", "own_src.words.WORDS"} <= found.keys()
    assert "own_src.output.finish" not in describe_targets(config, [], blocks=("model",))


def test_others_count_as_well(recipe, monkeypatch):
    folder, _ = recipe
    monkeypatch.syspath_prepend(folder)
    _forget()
    from own_src.output import finish

    assert "own_src.words.WORDS" in describe_targets({}, [], [finish])
