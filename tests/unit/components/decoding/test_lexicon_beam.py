"""CTC beam search with a lexicon: only its words, and those that the n-gram likes."""

import sys

import pytest
import torch

from espnet3.components.decoding.lexicon_beam import LexiconCTC
from espnet3.components.decoding.ngram import NGram
from espnet3.components.decoding.ngram_estimate import train_ngram
from espnet3.components.text.tokenizer import CharacterTokenizer, train_pieces
from espnet3.errors import ConfigError, MissingExtraError

pytest.importorskip("flashlight.lib.text.decoder")

WORDS = ["one", "two", "three", "four", "tree"]
TOKENIZER = CharacterTokenizer.from_texts([" ".join(WORDS)])


@pytest.fixture
def folder(awkward):
    TOKENIZER.save(awkward / "tokenizer")
    return awkward / "tokenizer"


def spoken(text, n_repeats=2, noise=0.01):
    """Return posteriors [1, T, V] of a text whose tokens last some frames, then a blank."""
    ids = [id for token in TOKENIZER.encode(text) for id in [*[token] * n_repeats, 0]]
    probs = torch.full((1, len(ids), len(TOKENIZER.tokens)), noise)
    probs[0, torch.arange(len(ids)), ids] = 1.0
    return probs.log().log_softmax(-1)


def decode(decoder, log_probs):
    found = decoder.decode(log_probs, torch.full((len(log_probs),), log_probs.shape[1]))
    return [[TOKENIZER.decode(hypothesis.tokens) for hypothesis in nbest] for nbest in found]


@pytest.mark.parametrize("text", ["one", "one two three", "three three", "four one two"])
@pytest.mark.parametrize("log_add", [False, True])
def test_words_of_the_lexicon_come_out_as_spoken(folder, text, log_add):
    decoder = LexiconCTC(folder, WORDS, log_add=log_add)
    assert decode(decoder, spoken(text)) == [[text]]


def test_words_outside_the_lexicon_never_come_out(folder):
    decoder = LexiconCTC(folder, WORDS, n_best=5, beam_threshold=1e9)
    assert decode(decoder, spoken("fou"))[0][0] == "four"
    generator = torch.Generator().manual_seed(0)
    random = torch.randn(10, 30, len(TOKENIZER.tokens), generator=generator).log_softmax(-1)
    for nbest in decode(decoder, random):
        assert len(set(nbest)) == len(nbest)
        for text in nbest:
            assert set(text.split()) <= set(WORDS)


def test_the_ngram_decides_where_the_posteriors_do_not(folder, tmp_path):
    ambiguous = torch.logaddexp(spoken("one tree", 1, 1e-4), spoken("one four", 1, 1e-4))
    for favourite in ("four", "tree"):
        texts = [f"one {favourite}"] * 5 + ["tree two four"]
        path = train_ngram(texts, 2, tmp_path / f"{favourite}.arpa")
        decoder = LexiconCTC(folder, ngram=path, lm_weight=1.0)
        assert decode(decoder, ambiguous.log_softmax(-1)) == [[f"one {favourite}"]]


def test_scores_add_up(folder, tmp_path):
    path = train_ngram(["one two", "two one", "one"], 2, tmp_path / "words.arpa")
    decoder = LexiconCTC(folder, ngram=path, n_best=3, lm_weight=0.7, word_score=0.2)
    log_probs = spoken("one two")
    nbest = decoder.decode(log_probs, torch.tensor([log_probs.shape[1]]))[0]
    assert [hypothesis.score for hypothesis in nbest] == sorted(
        (hypothesis.score for hypothesis in nbest), reverse=True
    )
    for hypothesis in nbest:
        words = TOKENIZER.decode(hypothesis.tokens).split()
        assert hypothesis.scores["ngram"] == NGram.read(path).log_prob(words)
        parts = hypothesis.scores["ctc"] + 0.7 * hypothesis.scores["ngram"] + 0.2 * len(words)
        assert hypothesis.score == pytest.approx(parts, abs=1e-4)


def test_a_wider_beam_is_never_worse_in_score(folder):
    log_probs = torch.randn(5, 40, len(TOKENIZER.tokens)).log_softmax(-1)
    lengths = torch.full((5,), 40)
    narrow = LexiconCTC(folder, WORDS, beam_size=5).decode(log_probs, lengths)
    wide = LexiconCTC(folder, WORDS, beam_size=500).decode(log_probs, lengths)
    assert all(w[0].score >= n[0].score for n, w in zip(narrow, wide, strict=True))
    assert any(w[0].score > n[0].score for n, w in zip(narrow, wide, strict=True))


def test_a_batch_gives_what_its_utterances_give_alone(folder, tmp_path):
    path = train_ngram(["one two", "two three four", "tree"], 3, tmp_path / "words.arpa")
    decoder = LexiconCTC(folder, ngram=path, n_best=4)
    log_probs = torch.randn(6, 30, len(TOKENIZER.tokens)).log_softmax(-1)
    lengths = [30, 0, 4, 29, 12, 1]
    alone = [
        decoder.decode(row[None, :n], torch.tensor([n]))[0]
        for row, n in zip(log_probs, lengths, strict=True)
    ]
    assert decoder.decode(log_probs, torch.tensor(lengths)) == alone


def test_a_lexicon_file_has_a_word_a_line(folder, awkward):
    (awkward / "words.txt").write_text("one o n e\ntwo t w o\n\none\n")
    assert LexiconCTC(folder, awkward / "words.txt").words == ("one", "two")
    (awkward / "windows.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    assert LexiconCTC(folder, awkward / "windows.txt").words == ("one", "two")


def test_what_is_wrong_is_refused_with_the_way_out(folder, tmp_path):
    with pytest.raises(ConfigError, match=r"lexicon: data/words.txt"):
        LexiconCTC(folder)
    with pytest.raises(ConfigError, match=r"'zebra' of the lexicon.*Remove it"):
        LexiconCTC(folder, ["one", "zebra"])
    for name in ("beam_size", "n_best", "beam_size_token"):
        with pytest.raises(ConfigError, match=f"{name}: 50"):
            LexiconCTC(folder, WORDS, **{name: 0})
    with pytest.raises(ConfigError, match=r"has False.*lexicon: \[\"false\", ...\]"):
        LexiconCTC(folder, ["one", False])
    (tmp_path / "latin.txt").write_bytes("één".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"not in UTF-8.*iconv"):
        LexiconCTC(folder, tmp_path / "latin.txt")
    with pytest.raises(ConfigError, match="does not exist"):
        LexiconCTC(folder, tmp_path / "missing.txt")
    train_pieces(["one two three"] * 3, "unigram", 12).save(tmp_path / "pieces")
    with pytest.raises(ConfigError, match="PrefixBeamCTC"):
        LexiconCTC(tmp_path / "pieces", WORDS)


def test_without_the_package_the_line_that_installs_it_is_told(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "flashlight.lib.text", None)
    with pytest.raises(MissingExtraError, match=r"\.\[ngram\]"):
        LexiconCTC(folder, WORDS)


def test_threads_may_share_a_decoder(folder, tmp_path, in_threads):
    path = train_ngram(["one two", "two three four", "tree"], 3, tmp_path / "words.arpa")
    decoder = LexiconCTC(folder, ngram=path)
    log_probs = torch.randn(1, 60, len(TOKENIZER.tokens)).log_softmax(-1)
    wanted = decode(decoder, log_probs)
    assert (
        in_threads(lambda: [decode(decoder, log_probs) for _ in range(10)]) == [[wanted] * 10] * 4
    )
