"""Edits that turn a reference into a hypothesis, found by RapidFuzz."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import Levenshtein

CORRECT, SUBSTITUTIONS, DELETIONS, INSERTIONS = range(4)
"""Columns of `count_edits`."""

Counts = NDArray[np.int64]


class Span(NamedTuple):
    """A stretch of an alignment, by positions in reference and hypothesis.

    `kind` is `equal`, `replace` (both sides of one length), `delete` or `insert`.
    """

    kind: str
    ref_start: int
    ref_stop: int
    hyp_start: int
    hyp_stop: int


def count_edits(pairs: Iterable[tuple[Sequence[str], Sequence[str]]]) -> Counts:
    """Return a row for each pair: correct units, substitutions, deletions, insertions.

    Their sum of errors is the least possible. How it divides into the three kinds is not unique;
    it is the choice of RapidFuzz, and so that of jiwer. An empty reference has insertions only.

    Args:
        pairs: Reference and hypothesis, each a list of words, or a text for its characters.
    """
    numbers = _Numbers()
    rows = [_count(reference, hypothesis, numbers) for reference, hypothesis in pairs]
    return np.array(rows, dtype=np.int64).reshape(len(rows), 4)


def align(reference: Sequence[str], hypothesis: Sequence[str]) -> list[Span]:
    """Return the alignment that `count_edits` counts."""
    return [Span(*span) for span in _opcodes(reference, hypothesis, _Numbers())]


class _Numbers(defaultdict[str, int]):
    """A number for each word: RapidFuzz would compare the hashes of words, which may collide."""

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        return number


def _opcodes(reference: Sequence[str], hypothesis: Sequence[str], numbers: _Numbers) -> Any:
    if isinstance(reference, str) and isinstance(hypothesis, str):
        return Levenshtein.opcodes(reference, hypothesis)
    return Levenshtein.opcodes(
        [numbers[word] for word in reference], [numbers[word] for word in hypothesis]
    )


def _count(
    reference: Sequence[str], hypothesis: Sequence[str], numbers: _Numbers
) -> tuple[int, int, int, int]:
    if reference == hypothesis:
        return len(reference), 0, 0, 0
    substitutions = deletions = insertions = 0
    for kind, ref_start, ref_stop, hyp_start, hyp_stop in _opcodes(reference, hypothesis, numbers):
        if kind == "replace":
            substitutions += ref_stop - ref_start
        elif kind == "delete":
            deletions += ref_stop - ref_start
        elif kind == "insert":
            insertions += hyp_stop - hyp_start
    correct = len(reference) - substitutions - deletions
    return correct, substitutions, deletions, insertions
