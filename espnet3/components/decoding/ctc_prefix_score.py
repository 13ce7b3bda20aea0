"""Probabilities by CTC of all transcripts that begin with a prefix, for a batch of utterances."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from espnet3.components.text.tokenizer import BLANK, end_of

IMPOSSIBLE = -1e30
"""The logarithm of 0: finite, as the difference of two infinities is not a number."""
_LEAST_POSTERIOR = -1e3
"""Logarithm of the least posterior; e to it is 0 for all purposes, and sums of it stay exact."""
_SMALL = 1e-25
"""Sums above it lose nothing that counts to terms that are too small for float32."""
_BLOCK = 16
"""Frames that are summed together."""
_MANY = 8000
"""Numbers from which on that takes less time."""
_ROOM = 650.0
"""e to minus this is well above the least number of float64."""


@dataclass(frozen=True)
class PrefixState:
    """Prefixes of several utterances, equally many of each."""

    anywhere: Tensor
    """`[utterances, prefixes, 1 + frames]`, logarithms: of the prefix, in blank or in its last
    token; the first is before all frames."""
    in_blank: Tensor
    """The same of the prefix and blank behind it."""
    last: Tensor
    """`[utterances, prefixes]`: the last token; -1 for the empty prefix."""
    of_last: Tensor
    """`[utterances, prefixes, frames]`: logarithms of the posteriors of the last token."""

    def select(self, utterances: Tensor) -> "PrefixState":
        """Return the prefixes of these utterances alone."""
        return PrefixState(
            self.anywhere[utterances],
            self.in_blank[utterances],
            self.last[utterances],
            self.of_last[utterances],
        )


class CTCPrefixScorer:
    """Scores prefixes of a batch of utterances.

    States are in float64. Scores of a few candidates are as exact as the posteriors are.

    Args:
        log_probs: `[frames, n_tokens]` of each utterance.
    """

    def __init__(self, log_probs: Sequence[Tensor]) -> None:
        lengths = [len(one) for one in log_probs]
        n_frames, self.n_tokens = max(1, *lengths), log_probs[0].shape[1]
        # By token, since tokens are looked up: all frames of a token of an utterance stand side by
        # side. Padding would take as long to write as frames, so there is none; what a lookup
        # finds behind the frames of an utterance means nothing, and is masked.
        total = sum(lengths) * self.n_tokens
        # Zeros only behind the last ones: they are as much as all of the vocabulary.
        self._posteriors = log_probs[0].new_empty(total + n_frames)
        self._posteriors[total:] = 0.0
        sizes = [n * self.n_tokens for n in lengths]
        for part, one in zip(torch.split(self._posteriors[:total], sizes), log_probs, strict=True):
            part.view(self.n_tokens, len(one)).copy_(one.T)
        self._windows = self._posteriors.as_strided((total + 1, n_frames), (1, 1))
        device = self._posteriors.device
        frames = torch.arange(n_frames, device=device)
        # Of those at work: with a large vocabulary a copy of their posteriors would take long.
        self._lengths = torch.tensor(lengths, device=device)[:, None]
        self._firsts = (self._lengths.cumsum(0) - self._lengths) * self.n_tokens
        self._is_padding = (frames >= self._lengths)[:, None]
        blanks = torch.full_like(self._lengths, BLANK)
        blank = self._of_tokens(blanks)[:, 0].double().clamp_min(_LEAST_POSTERIOR)
        # Padding counts as sure to be blank, which changes nothing.
        self._blank_sums = _sums(blank.masked_fill(self._is_padding[:, 0], 0.0))
        # Made on first use: where only candidates are scored, it is never needed.
        self._probabilities: Tensor | None = None
        self._end = end_of(self.n_tokens)

    def start(self) -> PrefixState:
        """Return the empty prefix of each utterance."""
        in_blank = self._blank_sums[:, None]
        none = torch.full((len(in_blank), 1), -1, device=in_blank.device)
        # The empty prefix has no last token: blank stands for it, and its score is overwritten.
        return PrefixState(in_blank, in_blank, none, self._clean(none.clamp_min(BLANK)))

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
        anywhere = self._before_frames(state.anywhere)
        last = state.last.clamp_min(BLANK)
        repeated = torch.logsumexp(in_blank + state.of_last, -1)[..., None]
        if candidates is None:
            scores = self._score_all(anywhere).scatter(-1, last[..., None], repeated)
            scores[..., BLANK] = IMPOSSIBLE
            scores[..., self._end] = self.score_end(state)
            return scores
        scores = self._score_some(anywhere, candidates)
        # A token twice in a row needs a blank between: else both would be one.
        scores = torch.where(candidates == last[..., None], repeated, scores)
        scores = torch.where(candidates == self._end, self.score_end(state)[..., None], scores)
        return scores.masked_fill(candidates == BLANK, IMPOSSIBLE)

    def score_end(self, state: PrefixState) -> Tensor:
        """Return the logarithm of the probability that each prefix is the whole transcript."""
        return state.anywhere[..., -1]

    def extend(self, state: PrefixState, parents: Tensor, tokens: Tensor) -> PrefixState:
        """Return prefixes with one more token.

        Args:
            state: of the prefixes before.
            parents: `[utterances, new prefixes]`: which prefix each one extends.
            tokens: of the same shape: by what. For the end token the result means nothing.
        """
        frames = parents[..., None].expand(-1, -1, state.in_blank.shape[-1])
        in_blank = state.in_blank.gather(1, frames)
        anywhere = state.anywhere.gather(1, frames)
        repeats = tokens == state.last.gather(1, parents)
        # A token twice in a row needs a blank between: else both would be one.
        starts = self._before_frames(torch.where(repeats[..., None], in_blank, anywhere))
        posteriors = self._clean(tokens)
        in_token = _enter(starts, _sums(posteriors))
        in_blank = _enter(in_token[..., :-1], self._blank_sums[:, None])
        return PrefixState(torch.logaddexp(in_token, in_blank), in_blank, tokens, posteriors)

    def select(self, utterances: Tensor) -> None:
        """Continue with these utterances alone; states must be of the same ones."""
        self._lengths = self._lengths[utterances]
        self._firsts = self._firsts[utterances]
        self._is_padding = self._is_padding[utterances]
        self._blank_sums = self._blank_sums[utterances]
        if self._probabilities is not None:
            self._probabilities = self._probabilities[utterances]

    def _of_tokens(self, tokens: Tensor) -> Tensor:
        """Return `[utterances, tokens, frames]` for `[utterances, tokens]`, as they were given."""
        places = self._firsts + tokens * self._lengths
        return self._windows.index_select(0, places.flatten()).view(*tokens.shape, -1)

    def _clean(self, tokens: Tensor) -> Tensor:
        """Return the same in float64, never below the least posterior, nor of padding."""
        posteriors = self._of_tokens(tokens).double().clamp_min(_LEAST_POSTERIOR)
        return posteriors.masked_fill(self._is_padding, _LEAST_POSTERIOR)

    def _before_frames(self, curve: Tensor) -> Tensor:
        """Return the values before each frame; nothing may begin in padding."""
        return curve[..., :-1].masked_fill(self._is_padding, IMPOSSIBLE)

    def _score_all(self, anywhere: Tensor) -> Tensor:
        """Sum over the frames by one matrix product."""
        if self._probabilities is None:
            tokens = torch.arange(self.n_tokens, device=anywhere.device)
            own = self._of_tokens(tokens.expand(len(anywhere), -1)).double()
            own = own.masked_fill(self._is_padding, IMPOSSIBLE)
            self._probabilities = own.exp().transpose(1, 2).contiguous()
        # Subtracted, since for a long utterance exp() underflows to 0 even in float64.
        highest = anywhere.amax(-1, keepdim=True)
        sums = torch.bmm((anywhere - highest).exp(), self._probabilities)
        # log(0) is -inf, which would become NaN in later differences.
        return (sums.log() + highest).clamp_min(IMPOSSIBLE)

    def _score_some(self, anywhere: Tensor, candidates: Tensor) -> Tensor:
        """Sum over the frames for each candidate, at the precision of the posteriors."""
        posteriors = self._of_tokens(candidates.flatten(1)).view(*candidates.shape, -1)
        # What grows with the length is taken out first, and added at the end, in float64.
        highest = anywhere.amax(-1, keepdim=True)
        starts = (anywhere - highest).masked_fill(self._is_padding, IMPOSSIBLE)
        starts = starts.to(posteriors.dtype)[..., None]
        sums = torch.matmul(posteriors.exp_(), starts.exp())[..., 0]
        # A product takes a fraction of the time of logsumexp; but what is too small for it, such
        # as a token that CTC is sure not to hear, must be summed as logarithms.
        if bool((sums < _SMALL).any()):
            posteriors = self._of_tokens(candidates.flatten(1)).view(*candidates.shape, -1)
            logs = torch.logsumexp(posteriors.add_(starts.transpose(2, 3)), -1)
        else:
            logs = sums.log()
        return (logs.double() + highest).clamp_min(IMPOSSIBLE)


def _sums(posteriors: Tensor) -> Tensor:
    """Return the logarithms of the products of the first 0, 1, ... posteriors."""
    return torch.nn.functional.pad(posteriors.cumsum(-1), (1, 0))


def _enter(starts: Tensor, sums: Tensor) -> Tensor:
    """Return the curve of staying in a token that is entered before each frame with `starts`.

    It solves `curve[t] = (curve[t - 1] + starts[t - 1]) * posterior[t]`, in logarithms.
    """
    # In closed form, since a loop over the frames would run hundreds of small operations per token.
    curve = sums[..., 1:] + _logcumsumexp(starts - sums[..., :-1])
    return torch.nn.functional.pad(curve, (1, 0), value=IMPOSSIBLE)


def _logcumsumexp(curves: Tensor) -> Tensor:
    """Return the logarithms of the sums of the first 1, 2, ... frames.

    PyTorch's function takes an exponential and a logarithm for each frame, one by one. Here blocks
    of frames are summed with respect to the highest of each, where float64 has room for that.
    """
    if curves.numel() < _MANY:
        return torch.logcumsumexp(curves, -1)
    n_frames = curves.shape[-1]
    filled = torch.nn.functional.pad(curves, (0, -n_frames % _BLOCK), value=IMPOSSIBLE)
    blocks = filled.view(*curves.shape[:-1], -1, _BLOCK)
    highest = blocks.amax(-1, keepdim=True)
    # What is impossible counts as 0 in any case.
    is_lost = (blocks < highest - _ROOM) & (blocks > IMPOSSIBLE / 2)
    if bool(is_lost.any()):
        return torch.logcumsumexp(curves, -1)
    within = (blocks - highest).exp_().cumsum(-1).log_().add_(highest)
    before = torch.logcumsumexp(within[..., -1], -1)[..., :-1]
    before = torch.nn.functional.pad(before, (1, 0), value=IMPOSSIBLE)
    return torch.logaddexp(within, before[..., None]).flatten(-2)[..., :n_frames]
