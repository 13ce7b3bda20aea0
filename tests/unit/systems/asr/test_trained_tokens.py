"""The tokens of a training: kept with its weights, and not exchanged below them."""

import json
from pathlib import Path

import pytest

from espnet3.components.text.tokenizer import CharacterTokenizer
from espnet3.errors import StaleRunError
from espnet3.systems.asr.system import ASRSystem
from espnet3.systems.asr.trained_model import record_tokens
from espnet3.systems.base.context import load_configs
from espnet3.systems.base.stages import has_own
from tests.helpers.recognizer_parts import make_recipe


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    folder = make_recipe(tmp_path / "my corpus/asr")
    monkeypatch.chdir(folder)
    return folder


def load(*overrides):
    config = load_configs({"training": ["conf/training.yaml"]}, overrides).training
    return config.plain().get("model"), Path(config["exp_dir"])


def other_tokenizer(folder):
    CharacterTokenizer.from_texts(["quite other letters"]).save(folder)


def test_tokens_are_kept_and_a_training_with_weights_goes_on_with_these_only(recipe):
    file = recipe / "exp/training/tokens.json"
    record_tokens(*load("model.tokenizer=data/tokenizer"))
    tokens = json.loads(file.read_text())
    assert tokens[:3] == ["<blank>", "<unk>", "<space>"]
    record_tokens(*load("model.tokenizer=data/tokenizer"))
    other_tokenizer(recipe / "data/tokenizer")
    with pytest.raises(StaleRunError, match=r"it had 19 tokens, and has 14.*exp_tag: NAME_2"):
        record_tokens(*load("model.tokenizer=data/tokenizer"))
    assert json.loads(file.read_text()) == tokens


def test_without_weights_the_tokens_are_those_of_now(recipe):
    exp_dir = recipe / "exp/new"
    record_tokens(*load("model.tokenizer=data/tokenizer", "exp_tag=new"))
    before = (exp_dir / "tokens.json").read_text()
    other_tokenizer(recipe / "data/tokenizer")
    record_tokens(*load("model.tokenizer=data/tokenizer", "exp_tag=new"))
    assert (exp_dir / "tokens.json").read_text() != before


def test_tokenizers_of_others_are_let_pass(recipe):
    hub = recipe / "data/whisper"
    hub.mkdir()
    (hub / "tokenizer.json").write_text('{"version": "1.0"}')
    for override in ("model.tokenizer=data/whisper", "model.size=3"):
        record_tokens(*load(override, "exp_tag=new"))
    assert not (recipe / "exp/new").exists()


def test_the_stage_keeps_its_check_and_its_plan():
    assert has_own(ASRSystem, "train", "check_train")
    assert has_own(ASRSystem, "train", "describe_train")
