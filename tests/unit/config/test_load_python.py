"""Configs that are written in Python: `load_config` takes them as it takes files."""

import enum
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from espnet3.config.load import LoadedConfig, as_loaded, load_config
from espnet3.errors import ConfigError

VALUES = {"lr": 0.1, "optimizer": {"lr": "${lr}"}, "trainer": {"devices": 1}}


@pytest.mark.parametrize(
    "given", [VALUES, OmegaConf.create(VALUES), load_config(VALUES)], ids=["dict", "conf", "loaded"]
)
def test_values_are_read_like_a_file(given):
    loaded = load_config(given, ["lr=0.2"])
    assert loaded.config.optimizer.lr == 0.2
    assert loaded.config.trainer.devices == 1
    assert loaded.source_of("trainer.devices") == "a config given in Python"
    assert loaded.source_of("lr") == "command line: lr=0.2"
    assert as_loaded(loaded) is loaded
    assert isinstance(as_loaded(given), LoadedConfig)


def test_values_among_files_keep_their_order_and_places(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("lr: 1\nb: 1\ntag: ${self_name:}\n")
    loaded = load_config([{"lr": 2, "c": 2}, file, {"b": 3}])
    assert loaded.config == {"lr": 1, "c": 2, "b": 3, "tag": "${self_name:'a'}"}
    assert loaded.config.tag == "a"
    assert loaded.source_of("lr") == f"{file}:1"
    assert loaded.files == (str(file),)
    again = load_config([loaded, {"lr": 5}])
    assert (again.config.lr, again.source_of("b"), again.files) == (
        5, "a config given in Python", (str(file),)
    )  # fmt: skip


def test_what_was_given_is_left_alone():
    values = {"a": {"b": [1, 2]}}
    load_config(values, ["a.b.0=5"])
    assert values == {"a": {"b": [1, 2]}}
    config = OmegaConf.create(values)
    load_config(config, ["a.c=1"])
    assert config == values


def test_a_part_of_a_config_knows_what_it_refers_to():
    whole = OmegaConf.create({"n": 3, "trainer": {"devices": "${n}", "name": "\\${n}"}})
    for given in (load_config(whole.trainer), load_config({"a": whole.trainer}).config.a):
        assert (given.config if isinstance(given, LoadedConfig) else given).devices == 3
    assert load_config(whole.trainer).config.name == "${n}"


class Mode(enum.Enum):
    FAST = 1


def test_values_of_python_become_those_of_yaml():
    given = {"a": np.float64(0.5), "b": np.int32(3), "c": Path("x/y"), "d": (1, 2), "e": Mode.FAST}
    loaded = load_config(given)
    assert OmegaConf.to_container(loaded.config) == {
        "a": 0.5, "b": 3, "c": "x/y", "d": [1, 2], "e": "FAST"
    }  # fmt: skip
    assert "!!python" not in loaded.to_yaml()


def circle():
    values = {"a": {}}
    values["a"]["b"] = values
    return values


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"model": torch.nn.Linear(1, 1)}, r"model is an object of Linear.*train\(config, model="),
        ({"dataset": {"train": object()}}, r"dataset\.train is .*train=\.\.\., valid="),
        ({"optimizer": torch.optim.Adam}, r'"_target_": "torch\.optim\.adam\.Adam"'),
        ({"trainer": {"callbacks": [Path]}}, r"trainer\.callbacks\.0 is Path, a class"),
        ({"a": {"b": np.zeros(3)}}, r"a\.b is an object of ndarray"),
        ({"a": {(1, 2): 3}}, r"\(1, 2\) is a key of a"),
        ({"defaults": ["base"]}, r"load_config\(\[\"conf/base\.yaml\", \{\.\.\.\}\]\)"),
        (circle(), r"a\.b contains itself"),
        (5, "5 of type int is no config"),
        ([None], "of type NoneType is no config"),
    ],
)
def test_what_no_file_could_hold_is_named(given, words):
    with pytest.raises(ConfigError, match=words):
        load_config(given)
