"""An n-gram over tokens as arrays, filled in where the search comes by."""

import threading
from collections.abc import Sequence

import numpy as np

from espnet3.components.decoding.ngram import Context, NGram
from espnet3.components.decoding.prefix_search import Floats, Ints

_LARGEST_TABLE = 2**28  # bytes; a larger one is begun anew before the next batch


class NGramTable:
    """Scores tokens after states, as `PrefixScorer` says.

    A state is a row of the table. Its row of scores is computed when the state is first reached,
    so that a frame costs no Python per token. Whoever searches holds `lock` meanwhile: two searches
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
            self._scores = np.concatenate([self._scores, np.zeros_like(self._scores)])
            self._next = np.concatenate([self._next, np.full_like(self._next, -1)])
            self._ends = np.concatenate([self._ends, np.zeros_like(self._ends)])
        self._contexts.append(context)
        self._states[context] = state
        values = [self._ngram.score_id(context, word) for word in self._words]
        self._scores[state] = self._weight * np.array(values) + self._bonus
        self._ends[state] = self._weight * self._ngram.finish(context)
        return state
