"""Losses of recognisers, in nats per token, so that they can be added up and compared."""

import torch
from torch import Tensor, nn

from espnet3.components.models.masks import valid_frames, zero_padding


def ctc_loss(
    log_probs: Tensor, lengths: Tensor, tokens: Tensor, tokens_lengths: Tensor, *, blank: int = 0
) -> tuple[Tensor, Tensor]:
    """Return the CTC loss, and which utterances have too few frames for their tokens.

    The loss of an utterance is divided by its number of tokens; the mean of these is over the
    utterances with enough frames. The others have no path, and give no gradient.

    Args:
        log_probs: [batch, frames, n_tokens].
        lengths: Frames of each utterance.
        tokens: [batch, longest], padded with anything.
        tokens_lengths: Tokens of each utterance; 0 is an utterance without speech.
        blank: The id of no token.
    """
    # Padding is -1, which is no token; the loss looks at it where a text is empty.
    targets = zero_padding(tokens, tokens_lengths)
    losses = nn.functional.ctc_loss(
        log_probs.float().transpose(0, 1),
        nn.functional.pad(targets, (0, 1)) if targets.shape[1] == 0 else targets,
        lengths,
        tokens_lengths,
        blank,
        reduction="none",
        zero_infinity=True,
    )
    too_short = lengths.to(losses.device) < frames_needed(targets, tokens_lengths)
    n_fitting = (~too_short).sum().clamp_min(1)
    return (losses / tokens_lengths.clamp_min(1)).sum() / n_fitting, too_short


def frames_needed(tokens: Tensor, tokens_lengths: Tensor) -> Tensor:
    """Return the fewest frames in which CTC can say tokens: a blank parts two equal ones.

    Example:
        >>> frames_needed(torch.tensor([[2, 2, 3]]), torch.tensor([3]))
        tensor([4])
    """
    if tokens.shape[1] < 2:
        return tokens_lengths
    is_repeated = (tokens[:, 1:] == tokens[:, :-1]) & valid_frames(
        tokens_lengths - 1, tokens.shape[1] - 1
    )
    return tokens_lengths + is_repeated.sum(1)


def label_smoothing_loss(
    logits: Tensor, targets: Tensor, lengths: Tensor, *, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return the cross entropy, and the share of targets that have the highest score.

    The loss of an utterance is the mean over its targets; the mean of these is over utterances.

    Args:
        logits: [batch, longest, n_tokens].
        targets: [batch, longest], padded with anything.
        lengths: Targets of each utterance.
        smoothing: The part of a target's probability that is shared by all tokens.
    """
    is_valid = valid_frames(lengths, targets.shape[1])
    targets = targets.masked_fill(~is_valid, 0)
    losses = nn.functional.cross_entropy(
        logits.float().transpose(1, 2), targets, reduction="none", label_smoothing=smoothing
    )
    per_item = losses.masked_fill(~is_valid, 0.0).sum(1) / lengths.clamp_min(1)
    is_right = (logits.argmax(-1) == targets) & is_valid
    return per_item.mean(), (is_right.sum(1) / lengths.clamp_min(1)).mean()


def with_ends(tokens: Tensor, tokens_lengths: Tensor, end: int) -> tuple[Tensor, Tensor]:
    """Return what an attention decoder is given, and what it is to say: `end` first, or last.

    Both are [batch, longest + 1] and have `tokens_lengths + 1` tokens; behind them is `end`.

    Example:
        >>> given, said = with_ends(torch.tensor([[2, 3], [2, -1]]), torch.tensor([2, 1]), end=9)
        >>> given.tolist(), said.tolist()
        ([[9, 2, 3], [9, 2, 9]], [[2, 3, 9], [2, 9, 9]])
    """
    filled = tokens.masked_fill(~valid_frames(tokens_lengths, tokens.shape[1]), end)
    ends = tokens.new_full((len(tokens), 1), end)
    return torch.cat([ends, filled], 1), torch.cat([filled, ends], 1)
