from pathlib import Path

import pytest

from espnet3.errors import ConfigError
from espnet3.systems.base.context import load_configs
from espnet3.systems.base.stages import Skipped, stages_of
from espnet3.systems.base.system import BaseSystem

DATASET = """\
from pathlib import Path

from espnet3.components.data.dataset_builder import DatasetBuilder as Base


class DatasetBuilder(Base):
    def is_source_prepared(self):
        return True

    def prepare_source(self): ...

    def is_built(self, recipe_dir):
        return (Path(recipe_dir) / "data" / "built").exists()

    def build(self, recipe_dir):
        (Path(recipe_dir) / "data").mkdir()
        (Path(recipe_dir) / "data" / "built").touch()


class Dataset:
    pass
"""


def load(write, **texts):
    files = {kind: [write(f"conf/{kind}.yaml", text)] for kind, text in texts.items()}
    return BaseSystem(**vars(load_configs(files)))


def test_folders_come_from_the_first_config(write):
    system = load(write, training="exp_tag: large", inference="beam: 3")
    assert system.exp_dir == Path("exp/large")
    assert system.recipe_dir == Path()


def test_a_system_without_configs_says_which_key_it_lacks():
    with pytest.raises(ConfigError, match="Write in one of them: exp_dir: VALUE"):
        _ = BaseSystem().exp_dir


def test_create_dataset_reads_training_or_else_inference(write):
    both = load(write, training="a: 1", inference="a: 2")
    assert both.config_for("create_dataset") is both.training
    one = load(write, inference="a: 2")
    assert one.config_for("create_dataset") is one.inference


def test_an_inference_config_serves_measure_only_if_it_has_metrics(write):
    system = load(write, inference="metrics: []")
    assert system.config_for("measure") is system.inference
    with pytest.raises(ConfigError, match=r"Stage measure \(7\) needs a config. Write: BaseSystem"):
        load(write, inference="a: 1").config_for("measure")


def test_create_dataset_builds_once_and_then_says_that_all_is_there(recipe, write):
    write("dataset/__init__.py", DATASET)
    system = load(write, inference="a: 2")
    assert "done" in system.create_dataset()[-1]
    assert (recipe / "data" / "built").exists()
    assert system.create_dataset() == Skipped("all is there already")


def test_a_stage_of_ours_can_be_called_from_one_that_replaces_it(write):
    seen = []

    class Own(BaseSystem):
        def average(self):
            seen.append("run")
            return super().average()

        def check_average(self):
            seen.append("check")
            super().check_average()

    text = "trainer: {}\nbest_model_criterion: [[valid/loss, 2]]\n"
    files = {"training": [write("conf/training.yaml", text)]}
    system = Own(**vars(load_configs(files)))
    place = r"best_model_criterion.0 .*\(set in .*training.yaml:2\)"
    for method in (system.average, system.check_average, system.describe_average):
        with pytest.raises(ConfigError, match=place):
            method()
    assert seen == ["run", "check"]
    assert stages_of(Own)[4].name == "average"
    assert not stages_of(Own)[4].is_ours
    assert stages_of(BaseSystem)[4].is_ours


def test_a_stage_of_ours_needs_its_config():
    with pytest.raises(ConfigError, match=r"collect_stats .* needs a config"):
        BaseSystem().collect_stats()
