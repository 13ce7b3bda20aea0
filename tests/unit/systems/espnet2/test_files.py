"""Configs and weights of ESPnet2, as files: what is missing, damaged or dangerous is told."""

import collections
from pathlib import Path

import pytest
import torch

from espnet3.errors import ConfigError, RunFolderError
from espnet3.systems.espnet2.inference import ESPnet2Inference
from espnet3.systems.espnet2.training_config import (
    batches_here,
    read_config,
    read_token_list,
    resolve_paths,
)
from espnet3.systems.espnet2.weights import put_weights, read_weights


class Something:
    """No tensor."""


def test_tensors_of_a_pth_are_read(tmp_path):
    torch.save(collections.OrderedDict(a=torch.ones(2)), tmp_path / "m.pth")
    assert read_weights(tmp_path / "m.pth")["a"].tolist() == [1, 1]


def test_the_model_of_a_checkpoint_is_taken(tmp_path):
    torch.save({"model": {"a": torch.ones(2)}, "optimizers": [{}]}, tmp_path / "checkpoint.pth")
    assert list(read_weights(tmp_path / "checkpoint.pth")) == ["a"]


def test_objects_are_refused_unless_they_are_trusted(tmp_path):
    path = tmp_path / "m.pth"
    torch.save({"a": torch.ones(2), "b": Something()}, path)
    with pytest.raises(ConfigError, match="trust_remote_code: true"):
        read_weights(path)
    assert list(read_weights(path, trust_remote_code=True)) == ["a"]


@pytest.mark.parametrize("content", [b"", b"no weights", b"PK\x03\x04 half a zip"])
def test_a_damaged_pth_is_told(tmp_path, content):
    path = tmp_path / "m.pth"
    path.write_bytes(content)
    with pytest.raises(RunFolderError, match="Copy it again"):
        read_weights(path)


def test_missing_weights_are_told_with_an_example(tmp_path):
    with pytest.raises(ConfigError, match=r"weights is .*valid\.acc\.ave\.pth"):
        read_weights(tmp_path / "m.pth")


def test_weights_of_another_model_are_told_with_the_first_differences():
    model = torch.nn.Linear(2, 3)
    with pytest.raises(RunFolderError, match=r"such as bias.*such as other.*such as weight"):
        put_weights(model, {"weight": torch.ones(1), "other": torch.ones(1)}, "m.pth")


@pytest.mark.parametrize(
    ("content", "message"), [("a: [", "no YAML"), ("- a", "not keys"), ("a: !!python/x y", "YAML")]
)
def test_a_file_that_is_no_config_is_told(tmp_path, content, message):
    path = tmp_path / "config.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=message):
        read_config(path)


def test_tuples_of_espnet2_are_read_as_lists(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("best_model_criterion:\n- !!python/tuple [valid, acc, max]\n")
    assert read_config(path)["best_model_criterion"] == [["valid", "acc", "max"]]


def test_files_are_found_from_the_recipe_above_the_config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = tmp_path / "egs2/asr1"
    config = recipe / "exp/asr/config.yaml"
    (recipe / "data").mkdir(parents=True)
    (recipe / "data/bpe.model").touch()
    config.parent.mkdir(parents=True)
    found = resolve_paths({"bpemodel": "data/bpe.model", "a": {"b": 1}}, config)
    assert Path(found["bpemodel"]) == recipe / "data/bpe.model"
    with pytest.raises(ConfigError, match=r"stats_file in .*does not exist.*stats_file: PATH"):
        resolve_paths({"normalize_conf": {"stats_file": "exp/stats.npz"}}, config)


def test_tokens_that_go_by_a_name_are_no_file():
    values = {"token_type": "hugging_face", "bpemodel": "facebook/mbart-large-50"}
    assert resolve_paths(values, None) == values


def test_a_missing_token_list_is_told(tmp_path):
    with pytest.raises(ConfigError, match="token_list: data/token_list"):
        read_token_list({"token_list": None}, "config.yaml")
    (tmp_path / "tokens.txt").write_text("<blank>\n<unk>\n\u2028\n<sos/eos>\n", encoding="utf-8")
    tokens = read_token_list({"token_list": str(tmp_path / "tokens.txt")}, "config.yaml")
    assert tokens == ["<blank>", "<unk>", "\u2028", "<sos/eos>"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "vc"}, "task is 'vc'"),
        ({"beam_size": 0}, "beam_size is 0, but must be 1 or more"),
        ({"ctc_weight": 1.5}, "ctc_weight is 1.5, but is a share"),
        ({"penalty": "x"}, "penalty is 'x', but must be a number"),
        ({"decoder": "k2"}, "decoder is 'k2', but must be espnet3 or espnet2"),
        ({"lm_file": "a.pth"}, "lm_train_config: exp/lm_train/config.yaml"),
        ({"lm_weight": 0.3}, "there is no language model"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_imported(settings, message):
    with pytest.raises(ConfigError, match=message):
        ESPnet2Inference(**{"task": "asr", "config": "a", "weights": "b", **settings})


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({}, ""),
        ({"batch_type": "sorted", "batch_size": 4}, "{batch_size: 4, max_padding: 0.08}"),
        ({"batch_type": "folded", "batch_size": 4}, "{batch_size: 4, batch_seconds: 200}"),
        (
            {"batch_type": "numel", "batch_bins": 4_000_000, "frontend_conf": {"fs": "8k"}},
            "{batch_seconds: 500} for speech of 8000 Hz, padding included",
        ),
        ({"batch_type": "length", "batch_bins": 160_000}, "{batch_seconds: 10}"),
    ],
)
def test_each_kind_of_batches_is_told_as_it_is_written_here(values, line):
    assert line in batches_here(values)
