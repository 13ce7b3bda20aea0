"""An edit of a module that the model's module imports went unnoticed."""

import sys

import pytest

from espnet3.config.load import load_config
from espnet3.errors import StaleRunError
from espnet3.parallel.identity import describe_modules
from espnet3.systems.base.inference import infer

CONFIG = """
dataset:
  test: [{name: digits, data_src: tests.helpers.inference_parts, data_src_args: {n: 3}}]
model: {_target_: shout_model.Shouter}
"""
MODEL = """
from shout_words import finish
from tests.helpers.inference_parts import Speller


class Shouter(Speller):
    def __call__(self, speech):
        return finish(super().__call__(speech))
"""
WORDS = "def finish(text):\n    import shout_mark\n\n    return text + shout_mark.MARK\n"
NAMES = ("shout_model", "shout_words", "shout_mark")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that decodes with the modules as they are on disk now."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "inference.yaml").write_text(CONFIG)
    (tmp_path / "shout_model.py").write_text(MODEL)
    (tmp_path / "shout_words.py").write_text(WORDS)
    (tmp_path / "shout_mark.py").write_text('MARK = "!"\n')
    below = {"recipe_dir": str(tmp_path), "inference_dir": str(tmp_path / "out")}

    def run_infer():
        for name in NAMES:
            sys.modules.pop(name, None)
        return infer(load_config(tmp_path / "inference.yaml", below=below))

    yield run_infer
    for name in NAMES:
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("module", "text", "line"),
    [
        ("shout_words", WORDS.replace("text +", "text.upper() +"), "finish: the code changed"),
        ("shout_mark", 'MARK = "?"\n', "MARK: '!' -> '\\?'"),
    ],
)
def test_an_edit_of_an_imported_module_is_noticed(tmp_path, run, module, text, line):
    run()
    (tmp_path / f"{module}.py").write_text(text)
    with pytest.raises(StaleRunError, match=rf"code\.{module}\.{line}"):
        run()


def test_a_comment_there_is_no_change(tmp_path, run):
    first = run()
    (tmp_path / "shout_mark.py").write_text('"""Loud."""\n\n# louder\nMARK = "!"\n')
    assert run() == first


def test_what_happens_to_be_loaded_makes_no_difference(tmp_path, run):
    run()
    import shout_model  # noqa: F401 - as a notebook has it from its first call

    below = {"recipe_dir": str(tmp_path), "inference_dir": str(tmp_path / "out")}
    assert infer(load_config(tmp_path / "inference.yaml", below=below)) == run()


def test_relative_imports_and_packages_are_followed(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "shout_package" / "inner"
    package.mkdir(parents=True)
    texts = {
        package.parent / "__init__.py": "",
        package / "__init__.py": "from .a import A\n",
        package / "a.py": "from .. import top\nfrom . import b as c\n\n\nclass A: ...\n",
        package / "b.py": "import shout_package.deep\n",
        package.parent / "top.py": "import json\n\nT = 1\n",
        package.parent / "deep.py": "D = 1\n",
    }
    for path, text in texts.items():
        path.write_text(text)
    from shout_package.inner import A

    found = describe_modules([A])
    names = (".deep.D", ".inner.A", ".inner.a.A", ".inner.a.c", ".inner.a.top", ".top.T")
    assert sorted(found) == [f"shout_package{name}" for name in names]
