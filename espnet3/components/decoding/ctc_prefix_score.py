"""Probabilities by CTC of all transcripts that begin with a prefix, for a batch of utterances."""

from dataclasses import dataclass

import torch
from torch import Tensor

from espnet3.components.text.tokenizer import BLANK, end_of

IMPOSSIBLE = -1e30
"""The logarithm of 0: finite, as the difference of two infinities is not a number."""
_LEAST_POSTERIOR = -1e3
"""Logarithm of the least posterior; e to it is 0 for all purposes, and sums of it stay exact."""


@dataclass(frozen=True)
class PrefixState:
    """Prefixes of several utterances, equally many of each."""

    in_token: Tensor
    """`[utterances, prefixes, 1 + frames]`, logarithms; the first is before all frames."""
    in_blank: Tensor
    last: Tensor
    """`[utterances, prefixes]`: the last token; -1 for the empty prefix."""

    def select(self, utterances: Tensor) -> "PrefixState":
        """Return the prefixes of these utterances alone."""
        return PrefixState(
            self.in_token[utterances], self.in_blank[utterances], self.last[utterances]
        )


class CTCPrefixScorer:
    """Scores prefixes of a batch of utterances, in float64.

    Args:
        log_probs: `[utterances, frames, n_tokens]`.
        lengths: frames of each utterance. What is behind them counts as sure to be blank, which
            changes nothing.
    """

    def __init__(self, log_probs: Tensor, lengths: Tensor) -> None:
        frames = torch.arange(log_probs.shape[1], device=log_probs.device)
        self._is_padding = (frames >= lengths.to(log_probs.device)[:, None])[:, None]
        certain = log_probs.new_full((log_probs.shape[2],), _LEAST_POSTERIOR)
        certain[BLANK] = 0.0
        kept = torch.where(self._is_padding.transpose(1, 2), certain, log_probs)
        self._posteriors = kept.clamp_min(_LEAST_POSTERIOR).transpose(1, 2).contiguous()
        # Those at work: with a large vocabulary a copy of their posteriors would take long.
        self._rows = torch.arange(len(log_probs), device=log_probs.device)
        self._blank_sums = _sums(self._posteriors[:, BLANK].double())
        # Made on first use: where only candidates are scored, it is never needed.
        self._probabilities: Tensor | None = None
        self.n_tokens = log_probs.shape[2]
        self._end = end_of(self.n_tokens)

    def start(self) -> PrefixState:
        """Return the empty prefix of each utterance."""
        nowhere = torch.full_like(self._blank_sums[:, None], IMPOSSIBLE)
        none = torch.full((len(nowhere), 1), -1, device=nowhere.device)
        return PrefixState(nowhere, self._blank_sums[:, None].clone(), none)

    def score(self, state: PrefixState, candidates: Tensor | None = None) -> Tensor:
        """Return the logarithm of the probability of each prefix with one more token.

        That is of all transcripts that begin so; for the end token, of the prefix as the whole
        transcript. Blank is impossible.

        Args:
            state: of the prefixes.
            candidates: `[utterances, prefixes, candidates]`; None: all tokens. A few are cheaper
                than a large vocabulary.
        """
        in_blank = self._before_frames(state.in_blank)
        anywhere = self._before_frames(torch.logaddexp(state.in_token, state.in_blank))
        if candidates is None:
            # The empty prefix has no last token: blank stands for it, and is overwritten below.
            scores = self._score_all(anywhere, in_blank, state.last.clamp_min(0))
            scores[..., BLANK] = IMPOSSIBLE
            scores[..., self._end] = self.score_end(state)
            return scores
        posteriors = self._of_tokens(candidates.flatten(1)).view(*candidates.shape, -1)
        repeats = candidates == state.last[..., None]
        starts = torch.where(repeats[..., None], in_blank[:, :, None], anywhere[:, :, None])
        scores = torch.logsumexp(starts + posteriors, -1)
        scores = torch.where(candidates == self._end, self.score_end(state)[..., None], scores)
        return scores.masked_fill(candidates == BLANK, IMPOSSIBLE)

    def score_end(self, state: PrefixState) -> Tensor:
        """Return the logarithm of the probability that each prefix is the whole transcript."""
        return torch.logaddexp(state.in_token[..., -1], state.in_blank[..., -1])

    def extend(self, state: PrefixState, parents: Tensor, tokens: Tensor) -> PrefixState:
        """Return prefixes with one more token.

        Args:
            state: of the prefixes before.
            parents: `[utterances, new prefixes]`: which prefix each one extends.
            tokens: of the same shape: by what. For the end token the result means nothing.
        """
        frames = parents[..., None].expand(-1, -1, state.in_blank.shape[-1])
        in_blank = state.in_blank.gather(1, frames)
        anywhere = torch.logaddexp(in_blank, state.in_token.gather(1, frames))
        repeats = tokens == state.last.gather(1, parents)
        # A token twice in a row needs a blank between: else both would be one.
        starts = self._before_frames(torch.where(repeats[..., None], in_blank, anywhere))
        in_token = _enter(starts, _sums(self._of_tokens(tokens)))
        in_blank = _enter(in_token[..., :-1], self._blank_sums[:, None])
        return PrefixState(in_token, in_blank, tokens)

    def select(self, utterances: Tensor) -> None:
        """Continue with these utterances alone; states must be of the same ones."""
        self._rows = self._rows[utterances]
        self._is_padding = self._is_padding[utterances]
        self._blank_sums = self._blank_sums[utterances]
        if self._probabilities is not None:
            self._probabilities = self._probabilities[utterances]

    def _of_tokens(self, tokens: Tensor) -> Tensor:
        """Return `[utterances, tokens, frames]` for `[utterances, tokens]`."""
        # Converted after the lookup: all of a large vocabulary as float64 would double the memory.
        return self._posteriors[self._rows[:, None], tokens].double()

    def _before_frames(self, curve: Tensor) -> Tensor:
        """Return the values before each frame; nothing may begin in padding."""
        return curve[..., :-1].masked_fill(self._is_padding, IMPOSSIBLE)

    def _score_all(self, anywhere: Tensor, in_blank: Tensor, last: Tensor) -> Tensor:
        """Sum over the frames by one matrix product; then correct the repeated tokens."""
        if self._probabilities is None:
            own = self._posteriors[self._rows].double()
            self._probabilities = own.exp().transpose(1, 2).contiguous()
        # Subtracted, since for a long utterance exp() underflows to 0 even in float64.
        highest = anywhere.amax(-1, keepdim=True)
        sums = torch.bmm((anywhere - highest).exp(), self._probabilities)
        # log(0) is -inf, which would become NaN in later differences.
        scores = (sums.log() + highest).clamp_min(IMPOSSIBLE)
        repeated = torch.logsumexp(in_blank + self._of_tokens(last), -1)
        return scores.scatter(-1, last[..., None], repeated[..., None])


def _sums(posteriors: Tensor) -> Tensor:
    """Return the logarithms of the products of the first 0, 1, ... posteriors."""
    return torch.nn.functional.pad(posteriors.cumsum(-1), (1, 0))


def _enter(starts: Tensor, sums: Tensor) -> Tensor:
    """Return the curve of staying in a token that is entered before each frame with `starts`.

    It solves `curve[t] = (curve[t - 1] + starts[t - 1]) * posterior[t]`, in logarithms.
    """
    # In closed form, since a loop over the frames would run hundreds of small operations per token.
    curve = sums[..., 1:] + torch.logcumsumexp(starts - sums[..., :-1], -1)
    return torch.nn.functional.pad(curve, (1, 0), value=IMPOSSIBLE)
