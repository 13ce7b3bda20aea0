"""Errors said "Did you mean 'noisy'? Write: test_set: clean"."""

import pytest

from espnet3.components.data.sources.huggingface import Dataset
from espnet3.config.load import LoadedConfig, load_config
from espnet3.errors import ConfigError
from espnet3.systems.base.inference_config import chosen_test_sets, listed_test_sets


def loaded() -> LoadedConfig:
    return load_config([])


def test_the_closest_test_set_is_the_only_one_named():
    with pytest.raises(ConfigError) as caught:
        chosen_test_sets(["clean", "noisy"], "nosy")
    assert str(caught.value).endswith("Write: test_set: noisy")
    with pytest.raises(ConfigError, match="Write: test_set: clean"):
        chosen_test_sets(["clean", "noisy"], "other")


def test_the_closest_split_is_the_only_one_named(tmp_path):
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"audio": ["a.wav"]})
    datasets.DatasetDict({"train": table, "test": table}).save_to_disk(tmp_path / "hub")
    with pytest.raises(ConfigError) as caught:
        Dataset(tmp_path / "hub", split="tst")
    assert str(caught.value).endswith("Did you mean 'test'?")


def test_an_empty_list_of_test_sets_is_named():
    with pytest.raises(ConfigError, match=r"^dataset.test is empty.* Write: test: \["):
        listed_test_sets({"test": []})
