"""Back-off n-gram language models: ARPA files read, sequences scored."""

import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

BEGIN, END, UNKNOWN_WORD = "<s>", "</s>", "<unk>"

Context = tuple[int, ...]
"""Ids of the last words, oldest first, as far as the model knows them."""

LN_10 = math.log(10.0)
_UNKNOWN_LOG10 = -100.0


class NGram:
    """A back-off n-gram. All scores are natural logarithms; ARPA files have those to base 10.

    A word that the model does not know is scored as `<unk>`, or, if there is none, as 1e-100.

    Args:
        words: in the order of their ids, with `<s>` and `</s>`.
        log_probs: of each n-gram by its ids, all orders.
        backoffs: logarithms of the back-off weights; an n-gram without one has 0.
        order: n, the words of the longest n-gram.
    """

    def __init__(
        self,
        words: Sequence[str],
        log_probs: dict[Context, float],
        backoffs: dict[Context, float],
        order: int,
    ) -> None:
        self.order = order
        self._ids = {word: id for id, word in enumerate(words)}
        self._log_probs = log_probs
        self._backoffs = backoffs
        self._unknown = self._ids.get(UNKNOWN_WORD, -1)
        self._end = self._ids[END]
        self._begin = self._ids[BEGIN]

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "NGram":
        """Read an ARPA file, gzipped if its name ends in .gz.

        Raises:
            DataError: it does not exist, or is not a whole ARPA file; with file and line.
        """
        from espnet3.components.decoding.arpa import read_arpa

        return read_arpa(Path(path))

    @property
    def words(self) -> tuple[str, ...]:
        """The words that the model knows, in the order of their ids."""
        return tuple(self._ids)

    def word_id(self, word: str) -> int:
        """Return the id of a word, that of `<unk>` if it is not known."""
        return self._ids.get(word, self._unknown)

    def start(self) -> Context:
        """Return the context of the first word."""
        return (self._begin,) if self.order > 1 else ()

    def score(self, context: Context, word: str) -> tuple[float, Context]:
        """Return the log-probability of a word, and the context after it."""
        id = self.word_id(word)
        return self.score_id(context, id), self.advance(context, id)

    def score_id(self, context: Context, word: int) -> float:
        """Return the log-probability of a word by its id."""
        backoff = 0.0
        while True:
            found = self._log_probs.get((*context, word))
            if found is not None:
                return backoff + found
            if not context:
                return backoff + _UNKNOWN_LOG10 * LN_10
            backoff += self._backoffs.get(context, 0.0)
            context = context[1:]

    def advance(self, context: Context, word: int) -> Context:
        """Return the context after a word: what of its last words can still change a score."""
        longest = (*context, word)[-(self.order - 1) :] if self.order > 1 else ()
        for first in range(len(longest)):
            if longest[first:] in self._log_probs:
                return longest[first:]
        return ()

    def finish(self, context: Context) -> float:
        """Return the log-probability of the end."""
        return self.score_id(context, self._end)

    def log_prob(self, words: Iterable[str]) -> float:
        """Return the log-probability of a sentence with its end."""
        return self.log_prob_ids([self.word_id(word) for word in words])

    def log_prob_ids(self, words: Sequence[int]) -> float:
        """Return the log-probability of a sentence of ids with its end."""
        context, total = self.start(), 0.0
        for word in words:
            total += self.score_id(context, word)
            context = self.advance(context, word)
        return total + self.finish(context)

    def perplexity(self, texts: Iterable[str]) -> float:
        """Return the perplexity of texts, by words and ends; unknown words count."""
        total, n_words = 0.0, 0
        for text in texts:
            words = text.split()
            total += self.log_prob(words)
            n_words += len(words) + 1
        return math.exp(-total / n_words)
