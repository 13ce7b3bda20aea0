"""Tokens of samples."""

import pickle

import numpy as np
import pytest

from espnet3.components.data.dataset import TransformedDataset, fingerprint_of
from espnet3.components.data.errors import DataError
from espnet3.components.text.tokenizer import CharacterTokenizer
from espnet3.errors import ConfigError
from espnet3.systems.asr.preprocessor import Tokenize


@pytest.fixture
def folder(awkward):
    CharacterTokenizer.from_texts(["abc d"]).save(awkward)
    return awkward


def test_tokens_are_added_to_a_copy(folder):
    sample = {"utt_id": "u1", "text": "cab"}
    made = pickle.loads(pickle.dumps(Tokenize(str(folder))))(sample)
    assert made["tokens"].tolist() == [5, 3, 4]
    assert made["tokens"].dtype == np.int64
    assert (made["text"], "tokens" in sample) == ("cab", False)
    other = Tokenize(folder, text_key="words", tokens_key="ids")({"words": "a"})
    assert other["ids"].tolist() == [3]


@pytest.mark.parametrize(
    ("sample", "problem"),
    [
        ({"utt_id": "u7", "text": "  "}, "Utterance 'u7' has an empty text"),
        ({"utt_id": "u7", "speech": 1}, "Utterance 'u7' has no field 'text'. It has: utt_id, spee"),
        ({"utt_id": "u7", "text": ["a"]}, "Utterance 'u7' has the text .*of type list"),
        ({"text": ""}, "A sample has an empty text"),
    ],
)
def test_what_has_no_text_is_refused_by_name(folder, sample, problem):
    with pytest.raises(DataError, match=problem):
        Tokenize(folder)(sample)


def test_a_text_that_cleaning_leaves_nothing_of_is_refused(tmp_path):
    CharacterTokenizer.from_texts(["abc"], ["no_punctuation"]).save(tmp_path)
    with pytest.raises(DataError, match=r"'u7' has the text '\?!', of which nothing is left"):
        Tokenize(tmp_path)({"utt_id": "u7", "text": "?!"})


def test_a_missing_tokenizer_is_told_with_the_command(tmp_path):
    with pytest.raises(ConfigError, match=r"python run\.py --stages train_tokenizer"):
        Tokenize(tmp_path / "none")


def test_another_tokenizer_in_the_folder_is_another_dataset(folder):
    def fingerprint():
        return fingerprint_of(TransformedDataset([1], preprocessor=Tokenize(folder)))

    before = fingerprint()
    assert before == fingerprint()
    old = Tokenize(folder)
    old({"text": "a"})
    CharacterTokenizer.from_texts(["a b c d e"]).save(folder)
    assert before != fingerprint()
    assert Tokenize(folder)({"text": "e"})["tokens"].tolist() == [7]
