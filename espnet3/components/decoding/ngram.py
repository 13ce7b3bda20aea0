"""Back-off n-gram language models: ARPA files read and written, sequences scored."""

import gzip
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from espnet3.components.data.errors import DataError
from espnet3.config.trust import checked_path
from espnet3.io.atomic import write_bytes

Context = tuple[int, ...]
"""Ids of the last words, oldest first, as far as the model knows them."""
Written = Mapping[tuple[str, ...], tuple[float, float | None]]
"""Logarithms to base 10 of the probability and the back-off weight of n-grams of one order."""
_LONGEST_LINE = 1_000_000
_MOST_COMPRESSED, _ALWAYS_ALLOWED = 50, 100_000_000
LN_10 = math.log(10.0)
_UNKNOWN_LOG10 = -100.0

BEGIN, END, UNKNOWN_WORD = "<s>", "</s>", "<unk>"


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
        # A context that is no n-gram itself has no continuations, and no back-off weight either.
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


def read_arpa(path: Path) -> NGram:
    """Read a file, gzipped if its name ends in .gz; see `NGram.read`."""
    reader = _Reader(path)
    try:
        with _open(checked_path(path)) as file:
            reader.read(file)
    # gzip raises EOFError for a file that is cut short.
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(f"The n-gram {path} cannot be read: {error}") from error
    return NGram(list(reader.ids), reader.log_probs, reader.backoffs, len(reader.counts))


def write_arpa(path: str | os.PathLike[str], orders: Iterable[Written]) -> None:
    """Write a file atomically, gzipped if its name ends in .gz: the same model, the same bytes."""
    data = "".join(_lines(list(orders))).encode("utf-8")
    if os.fspath(path).endswith(".gz"):
        # The header's time stamp would make two files of the same model differ.
        data = gzip.compress(data, mtime=0)
    write_bytes(path, data)


def _lines(orders: list[Written]) -> Iterator[str]:
    yield "\\data\\\n"
    for n, grams in enumerate(orders, start=1):
        yield f"ngram {n}={len(grams)}\n"
    for n, grams in enumerate(orders, start=1):
        yield f"\n\\{n}-grams:\n"
        # Counts come in the order of the texts, on which the file must not depend.
        for words, (log_prob, backoff) in sorted(grams.items()):
            ending = "" if backoff is None else f"\t{backoff:.7f}"
            yield f"{log_prob:.7f}\t{' '.join(words)}{ending}\n"
    yield "\n\\end\\\n"


def _open(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    return open(path, encoding="utf-8")


class _Reader:
    """Reads one file, line by line."""

    def __init__(self, path: Path) -> None:
        self.ids: dict[str, int] = {}
        self.log_probs: dict[Context, float] = {}
        self.backoffs: dict[Context, float] = {}
        self.counts: list[int] = []
        self._path = path
        self._line = 0

    def read(self, file: IO[str]) -> None:
        lines = self._without_empty(file)
        for line in lines:
            # The format allows any text before this line.
            if line == "\\data\\":
                break
        section = next(lines, "")
        while section.startswith("ngram "):
            self.counts.append(self._number(section.partition("=")[2]))
            section = next(lines, "")
        if not self.counts:
            raise self._error("has no counts behind \\data\\")
        for order, count in enumerate(self.counts, start=1):
            if section != f"\\{order}-grams:":
                raise self._error(f"has {section!r} where \\{order}-grams: should be")
            section = self._read_grams(lines, order, count)
        if section != "\\end\\":
            raise self._error(f"has {section!r} where \\end\\ should be")
        for word in (BEGIN, END):
            if word not in self.ids:
                raise self._error(f"has no unigram {word}")

    def _without_empty(self, file: IO[str]) -> Iterator[str]:
        n_left = max(_ALWAYS_ALLOWED, _MOST_COMPRESSED * self._path.stat().st_size)
        while line := file.readline(_LONGEST_LINE):
            self._line += 1
            n_left -= len(line)
            # What a few kilobytes of .gz unpack to would fill the memory.
            if len(line) == _LONGEST_LINE:
                raise self._error(f"is longer than {_LONGEST_LINE:,} characters")
            if n_left < 0:
                raise self._error(f"is text of more than {_MOST_COMPRESSED} times its size")
            if stripped := line.strip():
                yield stripped

    def _read_grams(self, lines: Iterator[str], order: int, count: int) -> str:
        """Read the n-grams of an order, and return the line behind them."""
        for n_read, line in enumerate(lines):
            if line.startswith("\\"):
                if n_read != count:
                    raise self._error(f"has {n_read} {order}-grams, but says {count}")
                return line
            self._read_gram(line.split(), order)
        raise self._error(f"ends within the {order}-grams")

    def _read_gram(self, fields: list[str], order: int) -> None:
        if len(fields) not in (order + 1, order + 2):
            raise self._error(f"has {len(fields)} fields for an {order}-gram")
        words = fields[1 : order + 1]
        if order == 1:
            self.ids.setdefault(words[0], len(self.ids))
        try:
            gram = tuple(self.ids[word] for word in words)
            self.log_probs[gram] = float(fields[0]) * LN_10
            if len(fields) == order + 2:
                self.backoffs[gram] = float(fields[-1]) * LN_10
        except (KeyError, ValueError) as error:
            raise self._error(f"has no {order}-gram of known words: {error}") from error

    def _number(self, text: str) -> int:
        if not text.strip().isdigit():
            raise self._error(f"has the count {text!r}")
        return int(text)

    def _error(self, what: str) -> DataError:
        return DataError(
            f"The n-gram {self._path}, line {self._line}, {what}. Is it a whole ARPA file?",
            fix="Make one: espnet3.components.decoding.ngram_estimate.train_ngram(texts, 3, path)",
        )
