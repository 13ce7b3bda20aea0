"""CTC prefix beam search, batched over utterances, with an optional n-gram over tokens."""

import threading
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from espnet3.components.decoding.hypothesis import Hypothesis
from espnet3.components.decoding.ngram import Context, NGram
from espnet3.components.text.tokenizer import BLANK, load_tokenizer
from espnet3.errors import ConfigError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
IMPOSSIBLE = -np.inf
# They differ, so that a prefix without a parent is never taken for the child of a dead slot.
_NO_PARENT, _DEAD = np.int64(-1), np.int64(-2)
# Odd, so that a product modulo 2**64 loses nothing: 2**64 over the golden ratio, a prime of xxHash.
_MIX_1, _MIX_2 = np.int64(-7046029254386353131), np.int64(-4417276706812531889)
_LARGEST_TABLE = 2**28  # bytes; a larger one is cleared before the next batch


@dataclass(frozen=True)
class Frames:
    """The posteriors of a batch, longest utterance first, cut to the tokens that count."""

    blank: Floats
    """[B, T]"""
    tokens: Ints
    """[B, T, C], without blank."""
    values: Floats
    """[B, T, C], of the tokens."""
    lengths: Ints
    """[B], never rising."""
    n_tokens: int


class PrefixBeamCTC:
    """Finds the token sequences with the largest sum of probabilities over their CTC paths.

    The beam counts endings: a prefix whose last frame was a blank, and the same prefix whose last
    frame was its last token, are two. So a beam of 1 without an n-gram follows one path, the most
    likely symbol of each frame: it returns what `GreedyCTC` returns, with the score of that path
    (where two symbols of a frame tie, either may be taken).

    The score is `ctc + ngram_weight * ngram + token_bonus * n_tokens`. Utterances do not influence
    each other: a batch gives, to the last bit, what its utterances give alone.

    Args:
        beam_size: Endings kept after each frame.
        n_best: Hypotheses returned, at most.
        token_limit: In each frame only so many tokens count, the most likely ones, beside blank.
        ngram: An ARPA file, plain or .gz, whose words are the tokenizer's tokens (see
            `ngram_estimate.train_ngram`), or an `NGram`.
        ngram_weight: Of the n-gram's log-probability.
        token_bonus: Added for each token with an n-gram, which likes short texts.
        tokenizer: Folder of the tokenizer; needed with an n-gram.

    Raises:
        ConfigError: a number is out of range, or an n-gram comes without a tokenizer.
    """

    def __init__(
        self,
        beam_size: int = 10,
        n_best: int = 1,
        *,
        token_limit: int = 30,
        ngram: str | Path | NGram | None = None,
        ngram_weight: float = 0.3,
        token_bonus: float = 0.0,
        tokenizer: str | Path | None = None,
    ) -> None:
        counts = {"beam_size": beam_size, "n_best": n_best, "token_limit": token_limit}
        for name, value in counts.items():
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"decoder.{name} is {value}, but must be 1 or more: {name}: 10")
        if token_bonus and ngram is None:
            raise ConfigError(
                f"decoder.token_bonus is {token_bonus}, but without an n-gram there is nothing to "
                "make up for.",
                fix="Remove it, or add: ngram: data/ngram.arpa",
            )
        self.beam_size = beam_size
        self.n_best = n_best
        self.token_limit = token_limit
        self.ngram_weight = ngram_weight
        self.token_bonus = token_bonus
        self._table = _make_table(ngram, tokenizer, ngram_weight, token_bonus)

    def __call__(self, model: Any, encoded: Tensor, lengths: Tensor) -> list[list[Hypothesis]]:
        """Return the n-best of each utterance, best first; see `GreedyCTC`."""
        with torch.inference_mode():
            return self.decode(model.ctc_log_probs(encoded), lengths)

    def decode(self, log_probs: Tensor, lengths: Tensor) -> list[list[Hypothesis]]:
        """Decode posteriors [B, T, V] of `lengths` frames each."""
        if log_probs.shape[0] == 0:
            return []
        # The utterances that still have frames are then always the first ones: slices, not copies.
        longest_first = torch.argsort(lengths.cpu(), descending=True, stable=True)
        frames = _frames_of(log_probs, lengths, longest_first, self.token_limit)
        with nullcontext() if self._table is None else self._table.lock:
            found = self._hypotheses(frames)
        places = torch.argsort(longest_first).tolist()
        return [found[place] for place in places]

    def _hypotheses(self, frames: Frames) -> list[list[Hypothesis]]:
        if self._table is not None:
            # Only between batches: the states of a running search are rows of this table.
            self._table.trim()
        beam, slots, tokens = search(frames, self.beam_size, self._table)
        ctc = beam.total()
        scores = ctc + beam.extra
        if self._table is not None:
            scores = scores + self._table.finish(beam.state)
        order = np.argsort(-scores, axis=1, kind="stable")[:, : self.n_best]
        texts = trace(slots, tokens, order)
        found = []
        for i, (places, candidates) in enumerate(zip(order, texts, strict=True)):
            # Each utterance gets one hypothesis, even if nothing is possible.
            is_used = [rank == 0 or np.isfinite(scores[i, k]) for rank, k in enumerate(places)]
            found.append([
                self._hypothesis(tokens, float(scores[i, k]), float(ctc[i, k]))
                for tokens, k, used in zip(candidates, places, is_used, strict=True)
                if used
            ])  # fmt: skip
        return found

    def _hypothesis(self, tokens: tuple[int, ...], score: float, ctc: float) -> Hypothesis:
        if self._table is None:
            return Hypothesis(tokens, score, {"ctc": ctc})
        return Hypothesis(tokens, score, {"ctc": ctc, "ngram": self._table.log_prob(tokens)})


def _make_table(
    ngram: str | Path | NGram | None,
    tokenizer: str | Path | None,
    weight: float,
    bonus: float,
) -> "NGramTable | None":
    if ngram is None:
        return None
    if tokenizer is None:
        raise ConfigError(
            "decoder.ngram is set, but not the tokenizer whose tokens are its words.",
            fix='Add to the decoder: tokenizer: "${tokenizer.save_path}"',
        )
    model = ngram if isinstance(ngram, NGram) else NGram.read(ngram)
    return NGramTable(model, load_tokenizer(tokenizer).tokens, weight, bonus)


def _frames_of(log_probs: Tensor, lengths: Tensor, order: Tensor, limit: int) -> Frames:
    """Keep blank and the most likely tokens of each frame."""
    log_probs = log_probs[order.to(log_probs.device)]
    n_tokens = log_probs.shape[-1]
    others = log_probs[..., BLANK + 1 :]
    if limit < n_tokens - 1:
        values, tokens = others.topk(limit, dim=-1)
        ids: Ints = tokens.cpu().numpy() + BLANK + 1
    else:
        values = others
        ids = np.broadcast_to(np.arange(BLANK + 1, n_tokens), others.shape)
    return Frames(
        blank=log_probs[..., BLANK].double().cpu().numpy(),
        tokens=ids,
        values=values.double().cpu().numpy(),
        lengths=lengths.cpu()[order].numpy(),
        n_tokens=n_tokens,
    )


class PrefixScorer(Protocol):
    """Adds a score to prefixes, such as a language model's; states are numbers."""

    start: int
    """The state of the empty prefix."""

    def scores(self, states: Ints, tokens: Ints) -> Floats:
        """Return the weighted scores [B, K, C] of tokens [B, C] after states [B, K]."""
        ...

    def advance(self, states: Ints, tokens: Ints) -> Ints:
        """Return the states [N] after tokens [N]."""
        ...

    def finish(self, states: Ints) -> Floats:
        """Return the weighted scores of the end after states [...]."""
        ...


class PrefixBeam:
    """The slots of all utterances, each [B, K].

    Args:
        n_utterances: B.
        size: K, the endings kept of each utterance.
        scorer: of prefixes, or None.
    """

    def __init__(self, n_utterances: int, size: int, scorer: PrefixScorer | None = None) -> None:
        shape = (n_utterances, size)
        self.size = size
        self.scorer = scorer
        self.blank = np.full(shape, IMPOSSIBLE)
        self.blank[:, 0] = 0.0
        self.token = np.full(shape, IMPOSSIBLE)
        self.last = np.zeros(shape, dtype=np.int64)  # blank: the prefix is empty
        # Prefixes are compared by a hash of 64 bits: a collision is less likely than a bit flip.
        self.hash = np.full(shape, _DEAD)
        self.hash[:, 0] = 0
        self.parent = np.full(shape, _NO_PARENT)
        self.extra = np.zeros(shape)
        self.state = np.full(shape, scorer.start if scorer else 0, dtype=np.int64)
        self._column: Ints = np.zeros((0, 0), dtype=np.int64)

    def total(self) -> Floats:
        """Return the log-probabilities of the prefixes, with either ending."""
        total: Floats = np.logaddexp(self.blank, self.token)
        return total

    def step(self, blank: Floats, tokens: Ints, values: Floats, n_tokens: int) -> tuple[Ints, Ints]:
        """Take a frame of the first utterances: blank [N], tokens and their values [N, C].

        Returns:
            For each slot [N, K] the slot that it comes from, and the token added or -1.
        """
        n, n_columns = tokens.shape
        rows = np.arange(n)[:, None]
        old_blank, old_token, last = self.blank[:n], self.token[:n], self.last[:n]
        total = np.logaddexp(old_blank, old_token)
        grown = total[:, :, None] + values[:, None, :]
        column = self._columns(tokens, n_tokens)[rows, last]
        is_there = column >= 0
        at = np.nonzero(is_there)
        repeated = np.full(last.shape, IMPOSSIBLE)
        repeated[at] = values[at[0], column[at]]
        # The same token again is a new one only after a blank.
        grown[at[0], at[1], column[at]] = old_blank[at] + repeated[at]
        # After the line above: a parent that ends in the same token counts by its blank alone.
        stay_token = np.logaddexp(old_token + repeated, self._from_parents(n, grown, column))
        stay_blank = total + blank[:, None]
        entries = np.concatenate([stay_blank, stay_token, grown.reshape(n, -1)], axis=1)
        extra = self._extras(n, tokens, n_columns)
        chosen = _best(entries if extra is None else entries + extra, self.size)
        return self._move(n, chosen, entries, extra, tokens)

    def _columns(self, tokens: Ints, n_tokens: int) -> Ints:
        """Return [N, V]: the column of each token, or -1."""
        n = len(tokens)
        # Each frame needs one, and its shape changes only when an utterance ends.
        if self._column.shape != (n, n_tokens):
            self._column = np.empty((n, n_tokens), dtype=np.int64)
        self._column.fill(-1)
        np.put_along_axis(self._column, tokens, np.arange(tokens.shape[1])[None], axis=1)
        return self._column

    def _from_parents(self, n: int, grown: Floats, column: Ints) -> Floats:
        """Take out of `grown` what leads to a prefix that has a slot, and return it by slot."""
        is_child = self.parent[:n, :, None] == self.hash[:n, None, :]
        row, child, parent = np.nonzero(is_child & (column >= 0)[:, :, None])
        where = (row, parent, column[row, child])
        joined = np.full(column.shape, IMPOSSIBLE)
        joined[row, child] = grown[where]
        grown[where] = IMPOSSIBLE
        return joined

    def _extras(self, n: int, tokens: Ints, n_columns: int) -> Floats | None:
        if self.scorer is None:
            return None
        old = self.extra[:n]
        added = old[:, :, None] + self.scorer.scores(self.state[:n], tokens)
        return np.concatenate([old, old, added.reshape(n, self.size * n_columns)], axis=1)

    def _move(
        self, n: int, chosen: Ints, entries: Floats, extra: Floats | None, tokens: Ints
    ) -> tuple[Ints, Ints]:
        """Make the chosen entries the new slots."""
        rows = np.arange(n)[:, None]
        size = self.size
        value = entries[rows, chosen]
        is_new = chosen >= 2 * size
        slot = np.where(is_new, (chosen - 2 * size) // tokens.shape[1], chosen % size)
        token = np.where(is_new, tokens[rows, (chosen - 2 * size) % tokens.shape[1]], -1)
        # An old prefix may be chosen twice, with blank and with token: the first gets both.
        prefix = np.where(is_new, chosen, slot)
        is_same = prefix[:, :, None] == prefix[:, None, :]
        is_blank = chosen < size
        by_ending = np.where(is_same, value[:, None, :], IMPOSSIBLE)
        is_dead = np.tril(is_same, -1).any(axis=2) | (value == IMPOSSIBLE)
        for ending, kept in ((self.blank, is_blank), (self.token, ~is_blank)):
            # A prefix is chosen at most once with each ending, so the largest is that one.
            best = np.where(kept[:, None, :], by_ending, IMPOSSIBLE).max(axis=2)
            ending[:n] = np.where(is_dead, IMPOSSIBLE, best)
        old_hash = self.hash[:n][rows, slot]
        new_hash = np.where(is_new, _mixed(old_hash, token), old_hash)
        parent = np.where(is_new, old_hash, self.parent[:n][rows, slot])
        self.hash[:n] = np.where(is_dead, _DEAD, new_hash)
        self.parent[:n] = np.where(is_dead, _NO_PARENT, parent)
        self.last[:n] = np.where(is_new, token, self.last[:n][rows, slot])
        if self.scorer is not None and extra is not None:
            self.extra[:n] = extra[rows, chosen]
            state = self.state[:n][rows, slot]
            state[is_new] = self.scorer.advance(state[is_new], token[is_new])
            self.state[:n] = state
        return slot, token


def search(frames: Frames, size: int, scorer: PrefixScorer | None) -> tuple[PrefixBeam, Ints, Ints]:
    """Run the search over all frames.

    Returns:
        The beam at the end, and for each frame [T, B, K] the slots and tokens of `step`.
    """
    n_utterances, n_frames = frames.blank.shape
    beam = PrefixBeam(n_utterances, size, scorer)
    # Slots of an utterance that has ended stay in place, so `trace` can go back over all frames.
    slots = np.broadcast_to(np.arange(size), (n_frames, n_utterances, size)).copy()
    tokens = np.full((n_frames, n_utterances, size), -1)
    for t in range(n_frames):
        n = int((frames.lengths > t).sum())
        if n == 0:
            break
        slots[t, :n], tokens[t, :n] = beam.step(
            frames.blank[:n, t], frames.tokens[:n, t], frames.values[:n, t], frames.n_tokens
        )
    return beam, slots, tokens


def trace(slots: Ints, tokens: Ints, ends: Ints) -> list[list[tuple[int, ...]]]:
    """Return the tokens of the slots `ends` [B, N], by going back through the frames."""
    rows = np.arange(len(ends))[:, None]
    found = np.full((len(slots), *ends.shape), -1)
    at = ends
    for t in range(len(slots) - 1, -1, -1):
        found[t] = tokens[t][rows, at]
        at = slots[t][rows, at]
    lists = found.transpose(1, 2, 0)
    return [[tuple(one[one >= 0].tolist()) for one in utterance] for utterance in lists]


def _best(scores: Floats, size: int) -> Ints:
    """Return the places of the best entries of each row, best first."""
    if size == 1:
        best: Ints = scores.argmax(axis=1)[:, None]
        return best
    # There are many more entries than are kept, so only these are sorted.
    places = np.argpartition(scores, -size, axis=1)[:, -size:]
    order = np.argsort(-np.take_along_axis(scores, places, axis=1), axis=1, kind="stable")
    return np.take_along_axis(places, order, axis=1)


def _mixed(hashes: Ints, tokens: Ints) -> Ints:
    # A hash is meant to wrap around.
    with np.errstate(over="ignore"):
        mixed = (hashes ^ ((tokens + 1) * _MIX_1)) * _MIX_2
        mixed ^= mixed >> 29
        return mixed * _MIX_1


class NGramTable:
    """Scores tokens after states, as `PrefixScorer` says.

    A state is a row of the table. Its row of scores is computed when the state is first reached,
    so that a frame costs no Python per token. A search holds `lock` meanwhile: two searches
    at once would give two contexts the same row.

    Args:
        ngram: its words are the tokens.
        tokens: by id; those that the n-gram does not know get its score of unknown words.
        weight: of its log-probability.
        bonus: added for each token.
    """

    start = 0

    def __init__(self, ngram: NGram, tokens: Sequence[str], weight: float, bonus: float) -> None:
        self._ngram = ngram
        self._words = [ngram.word_id(token) for token in tokens]
        self._weight = weight
        self._bonus = bonus
        self.lock = threading.Lock()
        self._clear()

    def scores(self, states: Ints, tokens: Ints) -> Floats:
        """Return the weighted scores [B, K, C] of tokens [B, C] after states [B, K]."""
        found: Floats = self._scores[states[:, :, None], tokens[:, None, :]]
        return found

    def advance(self, states: Ints, tokens: Ints) -> Ints:
        """Return the states [N] after tokens [N]."""
        after = self._next[states, tokens]
        for i in np.nonzero(after < 0)[0]:
            after[i] = self._reach(int(states[i]), int(tokens[i]))
        return after

    def finish(self, states: Ints) -> Floats:
        """Return the weighted scores of the end after states [...]."""
        found: Floats = self._ends[states]
        return found

    def log_prob(self, tokens: Sequence[int]) -> float:
        """Return the log-probability of a whole sequence, unweighted, with its end."""
        return self._ngram.log_prob_ids([self._words[token] for token in tokens])

    def trim(self) -> None:
        """Forget the states if they take too much memory."""
        if self._scores.nbytes + self._next.nbytes > _LARGEST_TABLE:
            self._clear()

    def _clear(self) -> None:
        self._contexts: list[Context] = []
        self._states: dict[Context, int] = {}
        self._scores = np.zeros((16, len(self._words)))
        self._next = np.full((16, len(self._words)), -1)
        self._ends = np.zeros(16)
        self._add(self._ngram.start())

    def _reach(self, state: int, token: int) -> int:
        context = self._ngram.advance(self._contexts[state], self._words[token])
        after = self._states.get(context)
        if after is None:
            after = self._add(context)
        self._next[state, token] = after
        return after

    def _add(self, context: Context) -> int:
        state = len(self._contexts)
        if state == len(self._scores):
            # Doubled, so that the copying is spread over many new states.
            self._scores = np.concatenate([self._scores, np.zeros_like(self._scores)])
            self._next = np.concatenate([self._next, np.full_like(self._next, -1)])
            self._ends = np.concatenate([self._ends, np.zeros_like(self._ends)])
        self._contexts.append(context)
        self._states[context] = state
        values = [self._ngram.score_id(context, word) for word in self._words]
        self._scores[state] = self._weight * np.array(values) + self._bonus
        self._ends[state] = self._weight * self._ngram.finish(context)
        return state
