"""Tokenizers: round trips, places of the special tokens, and what is refused."""

import json
import pickle
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espnet3.components.text.spelling import Speller
from espnet3.components.text.tokenizer import (
    BLANK,
    UNKNOWN,
    CharacterTokenizer,
    SentencePieceTokenizer,
    end_of,
    load_tokenizer,
    train_pieces,
)
from espnet3.errors import ConfigError

TEXTS = ["one two three", "four five six seven", "zero eight nine", "oh dear"] * 10


def make(kind):
    if kind == "characters":
        return CharacterTokenizer.from_texts(TEXTS)
    return train_pieces(TEXTS, kind, 23)


@pytest.fixture(params=["characters", "bpe", "unigram"])
def tokenizer(request):
    return make(request.param)


def test_special_tokens_stand_where_models_expect_them(tokenizer):
    assert tokenizer.tokens[BLANK] == "<blank>"
    assert tokenizer.tokens[UNKNOWN] == "<unk>"
    assert tokenizer.tokens[end_of(len(tokenizer.tokens))] == "<sos/eos>"
    assert len(set(tokenizer.tokens)) == len(tokenizer.tokens)


def test_ids_name_tokens_that_spell_the_text(tokenizer):
    text = "".join(tokenizer.tokens[id] for id in tokenizer.encode("seven two"))
    assert text.replace("<space>", "\u2581").lstrip("\u2581") == "seven\u2581two"


def test_a_text_comes_back(tokenizer):
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_ids_are_dropped_and_strangers_are_unknown(tokenizer):
    ids = tokenizer.encode("one \u6f22")
    assert UNKNOWN in ids
    end = end_of(len(tokenizer.tokens))
    assert tokenizer.decode([end, BLANK, *ids, BLANK, end]).strip() == "one"
    assert tokenizer.encode("  ") == []
    assert tokenizer.decode([]) == ""


def test_it_is_the_same_from_disk_and_in_another_process(tokenizer, awkward):
    tokenizer.save(awkward / "new" / "tokenizer", {"made_by": "a test"})
    loaded = load_tokenizer(awkward / "new" / "tokenizer")
    assert loaded.tokens == tokenizer.tokens
    ids = tokenizer.encode(TEXTS[0])
    assert loaded.encode(TEXTS[0]) == ids
    assert pickle.loads(pickle.dumps(tokenizer)).encode(TEXTS[0]) == ids
    lines = (awkward / "new" / "tokenizer" / "tokens.txt").read_text("utf-8").split("\n")
    assert tuple(lines) == (*tokenizer.tokens, "")


@given(st.text(max_size=30))
def test_any_characters_come_back_as_they_are_spelled(text):
    tokenizer = CharacterTokenizer.from_texts([text])
    assert tokenizer.decode(tokenizer.encode(text)) == Speller()(text)


def test_lines_end_at_newlines_only(tmp_path):
    tokenizer = CharacterTokenizer.from_texts(["a\u200bb\u0000c\u00adé", "<blank>"])
    tokenizer.save(tmp_path)
    assert load_tokenizer(tmp_path).tokens == tokenizer.tokens


def test_two_spellings_of_a_letter_are_one_token():
    tokenizer = CharacterTokenizer.from_texts(["cafe\u0301"])
    assert "\u00e9" in tokenizer.tokens
    assert tokenizer.encode("caf\u00e9") == tokenizer.encode("cafe\u0301")


@pytest.mark.parametrize("kind", ["characters", "bpe"])
def test_cleaning_belongs_to_the_tokenizer(kind, tmp_path):
    clean = ["no_punctuation", "lower"]
    if kind == "bpe":
        made = train_pieces(TEXTS, kind, 23, clean_types=clean)
    else:
        made = CharacterTokenizer.from_texts(TEXTS, clean)
    made.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.encode("One, TWO!") == make(kind).encode("one two")


def test_a_file_cannot_name_code_to_import(tmp_path):
    make("characters").save(tmp_path)
    about = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**about, "clean_types": ["os.system"]}))
    with pytest.raises(ConfigError, match=r"'os\.system', which is not known"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_the_same_texts_give_the_same_bytes(kind, tmp_path):
    for name in ("a", "b"):
        make(kind).save(tmp_path / name)
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert set(files) == {f"{kind}.model", "tokenizer.json", "tokens.txt"}
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("size", [5, 1000])
def test_a_size_that_does_not_fit_is_told_with_one_that_does(kind, size):
    with pytest.raises(ConfigError, match=rf"^vocab_size is {size}, but .*Write: vocab_size") as e:
        train_pieces(TEXTS, kind, size)
    fitting = int(re.search(r"Write: vocab_size: (\d+)$", str(e.value))[1])
    assert len(train_pieces(TEXTS, kind, fitting).tokens) == fitting


def test_a_text_of_any_length_counts():
    long = " ".join(["word"] * 2000)
    tokenizer = train_pieces([long + " zebra"], "bpe", 20)
    assert {"z", "b"} <= set("".join(tokenizer.tokens))
    assert UNKNOWN not in tokenizer.encode("zebra")


def test_a_missing_or_damaged_tokenizer_tells_how_to_make_it(tmp_path):
    with pytest.raises(ConfigError, match=r"no tokenizer in .*--stages train_tokenizer"):
        load_tokenizer(tmp_path)
    make("bpe").save(tmp_path)
    (tmp_path / "bpe.model").write_bytes(b"other")
    with pytest.raises(ConfigError, match=r"bpe\.model is not the one"):
        load_tokenizer(tmp_path)
    (tmp_path / "bpe.model").unlink()
    with pytest.raises(ConfigError, match=r"bpe\.model is missing.*train_tokenizer"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": 9}')
    with pytest.raises(ConfigError, match="version 9, and this is version 1"):
        load_tokenizer(tmp_path)


def test_tokens_of_another_order_are_refused():
    with pytest.raises(ConfigError, match="must begin with <blank>, <unk>"):
        CharacterTokenizer(["a", "b", "c"])
    with pytest.raises(ConfigError, match=r"'a' twice.*no_tags"):
        CharacterTokenizer(["<blank>", "<unk>", "a", "a", "<sos/eos>"])


def test_it_replaces_another_kind(tmp_path):
    make("bpe").save(tmp_path)
    make("characters").save(tmp_path)
    assert isinstance(load_tokenizer(tmp_path), CharacterTokenizer)
    assert not (tmp_path / "bpe.model").exists()
    make("unigram").save(tmp_path)
    assert isinstance(load_tokenizer(tmp_path), SentencePieceTokenizer)


def test_loading_needs_no_torch(tmp_path):
    make("unigram").save(tmp_path)
    code = (
        "import sys; from espnet3.components.text.tokenizer import load_tokenizer; "
        f"load_tokenizer({str(tmp_path)!r}); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_single_words_have_a_blank_for_a_lexicon_as_well():
    assert CharacterTokenizer.from_texts(["one", "two"]).tokens[2] == "<space>"
