import logging

import pytest
from omegaconf import OmegaConf

from espnet3.components.data.dataset_builder import (
    DatasetBuilder,
    build_dataset,
    create_dataset,
    describe_create_dataset,
)
from espnet3.components.data.errors import DataError
from espnet3.errors import ConfigError

BUILDER = """
from pathlib import Path
from espnet3.components.data.dataset_builder import DatasetBuilder as Base

class Dataset:
    def __init__(self, {dataset_args}): pass

class DatasetBuilder(Base):
    def is_built(self, recipe_dir):
        return Path(recipe_dir, "{name}").exists()

    def build(self, recipe_dir, {name}_size=1):
        Path(recipe_dir, "{name}").write_text("x" * {name}_size)
"""


class Recorder:
    """A builder that needs no base, and records how it is called."""

    def __init__(self, prepared=False, built=False, works=True):
        self.calls, self.prepared, self.built, self.works = [], prepared, built, works

    def is_source_prepared(self, url):
        self.calls.append(("is_source_prepared", url))
        return self.prepared

    def prepare_source(self, url, *, recipe_dir):
        self.calls.append(("prepare_source", url, recipe_dir))
        self.prepared = True

    def is_built(self):
        self.calls.append(("is_built",))
        return self.built

    def build(self, n_items=1, **kwargs):
        self.calls.append(("build", n_items, sorted(kwargs)))
        self.built = self.works


def problem(error, function, *args, **kwargs) -> str:
    with pytest.raises(error) as caught:
        function(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# One builder


def test_the_steps_run_in_order_with_what_each_one_names(tmp_path):
    builder = Recorder()
    lines = build_dataset(
        builder, recipe_dir=tmp_path, arguments={"url": "u", "n_items": 3}, context={"seed": 1}
    )
    assert builder.calls == [
        ("is_source_prepared", "u"),
        ("prepare_source", "u", tmp_path),
        ("is_source_prepared", "u"),
        ("is_built",),
        ("build", 3, ["recipe_dir", "seed", "url"]),
        ("is_built",),
    ]
    assert lines == ["Recorder.prepare_source: done", "Recorder.build: done"]


def test_what_is_done_is_skipped_and_told(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    builder = Recorder(prepared=True, built=True)
    lines = build_dataset(builder, recipe_dir=tmp_path, arguments={"url": "u"})
    assert lines == [
        "Recorder.prepare_source: skipped, is_source_prepared() is true",
        "Recorder.build: skipped, is_built() is true",
    ]
    assert [call[0] for call in builder.calls] == ["is_source_prepared", "is_built"]
    assert caplog.messages == lines


def test_a_build_that_leaves_nothing_behind_is_an_error(tmp_path):
    builder = Recorder(works=False)
    message = problem(
        DataError, build_dataset, builder, recipe_dir=tmp_path, arguments={"url": "u"}
    )
    assert message.startswith("Recorder.build() ran without an error, but is_built() is still")
    assert "Make the two agree" in message


def test_a_missing_argument_says_what_to_write(tmp_path):
    message = problem(ConfigError, build_dataset, Recorder(), recipe_dir=tmp_path)
    assert "Recorder.is_source_prepared() cannot be called: missing a required argument" in message
    assert message.endswith("Write: create_dataset: {url: VALUE}")


class Strict(DatasetBuilder):
    """A builder that takes nothing but its size."""

    def is_built(self):
        return False

    def build(self, n_items):
        raise AssertionError


def test_an_argument_that_no_method_takes_is_refused_before_anything_runs(tmp_path):
    message = problem(
        ConfigError, build_dataset, Strict(), recipe_dir=tmp_path, arguments={"n_itms": 3}
    )
    assert message.startswith("create_dataset.n_itms is an argument of none of the builder's")
    assert message.endswith("Did you mean 'n_items'? Write: n_items: 3")
    message = problem(
        ConfigError, build_dataset, Strict(), recipe_dir=tmp_path, arguments={"zzz": 3}
    )
    assert message.endswith("They take: n_items.")


def test_a_base_without_a_source_needs_two_methods(tmp_path):
    class Source(Strict):
        def is_source_prepared(self):
            return False

    with pytest.raises(NotImplementedError, match=r"Source.is_source_prepared\(\) is false, but"):
        build_dataset(Source(), recipe_dir=tmp_path)
    with pytest.raises(TypeError, match="abstract"):
        DatasetBuilder()


def test_an_object_without_the_methods_is_refused(tmp_path):
    message = problem(DataError, build_dataset, object(), recipe_dir=tmp_path)
    assert message.startswith("object has no is_source_prepared(). Write the methods")


# The stage


def config(recipe, dataset=None, **arguments):
    values = {"recipe_dir": str(recipe), "create_dataset": arguments, "dataset": dataset}
    return OmegaConf.create(values)


def recipe_code(name):
    return BUILDER.format(name=name, dataset_args="path=None")


def test_the_stage_builds_the_recipes_own_dataset_once(write_recipe):
    recipe = write_recipe(recipe_code("own"), "a recipe's")
    assert create_dataset(config(recipe, own_size=3)) == [
        "DatasetBuilder.prepare_source: skipped, is_source_prepared() is true",
        "DatasetBuilder.build: done",
    ]
    assert (recipe / "own").read_text() == "xxx"
    again = create_dataset(config(recipe, {"train": [{}], "test": [{"name": "a"}]}, own_size=3))
    assert again[1:] == ["DatasetBuilder.build: skipped, is_built() is true"]


def test_a_dry_run_tells_the_steps_and_builds_nothing(write_recipe):
    recipe = write_recipe(recipe_code("own"))
    assert describe_create_dataset(config(recipe, own_size=3)) == [
        "DatasetBuilder.prepare_source: skipped, is_source_prepared() is true",
        "DatasetBuilder.build: would run",
    ]
    assert not (recipe / "own").exists()


def test_the_stage_builds_every_distinct_source_that_can_be_built(write_recipe, tmp_path):
    recipe = write_recipe(recipe_code("own"))
    write_recipe(recipe_code("other"), "egs3/other/asr")
    entries = [{"data_src": "other/asr"}, {"data_src": "kaldi"}, {}, {"data_src": "other/asr"}]
    lines = create_dataset(config(recipe, {"train": entries}, own_size=1, other_size=2))
    assert (recipe / "own").read_text() == "x"
    assert (recipe / "other").read_text() == "xx"
    assert "kaldi: skipped, it has no DatasetBuilder" in lines
    assert sum(line.endswith("build: done") for line in lines) == 2


def test_a_recipe_that_needs_no_building_has_nothing_to_do(tmp_path):
    dataset = {"test": [{"name": "a", "data_src": "jsonl"}]}
    assert create_dataset(config(tmp_path, dataset)) == ["jsonl: skipped, it has no DatasetBuilder"]


def test_a_misspelt_argument_of_the_stage_is_named(write_recipe):
    recipe = write_recipe(recipe_code("own"))
    message = problem(ConfigError, create_dataset, config(recipe, own_sise=3))
    assert message.startswith("create_dataset.own_sise is an argument of none")
    assert message.endswith("Did you mean 'own_size'? Write: own_size: 3")
    assert not (recipe / "own").exists()


def test_an_own_dataset_without_a_builder_has_nothing_to_do(write_recipe):
    recipe = write_recipe("class Dataset: pass\n")
    skipped = [f"{recipe / 'dataset'}: skipped, it has no DatasetBuilder"]
    assert create_dataset(config(recipe)) == describe_create_dataset(config(recipe)) == skipped
    message = problem(ConfigError, create_dataset, config(recipe, size=3))
    assert message.startswith("create_dataset.size is an argument of none")


def test_a_builder_of_another_name_says_how_to_export_it(write_recipe):
    recipe = write_recipe("class Dataset: pass\nclass DataBuilder: pass\n")
    message = problem(ConfigError, create_dataset, config(recipe))
    assert "has no class 'DatasetBuilder'. Did you mean 'DataBuilder'?" in message


def test_a_recipe_without_any_source_says_which_file_to_write(tmp_path):
    message = problem(ConfigError, create_dataset, config(tmp_path))
    assert f"the recipe has no {tmp_path}/dataset/__init__.py. Write that file" in message


def test_arguments_that_are_no_mapping_are_refused(tmp_path):
    bad = OmegaConf.create({"recipe_dir": str(tmp_path), "create_dataset": ["url"]})
    assert "Write: create_dataset: {NAME: VALUE}" in problem(ConfigError, create_dataset, bad)
