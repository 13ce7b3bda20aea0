from functools import partial

import pytest
import sentencepiece

from espnet3.errors import ConfigError
from espnet3.systems.asr.metrics.ter import TER

TEXT = ["the cat sat on the mat", "a cat and a bat", "that hat is a cat's hat"] * 20


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bpe") / "it's a model"
    folder.mkdir()
    (folder / "text").write_text("\n".join(TEXT))
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text"), model_prefix=str(folder / "bpe"), vocab_size=40,
        model_type="bpe", minloglevel=2,
    )  # fmt: skip
    return folder / "bpe.model"


def cut(text: str, size: int) -> list[str]:
    return [text[i : i + size] for i in range(0, len(text), size)]


def test_texts_may_already_be_tokens():
    numbers = TER().compute({"ref": ["▁he llo ▁wor ld"], "hyp": ["▁he lp ▁wor ld s"]})
    assert (numbers["n_units"], numbers["substitutions"], numbers["insertions"]) == (4, 1, 1)
    assert numbers["unit"] == "tokens"


def test_a_sentencepiece_model_makes_the_tokens(model_file):
    reference, hypothesis = "the cat's bathtub", "the cat's bathtub on"
    data = {"ref": [reference], "hyp": [hypothesis]}
    model = sentencepiece.SentencePieceProcessor(model_file=str(model_file))
    pieces = model.encode(reference, out_type=str)
    numbers = TER(tokenizer=str(model_file)).compute(data)
    assert numbers["n_units"] == len(pieces) > 3
    assert numbers["insertions"] == len(model.encode(hypothesis)) - len(pieces)


def test_a_function_makes_the_tokens():
    metric = TER(tokenizer=partial(cut, size=2))
    assert metric.compute({"ref": ["abcd"], "hyp": ["abXd"]})["rate"] == 50.0
    assert metric.settings["tokenizer"]["function.keywords.size"] == 2


def test_the_settings_hold_the_identity_of_the_model(model_file):
    identity = TER(tokenizer=str(model_file)).settings["tokenizer"]
    assert identity["path"] == str(model_file)
    assert len(identity["sha256"]) == 64


def test_a_missing_model_is_told_when_it_is_needed_and_not_before(tmp_path):
    metric = TER(tokenizer=str(tmp_path / "bpe.model"))
    with pytest.raises(
        ConfigError, match=r"no such file\. Write the path of a SentencePiece model"
    ):
        metric.split("a b")
    with pytest.raises(ConfigError, match="tokenizer: null"):
        metric.settings  # noqa: B018


def test_a_file_that_is_no_model_is_told(tmp_path):
    path = tmp_path / "bpe.model"
    path.write_text("no model")
    with pytest.raises(ConfigError, match=r"which is no SentencePiece model.*train_tokenizer"):
        TER(tokenizer=path).split("a")
