"""Greedy CTC: the best path, collapsed, without the frames of padding."""

import pytest
import torch

from espnet3.components.decoding.ctc_greedy import GreedyCTC, greedy_tokens


class Posteriors:
    """A model whose encoder already gives posteriors."""

    def ctc_log_probs(self, encoded):
        return encoded


def decode(log_probs, lengths):
    return GreedyCTC()(Posteriors(), log_probs, torch.tensor(lengths))


def path_of(ids, n_tokens=4):
    return torch.nn.functional.one_hot(torch.tensor([ids]), n_tokens).float().log_softmax(-1)


@pytest.mark.parametrize(
    ("path", "tokens"),
    [
        ([0, 0, 0], ()),
        ([1, 1, 1], (1,)),
        ([1, 0, 1], (1, 1)),
        ([0, 1, 1, 2, 0, 2, 3, 3], (1, 2, 2, 3)),
    ],
)
def test_repeats_and_blanks_go(path, tokens):
    assert decode(path_of(path), [len(path)])[0][0].tokens == tokens


def test_frames_of_padding_do_not_count():
    assert decode(path_of([1, 2, 3, 3]), [2])[0][0].tokens == (1, 2)
    assert decode(path_of([1, 2]), [0])[0][0].tokens == ()


def test_the_score_is_that_of_the_path():
    log_probs = torch.randn(1, 6, 5).log_softmax(-1)
    hypothesis = decode(log_probs, [6])[0][0]
    assert hypothesis.score == pytest.approx(float(log_probs.max(-1).values.sum()), abs=1e-5)
    assert hypothesis.scores == {"ctc": hypothesis.score}


def test_a_batch_gives_what_its_utterances_give_alone():
    log_probs, lengths = torch.randn(5, 33, 7).log_softmax(-1), [33, 1, 17, 0, 32]
    alone = [decode(row[None, :n], [n])[0] for row, n in zip(log_probs, lengths, strict=True)]
    assert decode(log_probs, lengths) == alone


def test_logits_do_as_well():
    logits = torch.randn(2, 9, 5) * 3 + 1
    lengths = torch.tensor([9, 5])
    assert greedy_tokens(logits, lengths) == greedy_tokens(logits.log_softmax(-1), lengths)
