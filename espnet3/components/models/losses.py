"""Losses of recognisers, in nats per token, so that they can be added up and compared."""

from typing import Any

import torch
from torch import Tensor, nn

from espnet3.components.models.frames import valid_frames, zero_padding


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
        # torch has no CTC loss in half precision.
        log_probs.float().transpose(0, 1),
        nn.functional.pad(targets, (0, 1)) if targets.shape[1] == 0 else targets,
        lengths,
        tokens_lengths,
        blank,
        reduction="none",
        zero_infinity=True,
    )
    too_short = lengths.to(losses.device) < frames_needed(targets, tokens_lengths)
    # Where none fits, the loss is to be 0 and not NaN.
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
    # Padding may be -1, which cross_entropy refuses as a class.
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


_IMPOSSIBLE = float("-inf")


# Our own, because no maintained one that runs on a CPU is at hand: torchaudio's wheels beside
# current PyTorch need CUDA, warp-rnnt is for CUDA, and warprnnt-numba calls itself experimental.
def rnnt_loss(
    logits: Tensor, lengths: Tensor, tokens: Tensor, tokens_lengths: Tensor, *, blank: int = 0
) -> Tensor:
    """Return the negative log-likelihood of each utterance, in nats.

    The sums over paths go by anti-diagonals of the lattice, T + U steps of a few operations each.
    Memory: the lattice takes some arrays [B, T, U + 1], but the logits and their gradient are
    [B, T, U + 1, V]. With 4 bytes a number, 8 utterances of 250 frames, 50 tokens and a vocabulary
    of 500 take 0.2 GB for each of the two: keep batches and vocabularies small.

    Args:
        logits: [B, T, U + 1, V], not normalised, of the joint network.
        lengths: frames of each utterance; without any, its loss is 0.
        tokens: [B, U], padded with anything that is a token.
        tokens_lengths: tokens of each utterance.
        blank: id of what moves on to the next frame.
    """
    values = logits if logits.dtype == torch.float64 else logits.float()
    # Not log_softmax, as large as the logits: of each row only two entries are needed.
    total = values.logsumexp(dim=-1)
    blanks = values[..., blank] - total
    chosen = tokens[:, None, :, None].expand(-1, values.shape[1], -1, 1)
    emits = values[:, :, :-1].gather(-1, chosen).squeeze(-1) - total[:, :, :-1]
    # Behind the last token nothing is emitted; the column keeps all arrays of one shape.
    emits = torch.nn.functional.pad(emits, (0, 1), value=_IMPOSSIBLE)
    losses: Tensor = _Lattice.apply(
        blanks, emits, lengths.to(logits.device), tokens_lengths.to(logits.device)
    )  # type: ignore[no-untyped-call]
    return losses


class _Lattice(torch.autograd.Function):
    """Sums over all paths through [T, U + 1], with the gradient by forward and backward sums.

    Rows of the skewed arrays are anti-diagonals: place (t, u) is at row t + u, column u.
    """

    @staticmethod
    def forward(
        ctx: Any, blanks: Tensor, emits: Tensor, lengths: Tensor, tokens_lengths: Tensor
    ) -> Tensor:
        """Return the losses [B]."""
        frames = torch.arange(blanks.shape[1], device=blanks.device)
        # Else a path could leave the last frame, emit there, and come to the end all the same.
        is_padding = (frames >= lengths[:, None])[:, :, None]
        blank = _skewed(blanks.masked_fill(is_padding, _IMPOSSIBLE))
        emit = _skewed(emits.masked_fill(is_padding, _IMPOSSIBLE))
        before = _forward_sums(blank, emit)
        rows = torch.arange(len(blank), device=blank.device)
        end = (lengths - 1).clamp_min(0) + tokens_lengths
        log_probs = before[rows, end, tokens_lengths] + blank[rows, end, tokens_lengths]
        log_probs = torch.where(lengths > 0, log_probs, torch.zeros_like(log_probs))
        ctx.save_for_backward(blank, emit, before, log_probs, lengths, end, tokens_lengths)
        return -log_probs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Return the gradients of the two kinds of steps."""
        blank, emit, before, log_probs, lengths, end, tokens_lengths = ctx.saved_tensors
        after_blank, after_emit = _backward_sums(blank, emit, end, tokens_lengths)
        weight = torch.where(lengths > 0, -gradients[0], torch.zeros_like(log_probs))
        reached = before - log_probs[:, None, None]
        n_frames = blank.shape[1] - blank.shape[2] + 1
        d_blank = (reached + blank + after_blank).exp() * weight[:, None, None]
        d_emit = (reached + emit + after_emit).exp() * weight[:, None, None]
        return _straight(d_blank, n_frames), _straight(d_emit, n_frames), None, None


def _skewed(values: Tensor) -> Tensor:
    """Return [B, T + U, U + 1] of [B, T, U + 1]."""
    n_frames, n_columns = values.shape[1:]
    row = torch.arange(n_frames + n_columns - 1, device=values.device)[:, None]
    frame = row - torch.arange(n_columns, device=values.device)
    is_inside = (frame >= 0) & (frame < n_frames)
    # gather() wants valid places everywhere; what lies outside is masked.
    places = frame.clamp(0, n_frames - 1).expand(len(values), -1, -1)
    return values.gather(1, places).masked_fill(~is_inside, _IMPOSSIBLE)


def _straight(values: Tensor, n_frames: int) -> Tensor:
    """Undo `_skewed`."""
    column = torch.arange(values.shape[2], device=values.device)
    places = torch.arange(n_frames, device=values.device)[:, None] + column
    return values.gather(1, places.expand(len(values), -1, -1))


def _forward_sums(blank: Tensor, emit: Tensor) -> Tensor:
    """Return the log-probability of reaching each place."""
    sums = torch.full_like(blank, _IMPOSSIBLE)
    sums[:, 0, 0] = 0.0
    for row in range(1, blank.shape[1]):
        by_blank = sums[:, row - 1] + blank[:, row - 1]
        by_emit = sums[:, row - 1, :-1] + emit[:, row - 1, :-1]
        sums[:, row, 0] = by_blank[:, 0]
        # In place, since autograd does not record what runs inside of a Function.
        torch.logaddexp(by_blank[:, 1:], by_emit, out=sums[:, row, 1:])
    return sums


def _backward_sums(
    blank: Tensor, emit: Tensor, end: Tensor, columns: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities of the rest of the path behind a blank and behind a token."""
    n_utterances, n_rows, n_columns = blank.shape
    utterances = torch.arange(n_utterances, device=blank.device)
    # One row and one column more, from which there is no way to the end.
    sums = blank.new_full((n_utterances, n_rows + 1, n_columns + 1), _IMPOSSIBLE)
    is_end = torch.zeros(sums.shape, dtype=torch.bool, device=blank.device)
    is_end[utterances, end + 1, columns] = True
    for row in range(n_rows - 1, -1, -1):
        # The blank of the last place leads out of the lattice, to probability 1.
        sums[:, row + 1].masked_fill_(is_end[:, row + 1], 0.0)
        by_blank = sums[:, row + 1, :-1] + blank[:, row]
        by_emit = sums[:, row + 1, 1:] + emit[:, row]
        torch.logaddexp(by_blank, by_emit, out=sums[:, row, :-1])
    return sums[:, 1:, :-1], sums[:, 1:, 1:]
