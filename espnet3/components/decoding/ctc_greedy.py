"""Greedy CTC decoding: the most likely symbol of each frame, repeats and blanks removed."""

from typing import Any

import torch
from torch import Tensor

from espnet3.components.decoding.hypothesis import Hypothesis
from espnet3.components.text.tokenizer import BLANK


class GreedyCTC:
    """Returns the collapsed best path of each utterance, as one hypothesis.

    Its score is the log-probability of that one path, which is at most that of the tokens.
    """

    def __call__(self, model: Any, encoded: Tensor, lengths: Tensor) -> list[list[Hypothesis]]:
        """Decode a batch.

        Args:
            model: has `ctc_log_probs(encoded) -> [B, T, V]`.
            encoded: [B, T, D], padded at the end.
            lengths: frames of each utterance.
        """
        with torch.inference_mode():
            return greedy_hypotheses(model.ctc_log_probs(encoded), lengths)


def greedy_hypotheses(log_probs: Tensor, lengths: Tensor) -> list[list[Hypothesis]]:
    """Return the best path's hypothesis of each utterance of `log_probs` [B, T, V]."""
    best, _ = log_probs.max(dim=-1)
    # Half precision would lose digits in a sum over thousands of frames.
    values = best.double().cpu()
    # Each utterance is summed alone: the padding of a batch would change the order of additions.
    sums = [float(row[:n].sum()) for row, n in zip(values, lengths.tolist(), strict=True)]
    return [
        [Hypothesis(tuple(tokens), score, {"ctc": score})]
        for tokens, score in zip(greedy_tokens(log_probs, lengths), sums, strict=True)
    ]


def greedy_tokens(log_probs: Tensor, lengths: Tensor) -> list[list[int]]:
    """Return the collapsed best path of each utterance; logits do as well as log-probabilities.

    Example:
        >>> path = torch.tensor([[1, 1, 0, 1, 2, 2]])
        >>> greedy_tokens(torch.nn.functional.one_hot(path).float(), torch.tensor([5]))
        [[1, 1, 2]]
    """
    ids = log_probs.argmax(dim=-1)
    frames = torch.arange(ids.shape[1], device=ids.device)
    is_kept = (ids != BLANK) & (frames < lengths.to(ids.device)[:, None])
    # Compared while blanks are still there: one between two equal tokens keeps both.
    is_kept[:, 1:] &= ids[:, 1:] != ids[:, :-1]
    # One transfer for the batch instead of one for each utterance.
    ids, is_kept = ids.cpu(), is_kept.cpu()
    return [row[kept].tolist() for row, kept in zip(ids, is_kept, strict=True)]
