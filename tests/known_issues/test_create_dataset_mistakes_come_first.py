"""Mistakes in what `create_dataset` reads were found when it ran, and without file and line."""

import pytest

from espnet3.components.data.data_organizer import DataSource
from espnet3.errors import ConfigError
from espnet3.systems.base.checks import check_stages
from espnet3.systems.base.context import load_configs
from espnet3.systems.base.stages import STAGES
from espnet3.systems.base.system import BaseSystem

BUILDER = """\
from espnet3.components.data.dataset_builder import DatasetBuilder as Base


calls = []


class DatasetBuilder(Base):
    def is_built(self):
        calls.append("is_built")

    def build(self, n_items=1): ...


class Dataset: ...
"""


def check(folder, text, *, module=BUILDER):
    (folder / "dataset").mkdir()
    (folder / "dataset" / "__init__.py").write_text(module)
    file = folder / "training.yaml"
    file.write_text(f"recipe_dir: {str(folder)!r}\n{text}\n")
    configs = load_configs({"training": [file]}, recipe_dir=folder)
    check_stages(BaseSystem(**vars(configs)), STAGES[:1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("create_dataset: {n_item: 3}", r"create_dataset.n_item .*training.yaml:2.*'n_items'"),
        ("create_dataset: 3", r"create_dataset is 3 .*training.yaml:2.* Write: create_dataset: {"),
        ("dataset: {train: [{data_src: kaldo}]}", r"train.0.data_src .*training.yaml:2.*'kaldi'"),
    ],
)
def test_a_wrong_key_is_refused_before_anything_runs(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        check(tmp_path, text)


def test_a_right_config_passes_without_a_call_of_the_builder(tmp_path):
    check(tmp_path, "create_dataset: {n_items: 3}")
    assert DataSource(None, tmp_path).load_module().calls == []


def test_a_module_that_cannot_be_imported_is_no_traceback(tmp_path):
    with pytest.raises(ConfigError, match=r"__init__.py cannot be imported: ValueError: no\. Mend"):
        check(tmp_path, "", module="raise ValueError('no')\n")
