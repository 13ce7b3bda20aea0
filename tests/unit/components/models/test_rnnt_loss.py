"""The transducer loss: against the sum over all paths, with the right gradient."""

import itertools
import math

import pytest
import torch

from espnet3.components.models.losses import rnnt_loss
from tests.helpers.exhaustive import few


def loss_by_paths(logits, tokens):
    """Return the loss of one utterance by adding up all ways through the lattice."""
    log_probs = logits.log_softmax(-1)
    n_frames, n_tokens = len(logits), len(tokens)
    total = -math.inf
    # A path is told by the frame at which each token comes; frames never go back.
    for frames in itertools.combinations_with_replacement(range(n_frames), n_tokens):
        score = sum(float(log_probs[t, u, tokens[u]]) for u, t in enumerate(frames))
        for t in range(n_frames):
            score += float(log_probs[t, sum(frame <= t for frame in frames), 0])
        total = max(total, score) + math.log1p(math.exp(-abs(total - score)))
    return -total


def random_batch(lengths, tokens_lengths, n_tokens=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (len(lengths), max(lengths), max(tokens_lengths) + 1, n_tokens)
    logits = 2 * torch.randn(shape, generator=generator, dtype=torch.float64)
    tokens = torch.randint(1, n_tokens, (shape[0], shape[2] - 1), generator=generator)
    return logits, torch.tensor(lengths), tokens, torch.tensor(tokens_lengths)


@pytest.mark.parametrize("seed", few(range(5), 2))
def test_it_is_the_sum_over_all_paths(seed):
    logits, lengths, tokens, n_tokens = random_batch([6, 1, 4, 6, 2], [3, 2, 4, 0, 4], seed=seed)
    found = rnnt_loss(logits, lengths, tokens, n_tokens)
    for i, loss in enumerate(found):
        one = logits[i, : lengths[i], : n_tokens[i] + 1]
        assert float(loss) == pytest.approx(loss_by_paths(one, tokens[i, : n_tokens[i]].tolist()))


def test_texts_without_tokens_are_blanks_only():
    logits, lengths, tokens, n_tokens = random_batch([3, 5], [0, 0])
    expected = -logits.log_softmax(-1)[:, :, 0, 0]
    found = rnnt_loss(logits, lengths, tokens, n_tokens)
    torch.testing.assert_close(found, torch.stack([expected[0, :3].sum(), expected[1].sum()]))


def test_the_gradient_is_right():
    logits, *others = random_batch([4, 2, 3], [2, 3, 0])
    assert torch.autograd.gradcheck(lambda x: rnnt_loss(x, *others), logits.requires_grad_())


def test_padding_has_no_influence_and_no_gradient():
    logits, lengths, tokens, n_tokens = random_batch([7, 3], [2, 4])
    logits.requires_grad_()
    found = rnnt_loss(logits, lengths, tokens, n_tokens)
    found.sum().backward()
    assert logits.grad is not None
    assert logits.grad[1, 3:].abs().max() == 0
    assert logits.grad[0, :, 3:].abs().max() == 0
    alone = rnnt_loss(logits[1:, :3], lengths[1:], tokens[1:], n_tokens[1:])
    torch.testing.assert_close(found[1:], alone)


def test_an_utterance_without_frames_costs_nothing():
    logits, _, tokens, n_tokens = random_batch([3, 3], [2, 2])
    logits.requires_grad_()
    found = rnnt_loss(logits, torch.tensor([3, 0]), tokens, n_tokens)
    found.sum().backward()
    assert found[1] == 0
    assert logits.grad is not None
    assert logits.grad[1].abs().max() == 0
    assert torch.isfinite(logits.grad).all()


def test_long_utterances_stay_finite_in_single_and_half_precision():
    logits, lengths, tokens, n_tokens = random_batch([150, 90], [40, 30], n_tokens=30)
    exact = rnnt_loss(logits, lengths, tokens, n_tokens)
    single = logits.float().requires_grad_()
    loss = rnnt_loss(single, lengths, tokens, n_tokens)
    torch.testing.assert_close(loss.double(), exact, rtol=1e-5, atol=0)
    loss.sum().backward()
    assert single.grad is not None
    assert torch.isfinite(single.grad).all()
    half = rnnt_loss(logits.bfloat16(), lengths, tokens, n_tokens)
    torch.testing.assert_close(half.double(), exact, rtol=0.02, atol=0)
