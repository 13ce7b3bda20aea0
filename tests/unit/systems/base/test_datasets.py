import json

import pytest

from espnet3.components.data.dataset import CombinedDataset
from espnet3.config.load import load_config
from espnet3.errors import ConfigError
from espnet3.systems.base.datasets import build_sets, check_data, has_split

DATASET = """
class Dataset:
    def __init__(self, n=3):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return {"utt_id": str(index)}
"""
TRAIN = "dataset:\n  train:\n    - data_src_args: {n: 3}\n"


class Own:
    """An organizer of a user, with keys of its own."""

    def __init__(self, path: str) -> None:
        self.train, self.valid = [path], None


@pytest.fixture
def load(recipe, write):
    """Return a function that loads a config of a recipe with a dataset."""
    write("dataset/__init__.py", DATASET)

    def load_text(text: str):
        write("conf/training.yaml", f"recipe_dir: {json.dumps(str(recipe))}\n{text}")
        return load_config("conf/training.yaml")

    return load_text


def test_both_sets_are_built_and_validation_may_be_missing(load):
    sets = build_sets(load(TRAIN).plain())
    assert isinstance(sets["train"], CombinedDataset)
    assert len(sets["train"]) == 3
    assert sets["valid"] is None


def test_an_organizer_of_the_user_knows_its_splits_itself(load):
    loaded = load(f"dataset: {{_target_: {__name__}.Own, path: a}}\n")
    check_data(loaded)
    assert has_split(loaded.plain()["dataset"], "valid") is None
    assert build_sets(loaded.plain()) == {"train": ["a"], "valid": None}


def test_splits_are_known_before_anything_is_built(load):
    loaded = load(TRAIN)
    assert has_split(loaded.plain()["dataset"], "train") is True
    assert has_split(loaded.plain()["dataset"], "valid") is False


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seed: 1\n", "dataset is None, so there is nothing to train on. Write: dataset: "),
        ("dataset: librispeech\n", "dataset is 'librispeech' (set in conf/training.yaml:2)"),
        ("dataset: {valid: [{}]}\n", "dataset.train (set in conf/training.yaml:2) has nothing"),
        (TRAIN.replace("n: 3", "m: 3"), "It takes: n"),
    ],
)
def test_what_is_wrong_with_the_block_is_told_first(load, text, words):
    with pytest.raises(ConfigError) as refused:
        check_data(load(text))
    assert words in str(refused.value)


def test_an_error_of_an_entry_says_where_it_was_set(load):
    loaded = load(TRAIN.replace("n: 3", "n: 0"))
    with pytest.raises(ConfigError) as refused, loaded.naming_places():
        build_sets(loaded.plain())
    key = "dataset.train.0.data_src_args (set in conf/training.yaml:4): "
    assert str(refused.value).startswith(key)
    assert "has no items" in str(refused.value)
