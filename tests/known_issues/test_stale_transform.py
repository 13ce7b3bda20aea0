"""An edited transform or preprocessor went unnoticed, and another test set's counted as one's own.

Nor do the training sets count, which configs share with inference.
"""

import sys

import pytest

from espnet3.config.load import load_config
from espnet3.errors import StaleRunError
from espnet3.systems.base.inference import infer

CONFIG = """
dataset:
  test:
    - name: plain
      data_src: tests.helpers.inference_parts
      data_src_args: {n: 3}
      transform: steps.louder
    - name: other
      data_src: tests.helpers.inference_parts
      data_src_args: {n: 3}
      transform: {_target_: more_steps.Add, amount: 1}
  preprocessor: steps.prepare
model: {_target_: tests.helpers.inference_parts.Speller}
"""
STEPS = """
def louder(sample):
    return {**sample, "speech": sample["speech"] * 2}


def prepare(sample):
    return {**sample, "speech": sample["speech"] + 3}
"""
MORE_STEPS = """
class Add:
    def __init__(self, amount):
        self.amount = amount

    def __call__(self, sample):
        return {**sample, "speech": sample["speech"] + self.amount}
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that runs infer with an edited `steps.py`."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "inference.yaml").write_text(CONFIG)
    below = {"recipe_dir": str(tmp_path), "inference_dir": str(tmp_path / "out")}

    def run_infer(old="", new="", overrides=()):
        for name, text in (("steps", STEPS), ("more_steps", MORE_STEPS)):
            (tmp_path / f"{name}.py").write_text(text.replace(old, new) if old else text)
            sys.modules.pop(name, None)
        return infer(load_config(tmp_path / "inference.yaml", overrides, below=below))

    yield run_infer
    sys.modules.pop("steps", None)
    sys.modules.pop("more_steps", None)


@pytest.mark.parametrize(
    ("test_set", "old", "new", "step"),
    [
        ("plain", "* 2", "* 4", "steps.louder"),
        ("plain", "+ 3", "+ 5", "steps.prepare"),
        ("other", "+ self.amount", "- self.amount", "more_steps.Add.__call__"),
    ],
)
def test_an_edited_step_is_noticed(run, test_set, old, new, step):
    run()
    with pytest.raises(StaleRunError, match=rf"code\.{step}: the code changed"):
        run(old, new, [f"test_set={test_set}"])


def test_a_step_of_another_test_set_does_not_count(run):
    files = run()
    again = run("+ self.amount", "- self.amount", ["test_set=plain"])
    assert again == {"plain": files["plain"]}


def test_the_training_sets_do_not_count(run):
    assert run() == run(overrides=["dataset.train=[{data_src: tests.helpers.inference_parts}]"])
