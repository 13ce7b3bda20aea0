"""docs/recipes.md on stages and systems: its system, run in a new recipe, and its table."""

import runpy
import sys

import pytest

from espnet3.cli.main import main
from espnet3.config.targets import locate
from espnet3.systems.base.stages import stages_of
from tests.helpers.pages import DOCS, code_in, named_files, table
from tests.helpers.recipe_copy import RecipeCopy

PAGE = DOCS / "recipes.md"
FILES = named_files(PAGE)


@pytest.fixture
def recipe(tmp_path):
    copy = RecipeCopy("TEMPLATE/asr", tmp_path / "it's mine")
    for name in ("src/system.py", "run.py"):
        (copy.folder / name).write_text(FILES[name])
    return copy


def test_the_system_of_the_page_has_its_stage_where_it_says(recipe, monkeypatch, capsys):
    monkeypatch.chdir(recipe.folder)
    monkeypatch.setattr(sys, "path", [str(recipe.folder), *sys.path])
    try:
        system = runpy.run_path("run.py", run_name="recipe")["MySystem"]
    finally:
        for name in [n for n in sys.modules if n == "src" or n.startswith("src.")]:
            del sys.modules[name]
    recipe.run_here(system, "--list-stages")
    listed = capsys.readouterr().out.splitlines()
    names = [line[6:].split()[0] for line in listed]
    assert names.index("count_words") == names.index("infer") + 1
    assert "Count the words of the results" in listed[names.index("count_words")]
    line = ("--stages", "create_dataset", "infer", "count_words", "--config", "conf/inference.yaml")
    recipe.run_here(system, *line, "--dry-run")
    assert "counts the words of ./exp/inference" in capsys.readouterr().out
    recipe.run_here(system, *line)
    assert " words\n" in capsys.readouterr().out


def test_a_check_of_the_page_comes_before_the_first_stage(recipe, capsys):
    line = ("create_dataset", "infer", "count_words", "--config", "conf/inference.yaml")
    code = main(["run", str(recipe.folder), "--stages", *line, "output_keys=[ref]"])
    assert code == 1
    assert "output_keys has no hyp. Write: output_keys: [hyp, ref]" in capsys.readouterr().err
    assert not (recipe.folder / "data").exists()


def test_the_table_of_systems_has_their_stages():
    rows = table(PAGE, "## Stages and systems")
    known: set[str] = set()
    for name, told, _ in rows[:2]:
        system = locate(code_in(name)[0])
        known |= {word.strip() for word in told.removeprefix("also ").split(",")}
        assert {stage.name for stage in stages_of(system) if stage.is_defined} == known
