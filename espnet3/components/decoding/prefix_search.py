"""CTC prefix beam search over a batch, in NumPy: what a frame does to all beams at once.

A beam keeps the best *endings*: a prefix of tokens together with whether its last frame was a
blank. Two paths that collapse to the same ending are one, with the sum of their probabilities.
An ending that keeps one of the two (blank or token) and one that keeps both share a slot.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

IMPOSSIBLE = -np.inf
_NO_PARENT, _DEAD = np.int64(-1), np.int64(-2)
_MIX_1, _MIX_2 = np.int64(-7046029254386353131), np.int64(-4417276706812531889)


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
        stay_token = np.logaddexp(old_token + repeated, self._from_parents(n, grown, column))
        stay_blank = total + blank[:, None]
        entries = np.concatenate([stay_blank, stay_token, grown.reshape(n, -1)], axis=1)
        extra = self._extras(n, tokens, n_columns)
        chosen = _best(entries if extra is None else entries + extra, self.size)
        return self._move(n, chosen, entries, extra, tokens)

    def _columns(self, tokens: Ints, n_tokens: int) -> Ints:
        """Return [N, V]: the column of each token, or -1."""
        n = len(tokens)
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
    places = np.argpartition(scores, -size, axis=1)[:, -size:]
    order = np.argsort(-np.take_along_axis(scores, places, axis=1), axis=1, kind="stable")
    return np.take_along_axis(places, order, axis=1)


def _mixed(hashes: Ints, tokens: Ints) -> Ints:
    with np.errstate(over="ignore"):
        mixed = (hashes ^ ((tokens + 1) * _MIX_1)) * _MIX_2
        mixed ^= mixed >> 29
        return mixed * _MIX_1
