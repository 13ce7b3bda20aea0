"""Joint CTC/attention beam search, with a neural language model if wanted.

The search goes token by token, over all hypotheses of all utterances of a batch at once. Its parts
are scores: networks that go token by token, and CTC over the frames.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from espnet3.components.data.errors import DataError
from espnet3.components.decoding.ctc_prefix_score import CTCPrefixScorer
from espnet3.components.decoding.hypothesis import Hypothesis
from espnet3.components.text.tokenizer import BLANK, end_of
from espnet3.config.trust import current_trust, under
from espnet3.errors import ConfigError

LARGE_VOCABULARY = 2000
"""Up to here CTC scores all tokens in less time than a few chosen ones."""
_PRODUCT = 16
"""So many times the candidates may a vocabulary have for CTC to score all of it by a product."""
_ENOUGH = 8
"""Utterances that are worth a batch of their own."""
_GROUP, _MANY = 25, 200_000
"""Of so many scores, the best are looked for in groups of so many tokens."""
_NEVER = float("-inf")
_HOPELESS = -1e20
"""Below are only hypotheses that CTC holds for impossible, such as more tokens than frames."""


@dataclass(frozen=True)
class SearchSettings:
    """Settings of a search that do not depend on the batch."""

    beam_size: int
    n_best: int
    n_candidates: int | None
    """Tokens that the networks propose to CTC for each hypothesis; None: see `JointBeam`."""
    length_bonus: float
    n_proposed: int | None = None
    """Tokens that the networks propose to CTC beside the end token, blank and the end token taking
    places among them, as in ESPnet2; None: as `n_candidates` says."""
    rewards_end: bool = False
    """Whether the end token earns the bonus as well."""
    is_end_sure_at_limit: bool = False
    """Whether a hypothesis that reaches its limit ends there without a score of its end."""

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


class StepNetwork(Protocol):
    """Network that scores the next token, such as an attention decoder or a language model."""

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Return log-probabilities `[rows, n_tokens]` behind one more token in each row."""
        ...

    def select(self, state: Any, indices: Tensor) -> Any:
        """Return the state of other rows."""
        ...


class NetworkPart:
    """A network with its state, whose log-probabilities add up along a hypothesis."""

    def __init__(self, name: str, weight: float, network: StepNetwork, state: Any) -> None:
        self.name = name
        self.weight = weight
        self._network = network
        self._state = state
        self._log_probs = torch.empty(0)

    @property
    def log_probs(self) -> Tensor:
        """`[utterances, rows, n_tokens]`: of the next token, after `step`."""
        return self._log_probs

    def step(self, tokens: Tensor) -> None:
        """Make the log-probabilities of the next token for `[utterances, rows]` last tokens."""
        log_probs, self._state = self._network.step(tokens.flatten(), self._state)
        self._log_probs = log_probs.view(*tokens.shape, -1)

    def score(self, sums: Tensor, candidates: Tensor) -> Tensor:
        """Return the sums of hypotheses `[utterances, rows]` with each candidate, after `step`."""
        # In float64 only now: of a large vocabulary most tokens are no candidates.
        return sums[..., None] + self._log_probs.gather(-1, candidates).double()

    def keep(self, utterances: Tensor, parents: Tensor, tokens: Tensor) -> None:
        """Continue with the rows `parents` of these utterances."""
        n_rows = self._log_probs.shape[1]
        self._state = self._network.select(
            self._state, (utterances[:, None] * n_rows + parents).flatten()
        )


class CTCPart:
    """The prefix score of CTC; it is not a sum over tokens, but replaced at each one."""

    name = "ctc"

    def __init__(self, weight: float, scorer: CTCPrefixScorer) -> None:
        self.weight = weight
        self._scorer = scorer
        self._state = self._scorer.start()

    def score(self, sums: Tensor, candidates: Tensor) -> Tensor:
        """Return the score of each hypothesis `[utterances, rows]` with each candidate."""
        n_tokens = self._scorer.n_tokens
        # All tokens cost less as one matrix product than looking up a good part of them.
        if n_tokens > _PRODUCT * candidates.shape[-1]:
            return self._scorer.score(self._state, candidates)
        return self._scorer.score(self._state).gather(-1, candidates)

    def keep(self, utterances: Tensor, parents: Tensor, tokens: Tensor) -> None:
        """Continue with the rows `parents` of these utterances, with one more token each."""
        # Selecting copies the posteriors, and in most steps no utterance is done.
        if len(utterances) < len(self._state.last):
            self._scorer.select(utterances)
            self._state = self._state.select(utterances)
        self._state = self._scorer.extend(self._state, parents, tokens)


Part = NetworkPart | CTCPart


class JointSearch:
    """One search over one batch; `run` it once.

    A hypothesis that ends takes a place in the beam of its step, as in a greedy search; afterwards
    its place is free. An utterance leaves the batch as soon as no open hypothesis can still
    become one of the `n_best`: no part of the score ever grows, so nothing is cut off by chance.

    Args:
        parts: what makes up the score.
        limits: the most tokens of each utterance, `[utterances]`.
        n_tokens: of the vocabulary.
        settings: of the search.
        least: tokens of each utterance; a hypothesis that ends with fewer takes its place in the
            beam, and is dropped. None: 0.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        limits: Tensor,
        n_tokens: int,
        settings: SearchSettings,
        least: Tensor | None = None,
    ) -> None:
        self._parts = parts
        self._networks = [part for part in parts if isinstance(part, NetworkPart)]
        self._settings = settings
        self._n_tokens = n_tokens
        self._end = end_of(n_tokens)
        self._limits = limits
        self._least = torch.zeros_like(limits) if least is None else least
        self._utterances = list(range(len(limits)))
        # `<sos/eos>` is the start token as well.
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
        """Number of tokens of the open hypotheses."""
        return self._tokens.shape[2] - 1

    def _continuations(self) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return `[utterances, rows, candidates]` tokens, their totals, and the sums by part."""
        last = self._tokens[..., -1]
        for network in self._networks:
            network.step(last)
        candidates = self._candidates(last)
        sums = [
            part.score(before, candidates)
            for part, before in zip(self._parts, self._sums, strict=True)
        ]
        is_end = candidates == self._end
        # The end token is not part of the text, so it earns no bonus by default.
        n_rewarded = self._length + 1 - is_end.double() * (not self._settings.rewards_end)
        totals = self._settings.length_bonus * n_rewarded
        for part, one in zip(self._parts, sums, strict=True):
            totals = totals + part.weight * one
        is_over = (self._limits <= self._length)[:, None, None] & ~is_end
        # Totals are summed again from the parts: what has ended would come back to life.
        is_dead = (self._totals == _NEVER)[..., None] | (totals < _HOPELESS)
        return candidates, totals.masked_fill(is_over | is_dead, _NEVER), sums

    def _liking(self) -> Tensor:
        """Return `[utterances, rows, n_tokens]`: in which order the networks like the tokens."""
        first, *others = self._networks
        # The order is that without the weight of the first.
        total = first.log_probs
        for part in others:
            total = torch.add(total, part.log_probs, alpha=part.weight / first.weight)
        return total

    def _candidates(self, last: Tensor) -> Tensor:
        """Return the tokens to score, in the order of their ids, the end token always last."""
        n_candidates = self._settings.n_candidates_of(self._n_tokens)
        if self._settings.n_proposed is not None:
            return self._proposed(last, self._settings.n_proposed)
        # A language model has not heard the audio: it must not alone choose what CTC scores.
        only_ctc = not any(part.name == "attention" for part in self._networks)
        # Blank and the end token are never proposed, so 2 fewer are all there are.
        if only_ctc or n_candidates >= self._n_tokens - 2:
            return torch.arange(1, self._n_tokens, device=last.device).expand(*last.shape, -1)
        proposed = self._liking().clone()
        proposed[..., [BLANK, self._end]] = _NEVER
        # Sorted by id, so that in `_best_of` ties go to the smaller one.
        best = proposed.topk(n_candidates, -1).indices.sort(-1).values
        return torch.cat([best, torch.full_like(best[..., :1], self._end)], -1)

    def _proposed(self, last: Tensor, n: int) -> Tensor:
        """Return the tokens that the networks like most, in the order of their ids."""
        if not self._networks or n >= self._n_tokens:
            return torch.arange(self._n_tokens, device=last.device).expand(*last.shape, -1)
        best = best_tokens(self._liking(), n).sort(-1).values
        # CTC always scores the end. Where it is among the best, blank, which is impossible, fills
        # the place: nothing may come twice.
        has_end = (best == self._end).any(-1, keepdim=True)
        return torch.cat([best, torch.where(has_end, BLANK, self._end)], -1)

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
        # A beam with too few possible continuations is filled up with impossible ones.
        has_ended = self._ends(choice) & (choice.totals > _NEVER)
        has_ended &= (self._least <= self._length)[:, None]
        rows, places = has_ended.nonzero(as_tuple=True)
        if not len(rows):
            return
        tokens = self._tokens[rows, choice.parents[rows, places], 1:].tolist()
        for ids, token in zip(tokens, choice.tokens[rows, places].tolist(), strict=True):
            ids += [token] if token != self._end else []
        totals = choice.totals[rows, places].tolist()
        sums = [one[rows, places].tolist() for one in choice.sums]
        names = [part.name for part in self._parts]
        for row, ids, total, *parts in zip(rows.tolist(), tokens, totals, *sums, strict=True):
            scores = dict(zip(names, parts, strict=True))
            self._ended[self._utterances[row]].append(Hypothesis(tuple(ids), total, scores))
        for row in set(rows.tolist()):
            self._ended[self._utterances[row]].sort(key=lambda one: -one.score)

    def _ends(self, choice: _Choice) -> Tensor:
        """Tell which continuations are complete."""
        is_end = choice.tokens == self._end
        if not self._settings.is_end_sure_at_limit:
            return is_end
        return is_end | (self._limits <= self._length + 1)[:, None]

    def _go_on(self, choice: _Choice) -> None:
        """Take the tokens of the open hypotheses, and leave out utterances that are done."""
        totals = choice.totals.masked_fill(self._ends(choice), _NEVER)
        hopes = self._hopes(totals)
        # False for NaN too: such an utterance leaves the search, and `_check_results` reports it.
        kept = [row for row, hope in enumerate(hopes) if hope > self._to_beat(row)]
        utterances = torch.tensor(kept, dtype=torch.long, device=totals.device)
        self._utterances = [self._utterances[row] for row in kept]
        if not kept:
            return
        choice = choice.select(utterances)
        self._totals = totals[utterances]
        self._sums = choice.sums
        self._limits = self._limits[utterances]
        self._least = self._least[utterances]
        history = self._tokens[utterances[:, None], choice.parents]
        self._tokens = torch.cat([history, choice.tokens[..., None]], -1)
        for part in self._parts:
            part.keep(utterances, choice.parents, choice.tokens)

    def _hopes(self, totals: Tensor) -> list[float]:
        """Return the most that a hypothesis of each utterance can still reach."""
        n_more = (self._limits - self._length - 1).clamp_min(0)
        # A negative bonus only lowers a total, so in the best case no token follows.
        bonus = max(0.0, self._settings.length_bonus)
        hopes: list[float] = (totals.amax(1) + bonus * n_more).tolist()
        return hopes

    def _to_beat(self, row: int) -> float:
        ended = self._ended[self._utterances[row]]
        n_best = self._settings.n_best
        return ended[n_best - 1].score if len(ended) >= n_best else _NEVER


def best_tokens(scores: Tensor, n: int) -> Tensor:
    """Return the `n` tokens with the highest of `[utterances, rows, n_tokens]` scores."""
    n_groups = scores.shape[-1] // _GROUP
    if scores.numel() < _MANY or n_groups < 2 * n:
        return scores.topk(n, -1).indices
    # The best are in the groups with the `n` best maxima, or behind the last group.
    n_grouped = n_groups * _GROUP
    grouped = scores[..., :n_grouped].view(*scores.shape[:-1], _GROUP, n_groups)
    groups = grouped.amax(-2).topk(n, -1).indices
    starts = torch.arange(0, n_grouped, n_groups, device=scores.device)
    tokens = (groups[..., None] + starts).flatten(-2)
    rest = torch.arange(n_grouped, scores.shape[-1], device=scores.device)
    tokens = torch.cat([tokens, rest.expand(*tokens.shape[:-1], -1)], -1)
    return tokens.gather(-1, scores.gather(-1, tokens).topk(n, -1).indices)


class JointBeam:
    """Finds the tokens with the best joint score, for a batch of utterances at once.

    The score is `ctc_weight` x CTC prefix score + (1 - `ctc_weight`) x attention + `lm_weight` x
    language model + `length_bonus` x number of tokens. The scores add up in float64 and ties go to
    the smaller id, so the size of the batch shows only where the networks' own rounding decides
    between two hypotheses.

    Args:
        beam_size: hypotheses of an utterance that are followed.
        ctc_weight: 0 to 1. With 1 the attention decoder is not used, and need not exist; with 0
            the CTC output is not used.
        lm: a language model: the weights file (best: its identity is then part of what makes
            results stale) or folder of its training, loaded on first use; or a module.
        lm_weight: of the language model.
        length_bonus: for each token, against a preference for short results.
        max_length_ratio: the most tokens of an utterance, as a share of its encoder frames.
        n_best: how many hypotheses to return.
        n_candidates: tokens of each hypothesis that CTC scores: those that attention and language
            model together like most. None: all of up to 2,000 tokens, else 40, or twice the beam.

    Raises:
        ConfigError: a setting is out of range.
    """

    lm_loader = "espnet3.systems.asr.language_model.load_language_model"
    """Called with the path and `device=`, by its name: language models belong to a layer above."""

    def __init__(
        self,
        *,
        beam_size: int = 10,
        ctc_weight: float = 0.3,
        lm: str | os.PathLike[str] | nn.Module | None = None,
        lm_weight: float = 0.3,
        length_bonus: float = 0.0,
        max_length_ratio: float = 1.0,
        n_best: int = 1,
        n_candidates: int | None = None,
    ) -> None:
        _check_least("beam_size", beam_size, 1)
        _check_least("n_best", n_best, 1)
        _check_least("n_candidates", 1 if n_candidates is None else n_candidates, 1)
        _check_least("lm_weight", lm_weight, 0.0)
        _check_least("max_length_ratio", max_length_ratio, 0.0)
        _check_least("ctc_weight", ctc_weight, 0.0)
        if ctc_weight > 1:
            raise ConfigError(
                f"decoder.ctc_weight is {ctc_weight}, but is a share.", fix="Write: ctc_weight: 0.3"
            )
        self.ctc_weight = ctc_weight
        self.lm_weight = lm_weight
        self.max_length_ratio = max_length_ratio
        self.settings = SearchSettings(beam_size, n_best, n_candidates, length_bonus)
        self._lm = lm
        # It is loaded later, and by the rules of the config that names it.
        self._trust = current_trust()

    def load_language_model(self, path: "str | os.PathLike[str]") -> None:
        """Score by the language model of these weights from now on."""
        if not os.path.exists(path):
            raise ConfigError(
                f"The language model {os.fspath(path)} does not exist.",
                fix="Name the weights of its "
                "training, such as exp/training_lm/valid.loss.ave_1best.safetensors",
            )
        self._lm = path
        self._trust = current_trust()

    @torch.inference_mode()
    def __call__(self, model: Any, encoded: Tensor, lengths: Tensor) -> list[list[Hypothesis]]:
        """Return the n-best of each utterance, best first.

        Args:
            model: with `n_tokens`, `ctc_log_probs(encoded)` and `decoder`, as `ASRModel`.
            encoded: `[utterances, frames, size]`.
            lengths: frames of each utterance.

        Raises:
            ConfigError: the model lacks a part, or the language model has other tokens.
            DataError: the scores of an utterance are not numbers.
        """
        lengths = lengths.to(encoded.device)
        results: list[list[Hypothesis]] = [[] for _ in lengths]
        for places in _of_like_lengths(lengths.tolist()):
            chosen = torch.tensor(places, device=encoded.device)
            own = lengths[chosen]
            found = self.search(model, _without_padding(encoded[chosen], own), own)
            for place, one in zip(places, found, strict=True):
                results[place] = one
        _check_results(results)
        return results

    def search(self, model: Any, encoded: Tensor, lengths: Tensor) -> list[list[Hypothesis]]:
        """Return the n-best of each utterance; none of one whose scores are not numbers."""
        most, least = self.limits(lengths)
        parts = self._parts(model, encoded, lengths)
        return JointSearch(parts, most, model.n_tokens, self.settings, least).run()

    def limits(self, lengths: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the most, and if there are any bounds the least tokens, of so many frames."""
        # One rounding for all sizes of batches, so in Python.
        limits = [math.floor(self.max_length_ratio * n) for n in lengths.tolist()]
        return torch.tensor(limits, device=lengths.device), None

    def _parts(self, model: Any, encoded: Tensor, lengths: Tensor) -> list[Part]:
        parts: list[Part] = []
        if self.ctc_weight < 1:
            decoder = _decoder_of(model)
            state = decoder.start(encoded, lengths)
            parts.append(NetworkPart("attention", 1 - self.ctc_weight, decoder, state))
        if self._lm is not None and self.lm_weight > 0:
            lm = self._language_model(model, encoded.device)
            state = lm.start(len(encoded), encoded.device)
            parts.append(NetworkPart("lm", self.lm_weight, lm, state))
        if self.ctc_weight > 0:
            scorer = CTCPrefixScorer(_ctc_log_probs(model, encoded, lengths))
            parts.append(CTCPart(self.ctc_weight, scorer))
        return parts

    def _language_model(self, model: Any, device: torch.device) -> Any:
        if not isinstance(self._lm, nn.Module):
            from espnet3.config.targets import locate

            with under(self._trust):
                self._lm = locate(self.lm_loader)(self._lm, device=str(device))
        assert isinstance(self._lm, nn.Module)
        check_same_tokens(self._lm, model)
        return self._lm.to(device).eval()


def check_same_tokens(lm: Any, model: Any) -> None:
    """Raise if a language model and a recogniser mean different tokens by the same ids.

    Raises:
        ConfigError: with the first difference.
    """
    ours = getattr(getattr(model, "tokenizer", None), "tokens", None)
    theirs = getattr(lm, "tokens", None)
    n_ours, n_theirs = model.n_tokens, lm.n_tokens
    difference = ""
    if n_ours != n_theirs:
        difference = f"{n_theirs} tokens, and the recogniser {n_ours}"
    elif ours is not None and theirs is not None and tuple(ours) != tuple(theirs):
        id = next(i for i in range(n_ours) if ours[i] != theirs[i])
        difference = f"{theirs[id]!r} as token {id}, and the recogniser {ours[id]!r}"
    if difference:
        raise ConfigError(
            f"The language model has {difference}, so their tokenizers differ. Train it with the "
            "tokenizer of the recogniser: python run.py --stages train --training_config "
            "conf/training_lm.yaml model.tokenizer=FOLDER; or decode without it: lm: null"
        )


def _check_least(name: str, value: float, least: float) -> None:
    # Written this way round, NaN is refused as well.
    if not least <= value < math.inf:
        raise ConfigError(
            f"decoder.{name} is {value}, but {least} is the least.", fix=f"Write: {name}: 1"
        )


def _decoder_of(model: Any) -> Any:
    decoder = getattr(model, "decoder", None)
    if decoder is None:
        raise ConfigError(
            f"The model ({type(model).__name__}) has no attention decoder, which JointBeam needs. "
            "Train one with a decoder: in the model of conf/training.yaml; or decode by CTC alone: "
            "decoder: {_target_: espnet3.components.decoding.joint_beam.JointBeam, ctc_weight: 1.0}"
        )
    return decoder


def _ctc_log_probs(model: Any, encoded: Tensor, lengths: Tensor) -> list[Tensor]:
    """Return `[frames, n_tokens]` of each utterance."""
    # As one long utterance: for a large vocabulary, padding would take as long as speech.
    real = [one[:length] for one, length in zip(encoded, lengths.tolist(), strict=True)]
    log_probs: Tensor = model.ctc_log_probs(torch.cat(real)[None])[0]
    return list(torch.split(log_probs, [len(one) for one in real]))


def _of_like_lengths(lengths: Sequence[int]) -> list[list[int]]:
    """Return the places of utterances that are searched together, without much padding."""
    order = sorted(range(len(lengths)), key=lambda place: -lengths[place])
    batches: list[list[int]] = []
    for number, place in enumerate(order):
        is_short = batches and 2 * lengths[place] < lengths[batches[-1][0]]
        # Of a few, each step takes nearly as long as of many.
        is_enough = batches and min(len(batches[-1]), len(order) - number) >= _ENOUGH
        if not batches or (is_short and is_enough):
            batches.append([])
        batches[-1].append(place)
    return batches


def _without_padding(encoded: Tensor, lengths: Tensor) -> Tensor:
    """Cut off frames that are padding in all utterances, but for one."""
    # One frame is left even if there are none, as attention to nothing is not a number.
    n_frames = max(1, int(lengths.max())) if len(lengths) else 1
    encoded = encoded[:, :n_frames]
    return nn.functional.pad(encoded, (0, 0, 0, n_frames - encoded.shape[1]))


def _check_results(results: Sequence[Sequence[Hypothesis]]) -> None:
    bad = [str(place) for place, one in enumerate(results) if not one]
    if bad:
        raise DataError(
            f"The scores of {len(bad)} of {len(results)} utterances (in this batch number "
            f"{', '.join(bad[:5])}) are not numbers.",
            fix="Check their audio for NaN, and the weights.",
        )
