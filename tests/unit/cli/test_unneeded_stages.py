from espnet3.cli.recipe_configs import skip_ungiven, skip_unneeded
from espnet3.cli.recipe_options import select_stages
from espnet3.systems.base.context import load_configs
from espnet3.systems.base.stages import stages_of
from espnet3.systems.base.system import BaseSystem

STAGES = stages_of(BaseSystem)


def select(*words):
    return select_stages(words, STAGES, system="BaseSystem")


def reasons(selected):
    return {entry.stage.name: entry.skipped for entry in selected if entry.stage.is_defined}


def test_a_recipe_without_a_training_config_is_not_asked_for_one(tmp_path):
    files = {"inference": ("conf/inference.yaml",)}
    skipped = reasons(skip_ungiven(select("all"), files, tmp_path))
    assert skipped["train"] == "the recipe has no training config"
    assert skipped["infer"] == ""


def test_one_that_has_a_training_config_is(tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "train_small.yaml").touch()
    files = {"inference": ("conf/inference.yaml",)}
    assert reasons(skip_ungiven(select("all"), files, tmp_path))["train"] == ""


def test_a_stage_that_was_named_is_never_skipped(tmp_path):
    files = {"inference": ("conf/inference.yaml",)}
    assert reasons(skip_ungiven(select("train", "infer"), files, tmp_path))["train"] == ""


def test_without_any_config_nothing_is_skipped_but_all_are_asked_for(tmp_path):
    assert set(reasons(skip_ungiven(select("all"), {}, tmp_path)).values()) == {""}


def test_a_config_without_a_trainer_has_nothing_to_train(tmp_path):
    file = tmp_path / "inference.yaml"
    file.write_text("beam: 3\n")
    configs = load_configs({"training": [file]})
    skipped = reasons(skip_unneeded(select("all"), configs))
    assert skipped["train"] == f"{file} has no trainer block"
    assert skipped["create_dataset"] == ""
    file.write_text("optimizer: {_target_: torch.optim.SGD}\n")
    assert reasons(skip_unneeded(select("all"), load_configs({"training": [file]})))["train"] == ""
