import os
import sys

import pytest

from espnet3.cli.console import UsageError
from espnet3.cli.recipe_configs import assign_configs, check_given, enter_recipe, find_files
from espnet3.cli.recipe_options import Options
from espnet3.systems.base.stages import find_stage, stages_of
from espnet3.systems.base.system import BaseSystem

STAGES = stages_of(BaseSystem)
A, B = ("a.yaml",), ("b.yaml",)


def pick(*names):
    return [find_stage(STAGES, name) for name in names]


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """A recipe in a tree of recipes, and the folder that the tree is in as current one."""
    folder = tmp_path / "it's here" / "egs3" / "my corpus" / "asr"
    (folder / "conf").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return folder


def test_the_recipe_is_imported_from_first_then_the_root_of_the_tree(recipe):
    enter_recipe(recipe)
    enter_recipe(recipe)
    assert os.getcwd() == str(recipe)
    assert sys.path[:2] == [str(recipe), str(recipe.parents[2])]
    assert sys.path.count(str(recipe)) == 1


def test_a_recipe_outside_of_a_tree_adds_itself_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["x"])
    enter_recipe(tmp_path)
    assert sys.path == [str(tmp_path), "x"]


def test_files_are_those_of_the_current_folder_or_else_of_the_recipe(recipe, tmp_path):
    (tmp_path / "mine.yaml").touch()
    (recipe / "conf" / "a.yaml").touch()
    inside = os.path.relpath(recipe / "conf" / "a.yaml", tmp_path)
    absolute = str(recipe / "conf" / "a.yaml")
    found = find_files(["mine.yaml", inside, absolute, "conf/a.yaml"], tmp_path, recipe)
    assert found == (str(tmp_path / "mine.yaml"), "conf/a.yaml", "conf/a.yaml", "conf/a.yaml")


@pytest.mark.parametrize(
    ("stages", "options", "expected"),
    [
        ("infer", Options(config=A), {"inference": A}),
        ("infer", Options(config=A, configs={"inference": B}), {"inference": B}),
        ("create_dataset", Options(config=A), {"training": A}),
        ("create_dataset", Options(config=A, configs={"inference": B}), {"inference": B}),
        (
            "create_dataset infer",
            Options(config=A, configs={"training": B}),
            {"training": B, "inference": A},
        ),
        ("infer measure", Options(config=A), {"inference": A, "metrics": A}),
        (
            "infer measure",
            Options(config=A, configs={"inference": B}),
            {"inference": B, "metrics": A},
        ),
        ("measure", Options(configs={"inference": B}), {"inference": B}),
        ("measure report", Options(config=A), {"metrics": A}),
        ("report", Options(config=A, configs={"inference": B}), {"inference": B}),
    ],
)
def test_config_fills_in_for_stages_without_a_config_of_their_own(stages, options, expected):
    assert assign_configs(options, pick(*stages.split())) == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([], "conf/inference.yaml"),
        (["inference.yaml", "infer_beam10.yaml"], "conf/inference.yaml"),
        (["infer_beam10.yaml", "train.yaml"], "conf/infer_beam10.yaml"),
        (["infer it's.yaml"], """'conf/infer it'"'"'s.yaml'"""),
        (["a.yaml", "b.yml", "c.txt"], "FILE (there are conf/a.yaml, conf/b.yml)"),
    ],
)
def test_a_missing_config_is_named_with_the_option_and_a_file_that_looks_right(
    recipe, files, expected
):
    for name in files:
        (recipe / "conf" / name).touch()
    with pytest.raises(UsageError) as caught:
        check_given(pick("infer"), lambda stage: False, recipe)
    assert str(caught.value) == (
        f"Stage infer (6) needs a config: add --inference_config {expected}"
    )


def test_each_missing_kind_of_config_has_a_line(recipe):
    with pytest.raises(UsageError) as caught:
        check_given(pick("train", "average", "infer"), lambda s: s.name == "infer", recipe)
    assert str(caught.value) == (
        "Stage train (4) needs a config: add --training_config conf/training.yaml"
    )
