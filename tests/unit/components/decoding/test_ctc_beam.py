"""CTC prefix beam search: against enumeration of all paths, and against flashlight-text."""

import itertools
import math

import numpy as np
import pytest
import torch

from espnet3.components.decoding.ctc_beam import PrefixBeamCTC
from espnet3.components.decoding.ctc_greedy import greedy_hypotheses
from espnet3.components.decoding.ngram import NGram
from espnet3.components.decoding.ngram_estimate import train_ngram
from espnet3.components.text.tokenizer import CharacterTokenizer
from espnet3.errors import ConfigError
from tests.helpers.exhaustive import few

WIDE = 800


def posteriors(*shape, seed=0, sharpness=2.0):
    generator = torch.Generator().manual_seed(seed)
    return (sharpness * torch.randn(*shape, generator=generator)).log_softmax(-1)


def collapse(path):
    return tuple(token for token, _ in itertools.groupby(path) if token != 0)


def all_scores(log_probs):
    """Return the log-probability of each token sequence, by all paths."""
    found = {}
    for path in itertools.product(range(log_probs.shape[1]), repeat=len(log_probs)):
        score = sum(float(log_probs[t, token]) for t, token in enumerate(path))
        tokens = collapse(path)
        found[tokens] = float(np.logaddexp(found.get(tokens, -math.inf), score))
    return found


def decode(log_probs, lengths=None, **options):
    n_frames = [log_probs.shape[1]] * len(log_probs) if lengths is None else lengths
    return PrefixBeamCTC(**options).decode(log_probs, torch.tensor(n_frames))


@pytest.mark.parametrize("seed", few(range(10), 3))
def test_a_wide_beam_finds_all_sums_over_paths(seed):
    log_probs = posteriors(5, 4, seed=seed)
    expected = sorted(all_scores(log_probs).items(), key=lambda item: -item[1])
    found = decode(log_probs[None], beam_size=WIDE, n_best=WIDE)[0]
    assert [hypothesis.tokens for hypothesis in found] == [tokens for tokens, _ in expected]
    for hypothesis, (_, score) in zip(found, expected, strict=True):
        assert hypothesis.score == pytest.approx(score, abs=1e-5)


def flashlight(log_probs, beam_size):
    decoder = pytest.importorskip("flashlight.lib.text.decoder")
    n_tokens = log_probs.shape[1]
    options = decoder.LexiconFreeDecoderOptions(
        beam_size, n_tokens + 1, 1e9, 0.0, 0.0, True, decoder.CriterionType.CTC
    )
    # It begins and ends with silence: an impossible token of its own keeps that out of the way.
    search = decoder.LexiconFreeDecoder(options, decoder.ZeroLM(), n_tokens, 0, [])
    padded = np.pad(log_probs.numpy(), ((0, 0), (0, 1)), constant_values=-1e30)
    emissions = np.ascontiguousarray(padded, dtype=np.float32)
    best = search.decode(emissions.ctypes.data, *emissions.shape)[0]
    return collapse(best.tokens[1:-1]), best.score


@pytest.mark.parametrize("beam_size", few([1, 50, 2, 10], 2))
def test_it_agrees_with_flashlight(beam_size):
    generator = np.random.default_rng(beam_size)
    for seed in range(60):
        n_frames, n_tokens = generator.integers(1, 50), generator.integers(2, 20)
        log_probs = posteriors(n_frames, n_tokens, seed=seed, sharpness=generator.uniform(0.5, 4))
        tokens, score = flashlight(log_probs, beam_size)
        best = decode(log_probs[None], beam_size=beam_size)[0][0]
        assert best.tokens == tokens
        assert best.score == pytest.approx(score, abs=1e-3)


def test_a_beam_of_1_is_greedy():
    log_probs, lengths = posteriors(40, 30, 12), torch.randint(0, 31, (40,))
    found = decode(log_probs, lengths.tolist(), beam_size=1)
    for mine, greedy in zip(found, greedy_hypotheses(log_probs, lengths), strict=True):
        assert mine[0].tokens == greedy[0].tokens
        assert mine[0].score == pytest.approx(greedy[0].score, abs=1e-9)


@pytest.mark.parametrize("token_limit", [3, 30])
def test_a_batch_gives_exactly_what_its_utterances_give_alone(token_limit, tokenizer, ngram):
    log_probs = posteriors(9, 40, len(tokenizer.tokens))
    lengths = [40, 3, 0, 17, 40, 1, 39, 22, 8]
    options = {"beam_size": 6, "n_best": 4, "token_limit": token_limit} | ngram
    alone = [
        decode(row[None, :n], [n], **options)[0] for row, n in zip(log_probs, lengths, strict=True)
    ]
    assert decode(log_probs, lengths, **options) == alone


def test_n_best_are_different_and_sorted():
    for utterance in decode(posteriors(4, 25, 8), beam_size=12, n_best=12):
        scores = [hypothesis.score for hypothesis in utterance]
        assert scores == sorted(scores, reverse=True)
        assert len({hypothesis.tokens for hypothesis in utterance}) == len(utterance) > 1


def test_tokens_beyond_the_limit_cannot_occur_in_a_frame():
    log_probs = torch.tensor([[[0.1, 0.5, 0.3, 0.1], [0.1, 0.1, 0.2, 0.6]]]).log()
    found = decode(log_probs, beam_size=WIDE, n_best=WIDE, token_limit=1)[0]
    assert {hypothesis.tokens for hypothesis in found} == {(), (1,), (3,), (1, 3)}


def test_no_frames_give_the_empty_hypothesis():
    assert decode(posteriors(1, 0, 4))[0][0].tokens == ()
    assert decode(posteriors(1, 0, 4))[0][0].score == 0.0
    assert decode(posteriors(0, 3, 4)) == []


@pytest.fixture
def tokenizer():
    # Without a blank: the fewer tokens, the fewer texts there are to go through.
    return CharacterTokenizer(("<blank>", "<unk>", *"abc", "<sos/eos>"))


@pytest.fixture
def ngram(tokenizer, awkward):
    tokenizer.save(awkward / "tokenizer")
    texts = ["abc", "abca", "bca", "cab", "ab", "abcab", "ca"]
    path = train_ngram(texts, 3, awkward / "tokens.arpa", tokenizer=awkward / "tokenizer")
    return {"ngram": path, "tokenizer": awkward / "tokenizer", "ngram_weight": 0.7}


def test_the_ngram_counts_with_its_weight(tokenizer, ngram):
    log_probs = posteriors(4, len(tokenizer.tokens), seed=3)
    model = NGram.read(ngram["ngram"])
    expected = {}
    for tokens, score in all_scores(log_probs).items():
        words = [tokenizer.tokens[token] for token in tokens]
        expected[tokens] = score + 0.7 * model.log_prob(words) + 0.4 * len(tokens)
    found = decode(log_probs[None], beam_size=WIDE, n_best=20, token_bonus=0.4, **ngram)[0]
    best = sorted(expected, key=lambda tokens: -expected[tokens])[:20]
    assert [hypothesis.tokens for hypothesis in found] == best
    for hypothesis in found:
        assert hypothesis.score == pytest.approx(expected[hypothesis.tokens], abs=1e-5)
        parts = hypothesis.scores["ctc"] + 0.7 * hypothesis.scores["ngram"]
        assert hypothesis.score == pytest.approx(parts + 0.4 * len(hypothesis.tokens), abs=1e-9)


def test_the_ngram_decides_where_the_posteriors_do_not(tokenizer, ngram):
    a, b, c = (tokenizer.tokens.index(letter) for letter in "abc")
    probs = torch.full((1, 3, len(tokenizer.tokens)), 1e-4)
    probs[0, 0, a] = 1.0
    probs[0, 1, [b, c]] = 0.5
    probs[0, 2, c] = 1.0
    assert decode(probs.log(), **ngram)[0][0].tokens == (a, b, c)


def test_an_ngram_without_tokenizer_names_the_line_to_add(ngram):
    with pytest.raises(ConfigError, match=r'tokenizer: "\$\{tokenizer.save_path\}"'):
        PrefixBeamCTC(ngram=ngram["ngram"])


@pytest.mark.parametrize(
    ("options", "message"), [({"beam_size": 0}, "beam_size is 0"), ({"token_bonus": 1}, "Remove")]
)
def test_settings_out_of_range_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        PrefixBeamCTC(**options)


def test_threads_may_share_a_decoder_with_an_ngram(tokenizer, ngram, in_threads):
    log_probs = posteriors(6, 40, len(tokenizer.tokens))
    wanted = decode(log_probs, beam_size=8, **ngram)
    for _ in range(3):
        decoder = PrefixBeamCTC(8, **ngram)
        found = in_threads(lambda d=decoder: d.decode(log_probs, torch.full((6,), 40)))
        assert found == [wanted] * 4
