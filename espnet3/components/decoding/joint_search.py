"""Beam search, token by token, over all hypotheses of all utterances of a batch at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from espnet3.components.decoding.fusion import NetworkPart, Part
from espnet3.components.decoding.hypothesis import Hypothesis
from espnet3.components.text.tokens import BLANK, end_of

LARGE_VOCABULARY = 2000
"""Up to here CTC scores all tokens in less time than a few chosen ones."""
_NEVER = float("-inf")
_HOPELESS = -1e20
"""Below are only hypotheses that CTC holds for impossible, such as more tokens than frames."""


@dataclass(frozen=True)
class SearchSettings:
    """What does not depend on the batch."""

    beam_size: int
    n_best: int
    n_candidates: int | None
    """Tokens that the networks propose to CTC for each hypothesis; None: see `JointBeam`."""
    length_bonus: float

    def n_candidates_of(self, n_tokens: int) -> int:
        """Return how many of the tokens CTC is to score; at least enough to fill the beam."""
        if self.n_candidates is not None:
            return max(self.n_candidates, self.beam_size)
        return n_tokens if n_tokens <= LARGE_VOCABULARY else max(40, 2 * self.beam_size)


@dataclass(frozen=True)
class _Choice:
    """The best continuations of each utterance, best first: all `[utterances, rows]`."""

    parents: Tensor
    tokens: Tensor
    totals: Tensor
    sums: list[Tensor]
    """By part."""

    def select(self, utterances: Tensor) -> "_Choice":
        return _Choice(
            self.parents[utterances],
            self.tokens[utterances],
            self.totals[utterances],
            [one[utterances] for one in self.sums],
        )


class JointSearch:
    """One search over one batch; `run` it once.

    A hypothesis that ends takes a place in the beam of its step, as in a greedy search; afterwards
    its place is free. An utterance leaves the batch as soon as no hypothesis that goes on can still
    become one of the `n_best`: no part of the score ever grows, so nothing is cut off by chance.

    Args:
        parts: what makes up the score.
        limits: the most tokens of each utterance, `[utterances]`.
        n_tokens: of the vocabulary.
        settings: of the search.
    """

    def __init__(
        self, parts: Sequence[Part], limits: Tensor, n_tokens: int, settings: SearchSettings
    ) -> None:
        self._parts = parts
        self._networks = [part for part in parts if isinstance(part, NetworkPart)]
        self._settings = settings
        self._n_tokens = n_tokens
        self._end = end_of(n_tokens)
        self._limits = limits
        self._utterances = list(range(len(limits)))
        self._tokens = torch.full((len(limits), 1, 1), self._end, device=limits.device)
        self._totals = torch.zeros(len(limits), 1, dtype=torch.float64, device=limits.device)
        self._sums = [torch.zeros_like(self._totals) for _ in parts]
        self._ended: list[list[Hypothesis]] = [[] for _ in self._utterances]

    def run(self) -> list[list[Hypothesis]]:
        """Return the n-best of each utterance, best first; none if its scores are not numbers."""
        while self._utterances:
            choice = self._best_of(*self._continuations())
            self._collect(choice)
            self._go_on(choice)
        return [ended[: self._settings.n_best] for ended in self._ended]

    @property
    def _length(self) -> int:
        """How many tokens the hypotheses that go on have."""
        return self._tokens.shape[2] - 1

    def _continuations(self) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return `[utterances, rows, candidates]` tokens, their totals, and the sums by part."""
        last = self._tokens[..., -1]
        log_probs = [part.weight * part.step(last) for part in self._networks]
        candidates = self._candidates(log_probs, last)
        sums = [
            part.score(before, candidates)
            for part, before in zip(self._parts, self._sums, strict=True)
        ]
        is_end = candidates == self._end
        totals = self._settings.length_bonus * (self._length + 1 - is_end.double())
        for part, one in zip(self._parts, sums, strict=True):
            totals = totals + part.weight * one
        is_over = (self._limits <= self._length)[:, None, None] & ~is_end
        is_dead = (self._totals == _NEVER)[..., None] | (totals < _HOPELESS)
        return candidates, totals.masked_fill(is_over | is_dead, _NEVER), sums

    def _candidates(self, log_probs: list[Tensor], last: Tensor) -> Tensor:
        """Return the tokens to score, in the order of their ids, the end token always last."""
        n_candidates = self._settings.n_candidates_of(self._n_tokens)
        only_ctc = not any(part.name == "attention" for part in self._networks)
        if only_ctc or n_candidates >= self._n_tokens - 2:
            return torch.arange(1, self._n_tokens, device=last.device).expand(*last.shape, -1)
        proposed = sum(log_probs[1:], start=log_probs[0]).clone()
        proposed[..., [BLANK, self._end]] = _NEVER
        best = proposed.topk(n_candidates, -1).indices.sort(-1).values
        return torch.cat([best, torch.full_like(best[..., :1], self._end)], -1)

    def _best_of(self, candidates: Tensor, totals: Tensor, sums: list[Tensor]) -> _Choice:
        # A stable sort: of equal totals the earlier row and the smaller id come first, always.
        order = totals.flatten(1).sort(dim=1, descending=True, stable=True).indices
        order = order[:, : self._settings.beam_size]
        return _Choice(
            order // candidates.shape[2],
            candidates.flatten(1).gather(1, order),
            totals.flatten(1).gather(1, order),
            [one.flatten(1).gather(1, order) for one in sums],
        )

    def _collect(self, choice: _Choice) -> None:
        """Put the hypotheses that ended in order among those that ended before."""
        has_ended = (choice.tokens == self._end) & (choice.totals > _NEVER)
        rows, places = has_ended.nonzero(as_tuple=True)
        if not len(rows):
            return
        tokens = self._tokens[rows, choice.parents[rows, places], 1:].tolist()
        totals = choice.totals[rows, places].tolist()
        sums = [one[rows, places].tolist() for one in choice.sums]
        names = [part.name for part in self._parts]
        for row, ids, total, *parts in zip(rows.tolist(), tokens, totals, *sums, strict=True):
            scores = dict(zip(names, parts, strict=True))
            self._ended[self._utterances[row]].append(Hypothesis(tuple(ids), total, scores))
        for row in set(rows.tolist()):
            self._ended[self._utterances[row]].sort(key=lambda one: -one.score)

    def _go_on(self, choice: _Choice) -> None:
        """Take the tokens of the hypotheses that go on, and leave out utterances that are done."""
        totals = choice.totals.masked_fill(choice.tokens == self._end, _NEVER)
        hopes = self._hopes(totals)
        kept = [row for row, hope in enumerate(hopes) if hope > self._to_beat(row)]
        utterances = torch.tensor(kept, dtype=torch.long, device=totals.device)
        self._utterances = [self._utterances[row] for row in kept]
        if not kept:
            return
        choice = choice.select(utterances)
        self._totals = totals[utterances]
        self._sums = choice.sums
        self._limits = self._limits[utterances]
        history = self._tokens[utterances[:, None], choice.parents]
        self._tokens = torch.cat([history, choice.tokens[..., None]], -1)
        for part in self._parts:
            part.keep(utterances, choice.parents, choice.tokens)

    def _hopes(self, totals: Tensor) -> list[float]:
        """Return the most that a hypothesis of each utterance can still reach."""
        n_more = (self._limits - self._length - 1).clamp_min(0)
        bonus = max(0.0, self._settings.length_bonus)
        hopes: list[float] = (totals.amax(1) + bonus * n_more).tolist()
        return hopes

    def _to_beat(self, row: int) -> float:
        ended = self._ended[self._utterances[row]]
        n_best = self._settings.n_best
        return ended[n_best - 1].score if len(ended) >= n_best else _NEVER
