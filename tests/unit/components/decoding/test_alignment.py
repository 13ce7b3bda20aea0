"""Forced alignment: the best of all paths, and words at the right time."""

import itertools
import math

import numpy as np
import pytest
import torch

from espnet3.components.data.errors import DataError
from espnet3.components.decoding.alignment import align_ctc, frames_needed, word_times
from espnet3.components.text.tokenizer import CharacterTokenizer, train_pieces
from tests.helpers.exhaustive import pairs


def best_path(log_probs, tokens):
    """Return the most likely path that collapses to the tokens, by trying all."""
    n_frames, n_tokens = log_probs.shape
    paths = [
        path
        for path in itertools.product(range(n_tokens), repeat=n_frames)
        if tuple(k for k, _ in itertools.groupby(path) if k) == tuple(tokens)
    ]
    return max(paths, key=lambda path: sum(log_probs[t, k] for t, k in enumerate(path)))


def spans_of(path):
    spans, t = [], 0
    for token, run in itertools.groupby(path):
        n = len(list(run))
        if token:
            spans.append((t, t + n))
        t += n
    return spans


@pytest.mark.parametrize(
    ("tokens", "n_frames"), pairs([(), (1,), (1, 2), (2, 2), (1, 1, 2), (3, 1, 3)], [4, 6])
)
def test_it_is_the_best_of_all_paths(tokens, n_frames):
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        log_probs = (2 * torch.randn(n_frames, 4, generator=generator)).log_softmax(-1)
        expected = spans_of(best_path(log_probs.numpy(), tokens))
        found = align_ctc(log_probs, tokens)
        assert [(start, end) for start, end, _ in found] == expected
        for (start, end, score), token in zip(found, tokens, strict=True):
            assert score == pytest.approx(float(log_probs[start:end, token].mean()), abs=1e-6)


def test_long_alignments_are_in_order():
    log_probs = torch.randn(2000, 30).log_softmax(-1)
    tokens = torch.randint(1, 30, (400,)).tolist()
    spans = align_ctc(log_probs, tokens)
    assert len(spans) == 400
    assert all(start < end for start, end, _ in spans)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
    assert spans[-1][1] <= 2000


def test_just_enough_frames_and_one_too_few():
    assert frames_needed([1, 1, 2]) == 4
    log_probs = np.log(np.full((4, 3), 1 / 3))
    assert [span[:2] for span in align_ctc(log_probs, [1, 1, 2])] == [(0, 1), (2, 3), (3, 4)]
    with pytest.raises(DataError, match="need 4 frames, but the utterance has 3"):
        align_ctc(log_probs[:3], [1, 1, 2])


def test_nothing_to_align():
    assert align_ctc(np.zeros((0, 3)), []) == []
    assert align_ctc(np.zeros((5, 3)), []) == []


def test_impossible_frames_still_have_a_path():
    spans = align_ctc(np.full((3, 3), -np.inf), [1, 2])
    assert len(spans) == 2
    assert spans[0][1] <= spans[1][0]


def certain(path, n_tokens, prob=0.9):
    probs = np.full((len(path), n_tokens), (1 - prob) / (n_tokens - 1))
    probs[np.arange(len(path)), path] = prob
    return np.log(probs)


def test_words_of_characters_have_times_and_confidence():
    tokenizer = CharacterTokenizer.from_texts(["a cab"])
    space, a, b, c = (tokenizer.tokens.index(name) for name in ("<space>", "a", "b", "c"))
    log_probs = certain([0, a, a, 0, space, c, a, b, 0, 0], len(tokenizer.tokens))
    words = word_times(log_probs, [a, space, c, a, b], tokenizer, 0.04)
    assert [word.word for word in words] == ["a", "cab"]
    assert [(word.start, word.end) for word in words] == [
        (pytest.approx(0.04), pytest.approx(0.12)),
        (pytest.approx(0.20), pytest.approx(0.32)),
    ]
    assert all(word.confidence == pytest.approx(0.9) for word in words)


def test_spaces_at_the_ends_and_unknown_tokens_are_no_words():
    tokenizer = CharacterTokenizer.from_texts(["a cab"])
    space, a = tokenizer.tokens.index("<space>"), tokenizer.tokens.index("a")
    tokens = [space, a, space, space, 1, space]
    log_probs = np.zeros((12, len(tokenizer.tokens)))
    assert [word.word for word in word_times(log_probs, tokens, tokenizer, 1.0)] == ["a"]


@pytest.mark.parametrize("text", ["one two one", "two", ""])
def test_words_of_pieces(text):
    tokenizer = train_pieces(["one two three", "two one"], "bpe", 14)
    tokens = tokenizer.encode(text)
    words = word_times(np.zeros((30, len(tokenizer.tokens))), tokens, tokenizer, 0.5)
    assert [word.word for word in words] == text.split()


def test_too_few_frames_give_no_words():
    tokenizer = CharacterTokenizer.from_texts(["a cab"])
    log_probs = np.zeros((2, len(tokenizer.tokens)))
    assert word_times(log_probs, tokenizer.encode("a cab"), tokenizer, math.pi) == []
