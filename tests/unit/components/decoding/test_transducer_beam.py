"""Decoding of transducers: greedy step by step, and a beam that finds more."""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch

from espnet3.components.decoding.transducer_beam import TransducerBeam
from espnet3.components.decoding.transducer_greedy import TransducerGreedy
from espnet3.components.models.transducer import Joint, LSTMPrediction, StatelessPrediction
from espnet3.errors import ConfigError

N_TOKENS = 5


@pytest.fixture(params=[LSTMPrediction, StatelessPrediction])
def model(request):
    torch.manual_seed(0)
    prediction = request.param(N_TOKENS, 6).eval().double()
    joint = Joint(4, 6, N_TOKENS, 8).double()
    with torch.no_grad():
        joint.output.weight *= 8
        joint.output.bias[0] += 1.0  # else random models never end a frame
    return SimpleNamespace(prediction=prediction, joint=joint)


def speech(n_utterances, n_frames):
    generator = torch.Generator().manual_seed(1)
    return 3 * torch.randn(n_utterances, n_frames, 4, generator=generator).double()


def greedy_by_hand(model, encoded, limit):
    output, state = model.prediction.step(torch.tensor([0]), model.prediction.start(1))
    tokens, score = [], 0.0
    for frame in encoded:
        for _ in range(limit):
            log_probs = model.joint.pair(frame[None], output).log_softmax(-1)[0]
            symbol = int(log_probs.argmax())
            score += float(log_probs[symbol])
            if symbol == 0:
                break
            tokens.append(symbol)
            output, state = model.prediction.step(torch.tensor([symbol]), state)
    return tuple(tokens), score


@pytest.mark.parametrize("limit", [1, 3])
def test_greedy_takes_the_best_symbol_at_each_step(model, limit):
    encoded, lengths = speech(6, 9), [9, 0, 4, 9, 1, 8]
    with torch.inference_mode():
        found = TransducerGreedy(limit)(model, encoded, torch.tensor(lengths))
        for nbest, frames, n in zip(found, encoded, lengths, strict=True):
            tokens, score = greedy_by_hand(model, frames[:n], limit)
            assert nbest[0].tokens == tokens
            assert nbest[0].score == pytest.approx(score)
    assert len({nbest[0].tokens for nbest in found}) > 3


@pytest.mark.parametrize("limit", [1, 3])
def test_a_beam_of_1_is_greedy(model, limit):
    encoded, lengths = speech(8, 12), torch.tensor([12, 3, 0, 7, 12, 11, 1, 5])
    greedy = TransducerGreedy(limit)(model, encoded, lengths)
    beam = TransducerBeam(1, max_tokens_per_frame=limit)(model, encoded, lengths)
    for one, other in zip(greedy, beam, strict=True):
        assert one[0].tokens == other[0].tokens
        assert one[0].score == pytest.approx(other[0].score)


@pytest.mark.parametrize("decoder", [TransducerGreedy(3), TransducerBeam(4, n_best=3)])
def test_a_batch_gives_what_its_utterances_give_alone(model, decoder):
    encoded, lengths = speech(5, 10), [10, 2, 0, 9, 6]
    together = decoder(model, encoded, torch.tensor(lengths))
    for nbest, frames, n in zip(together, encoded, lengths, strict=True):
        alone = decoder(model, frames[None, :n], torch.tensor([n]))[0]
        assert [hypothesis.tokens for hypothesis in nbest] == [h.tokens for h in alone]
        assert [h.score for h in nbest] == pytest.approx([h.score for h in alone])


def probability(model, encoded, tokens, limit):
    """Return the log-probability of tokens by all paths with at most `limit` tokens in a frame."""
    predicted = model.prediction(torch.tensor([[0, *tokens]]))
    log_probs = model.joint(encoded[None], predicted)[0].log_softmax(-1)
    total = -math.inf
    for frames in itertools.combinations_with_replacement(range(len(encoded)), len(tokens)):
        n_in_frame = [frames.count(t) for t in range(len(encoded))]
        if max(n_in_frame, default=0) > limit:
            continue
        score = sum(float(log_probs[t, u, tokens[u]]) for u, t in enumerate(frames))
        for t, n in enumerate(n_in_frame):
            if n < limit:  # a full frame ends without a blank
                score += float(log_probs[t, sum(n_in_frame[: t + 1]), 0])
        total = max(total, score) + math.log1p(math.exp(-abs(total - score)))
    return total


@torch.inference_mode()
def test_a_wide_beam_finds_all_sums_over_paths(model):
    encoded, limit = speech(1, 3), 2
    nbest = TransducerBeam(5000, n_best=50, max_tokens_per_frame=limit)(
        model, encoded, torch.tensor([3])
    )[0]
    assert len({hypothesis.tokens for hypothesis in nbest}) == 50
    for hypothesis in nbest:
        expected = probability(model, encoded[0], hypothesis.tokens, limit)
        assert hypothesis.score == pytest.approx(expected)
    short = [p for n in range(3) for p in itertools.product(range(1, N_TOKENS), repeat=n)]
    best_short = max(probability(model, encoded[0], tokens, limit) for tokens in short)
    assert nbest[0].score >= best_short - 1e-9


def test_a_wider_beam_finds_better_hypotheses_and_sorts_them(model):
    encoded, lengths = speech(8, 12), torch.full((8,), 12)
    narrow = TransducerBeam(1)(model, encoded, lengths)
    wide = TransducerBeam(8, n_best=8)(model, encoded, lengths)
    assert sum(w[0].score for w in wide) > sum(n[0].score for n in narrow)
    for nbest in wide:
        assert len({hypothesis.tokens for hypothesis in nbest}) == len(nbest) > 1
        scores = [hypothesis.score for hypothesis in nbest]
        assert scores == sorted(scores, reverse=True)


def test_settings_out_of_range_are_refused():
    with pytest.raises(ConfigError, match="max_tokens_per_frame: 5"):
        TransducerGreedy(0)
    with pytest.raises(ConfigError, match="beam_size: 5"):
        TransducerBeam(0)
