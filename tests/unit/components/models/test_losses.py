import itertools
import math

import pytest
import torch

from espnet3.components.models.losses import (
    ctc_loss,
    frames_needed,
    label_smoothing_loss,
    with_ends,
)


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)
    torch.manual_seed(0)


def _collapse(path):
    return [token for token, _ in itertools.groupby(path) if token != 0]


def _summed_paths(log_probs, tokens):
    """Sum the probabilities of all paths that say `tokens`."""
    n_frames, n_tokens = log_probs.shape
    paths = itertools.product(range(n_tokens), repeat=n_frames)
    fitting = [path for path in paths if _collapse(path) == tokens]
    return sum(math.exp(sum(log_probs[t, k].item() for t, k in enumerate(p))) for p in fitting)


def test_ctc_sums_all_paths_and_divides_by_the_tokens_of_each_utterance():
    log_probs = torch.randn(3, 4, 3).log_softmax(-1)
    tokens = torch.tensor([[1, 2], [1, -1], [-1, -1]])
    n_tokens, n_frames = torch.tensor([2, 1, 0]), torch.tensor([4, 3, 2])
    loss, too_short = ctc_loss(log_probs, n_frames, tokens, n_tokens)
    expected = [
        -math.log(_summed_paths(log_probs[i, :n], row)) / max(1, len(row))
        for i, (n, row) in enumerate([(4, [1, 2]), (3, [1]), (2, [])])
    ]
    assert loss.item() == pytest.approx(sum(expected) / 3, rel=1e-5)
    assert not too_short.any()


def test_utterances_without_a_path_are_told_and_left_out():
    logits = torch.randn(3, 3, 4, requires_grad=True)
    tokens = torch.tensor([[1, 2, 3], [1, 2, 2], [1, 2, 3]])
    n_frames = torch.tensor([3, 3, 2])  # the repeated 2 needs a blank, so a fourth frame
    loss, too_short = ctc_loss(logits.log_softmax(-1), n_frames, tokens, torch.tensor([3, 3, 3]))
    assert too_short.tolist() == [False, True, True]
    alone, _ = ctc_loss(logits[:1].log_softmax(-1), n_frames[:1], tokens[:1], torch.tensor([3]))
    torch.testing.assert_close(loss, alone)
    loss.backward()
    assert logits.grad.isfinite().all()
    assert logits.grad[0].any()
    assert not logits.grad[1:].any()


def test_a_batch_of_which_nothing_fits_costs_nothing():
    logits = torch.randn(1, 1, 4, requires_grad=True)
    loss, too_short = ctc_loss(
        logits.log_softmax(-1), torch.tensor([1]), torch.tensor([[1, 2]]), torch.tensor([2])
    )
    loss.backward()
    assert (loss.item(), too_short.tolist()) == (0.0, [True])
    assert not logits.grad.any()


def test_texts_may_all_be_empty():
    log_probs = torch.randn(2, 4, 3).log_softmax(-1)
    n_frames = torch.tensor([4, 2])
    none = torch.zeros(2, 0, dtype=torch.int64), torch.tensor([0, 0])
    loss, too_short = ctc_loss(log_probs, n_frames, *none)
    blanks = -(log_probs[0, :, 0].sum() + log_probs[1, :2, 0].sum()) / 2
    torch.testing.assert_close(loss, blanks)
    assert not too_short.any()


def test_frames_needed_agree_with_the_paths_there_are():
    for tokens in itertools.product((1, 2), repeat=4):
        n_least = frames_needed(torch.tensor([tokens]), torch.tensor([4])).item()
        n_found = next(
            n
            for n in range(4, 9)
            if any(_collapse(p) == list(tokens) for p in itertools.product((0, 1, 2), repeat=n))
        )
        assert n_least == n_found


def test_padding_needs_no_frames():
    tokens = torch.tensor([[3, -1, -1, -1], [3, 3, -1, -1]])
    assert frames_needed(tokens, torch.tensor([1, 2])).tolist() == [1, 3]


def test_cross_entropy_is_a_mean_over_utterances_whatever_the_padding():
    logits = torch.randn(2, 3, 5)
    targets = torch.tensor([[1, 2, 4], [3, -1, -1]])
    loss, accuracy = label_smoothing_loss(logits, targets, torch.tensor([3, 1]), smoothing=0.1)
    log_probs = logits.log_softmax(-1)

    def of(i, t):
        target = log_probs[i, t, targets[i, t]]
        return -(0.9 * target + 0.1 * log_probs[i, t].mean())

    expected = (sum(of(0, t) for t in range(3)) / 3 + of(1, 0)) / 2
    torch.testing.assert_close(loss, expected)
    best = logits.argmax(-1)
    right = (best[0] == targets[0]).float().mean(), (best[1, 0] == 3).float()
    torch.testing.assert_close(accuracy, sum(right) / 2)


def test_an_empty_text_is_an_end_at_once():
    given, said = with_ends(torch.zeros(1, 0, dtype=torch.int64), torch.tensor([0]), end=7)
    assert given.tolist() == said.tolist() == [[7]]
