"""Estimation of n-gram language models: interpolated modified Kneser-Ney."""

import logging
import math
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from espnet3.components.decoding.ngram import BEGIN, END, UNKNOWN_WORD, write_arpa
from espnet3.errors import ConfigError

Gram = tuple[str, ...]
Counts = dict[Gram, int]

_log = logging.getLogger(__name__)
_NEVER = -99.0  # what ARPA files have for log10(0)
# Taken where a text is too small or too regular to have n-grams of every count from 1 to 4.
_USUAL_DISCOUNTS = (0.5, 1.0, 1.5)


def train_ngram(
    texts: Iterable[str],
    order: int,
    path: str | os.PathLike[str],
    *,
    tokenizer: str | os.PathLike[str] | None = None,
) -> Path:
    """Train an n-gram on texts and write it as an ARPA file; the same texts give the same bytes.

    Args:
        texts: One sentence each.
        order: n; 3 or 4 for words, 6 or more for characters.
        path: The file to write, gzipped if its name ends in .gz; its folder is made.
        tokenizer: Folder of a tokenizer, to train on its tokens (for `PrefixBeamCTC`) instead of
            on words (for `LexiconCTC`).

    Returns:
        The path.

    Raises:
        ConfigError: the order is below 1, there are no texts, or a text has the word `<s>`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = train_ngram(["one two", "one three"], 2, f"{folder}/words.arpa")
        ...     print(path.read_text().splitlines()[1])
        ngram 1=6
    """
    sentences = _tokens_of(texts, tokenizer) if tokenizer else (text.split() for text in texts)
    orders = estimate(sentences, order)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_arpa(path, orders)
    _log.info("wrote %s: %s n-grams of order 1 to %d", path, [len(o) for o in orders], order)
    return path


def estimate(
    sentences: Iterable[Sequence[str]], order: int
) -> list[dict[Gram, tuple[float, float | None]]]:
    """Return for each order the log10 probabilities and back-off weights of its n-grams.

    Probabilities of all words but `<s>` sum to 1 after each context; `<unk>` has a share.

    Raises:
        ConfigError: see `train_ngram`.
    """
    if order < 1:
        raise ConfigError(f"The order of the n-gram is {order}, but must be 1 or more: order: 3")
    counts = _count(sentences, order)
    _adjust(counts)
    words = {gram[0] for gram in counts[0]} | {END, UNKNOWN_WORD}
    # Below the unigrams is the uniform distribution; the empty context leads to it.
    lower: dict[Gram, float] = {(): 1.0 / len(words)}
    probs: list[dict[Gram, float]] = []
    weights: list[dict[Gram, float]] = []
    for grams in counts:
        context_weights, found = _interpolate(grams, lower)
        if not probs:
            rest = context_weights[()] / len(words)
            # Texts in tokens may contain `<unk>` themselves, and have then counted it.
            found.setdefault((UNKNOWN_WORD,), rest)
        probs.append(found)
        weights.append(context_weights)
        lower = found
    return _as_logarithms(probs, weights)


def _tokens_of(texts: Iterable[str], folder: str | os.PathLike[str]) -> Iterable[Sequence[str]]:
    from espnet3.components.text.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(Path(folder))
    for text in texts:
        yield [tokenizer.tokens[id] for id in tokenizer.encode(text)]


def _count(sentences: Iterable[Sequence[str]], order: int) -> list[Counts]:
    """Count the n-grams of each order that end in a word or the end."""
    counts: list[Counter[Gram]] = [Counter() for _ in range(order)]
    n_sentences = 0
    for sentence in sentences:
        n_sentences += 1
        for word in (BEGIN, END):
            if word in sentence:
                raise ConfigError(
                    f"The text {' '.join(sentence)!r} has the word {word}, which marks the ends of "
                    "texts in an n-gram.",
                    fix="Remove it from the texts.",
                )
        words = (BEGIN, *sentence, END)
        for n, grams in enumerate(counts, start=1):
            first = 1 if n == 1 else 0  # nothing predicts <s>
            grams.update(words[i : i + n] for i in range(first, len(words) - n + 1))
    if n_sentences == 0:
        raise ConfigError("There are no texts to train the n-gram on.", fix="Give at least one.")
    return [dict(grams) for grams in counts]


def _adjust(counts: list[Counts]) -> None:
    """Replace counts below the highest order by the number of different words before.

    What begins with `<s>` has none before it and keeps its count.
    """
    for lower, higher in pairwise(counts):
        before: Counter[Gram] = Counter(gram[1:] for gram in higher)
        for gram in lower:
            if gram[0] != BEGIN:
                # Never 0: at least `<s>` stands before each of them.
                lower[gram] = before[gram]


def _interpolate(
    grams: Counts, lower: dict[Gram, float]
) -> tuple[dict[Gram, float], dict[Gram, float]]:
    """Return the back-off weights of the contexts, and the probabilities of the n-grams."""
    discounts = _discounts(grams)
    totals: defaultdict[Gram, int] = defaultdict(int)
    freed: defaultdict[Gram, float] = defaultdict(float)
    for gram, count in grams.items():
        totals[gram[:-1]] += count
        freed[gram[:-1]] += discounts[min(count, 3) - 1]
    weights = {context: freed[context] / totals[context] for context in totals}
    probs = {}
    for gram, count in grams.items():
        context = gram[:-1]
        share = (count - discounts[min(count, 3) - 1]) / totals[context]
        probs[gram] = share + weights[context] * lower[gram[1:]]
    return weights, probs


def _discounts(grams: Counts) -> tuple[float, float, float]:
    """Return what is taken from counts of 1, 2, and 3 or more (Chen and Goodman, 1998)."""
    n = Counter(count for count in grams.values() if count <= 4)
    # The formula divides by these.
    if not all(n[count] for count in (1, 2, 3, 4)):
        return _USUAL_DISCOUNTS
    scale = n[1] / (n[1] + 2 * n[2])
    one, two, three = (c - (c + 1) * scale * n[c + 1] / n[c] for c in (1, 2, 3))
    # Odd texts can make a discount negative, or larger than the count that it is taken from.
    if not (0 < one <= 1 and 0 < two <= 2 and 0 < three <= 3):
        return _USUAL_DISCOUNTS
    return one, two, three


def _as_logarithms(
    probs: list[dict[Gram, float]], weights: list[dict[Gram, float]]
) -> list[dict[Gram, tuple[float, float | None]]]:
    """Return the entries of an ARPA file: an n-gram's weight is that of the context it is."""
    orders: list[dict[Gram, tuple[float, float | None]]] = []
    for n, found in enumerate(probs):
        contexts = weights[n + 1] if n + 1 < len(weights) else {}
        entries: dict[Gram, tuple[float, float | None]] = {
            gram: (math.log10(prob), _log10(contexts.get(gram))) for gram, prob in found.items()
        }
        if n == 0:
            # Nothing predicts `<s>`, but as a context it needs an entry for its back-off weight.
            entries[(BEGIN,)] = (_NEVER, _log10(contexts.get((BEGIN,))))
        orders.append(entries)
    return orders


def _log10(weight: float | None) -> float | None:
    # Discounts are above 0, so no weight is 0.
    return None if weight is None else math.log10(weight)
