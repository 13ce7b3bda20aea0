"""Edits that turn a reference into a hypothesis, found by RapidFuzz, and rates of their counts."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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


_LENGTH_STARTS = (1, 5, 10, 20, 50, 100, 200, 500, 1000)
_DRAWS_AT_ONCE = 1 << 22
"""Bounds the memory: 32 MB of counts."""


@dataclass(frozen=True)
class Bootstrap:
    """How intervals are found."""

    n_resamples: int = 1000
    confidence: float = 0.95
    seed: int = 0


def n_units(counts: Counts) -> Counts:
    """Return the length of each reference."""
    lengths: Counts = counts[:, : DELETIONS + 1].sum(axis=1)
    return lengths


def n_errors(counts: Counts) -> Counts:
    """Return the errors of each utterance."""
    errors: Counts = counts[:, SUBSTITUTIONS : INSERTIONS + 1].sum(axis=1)
    return errors


def percentage(part: float, whole: float) -> float | None:
    """Return a share in percent, or None of nothing."""
    return 100 * part / whole if whole else None


def tally(counts: Counts) -> dict[str, Any]:
    """Return the numbers of a set; rates are in percent, and None where there is no unit."""
    totals = [int(total) for total in counts.sum(axis=0)]
    units, errors = sum(totals[: DELETIONS + 1]), sum(totals[SUBSTITUTIONS:])
    sentence_errors = int((n_errors(counts) > 0).sum())
    return {
        "rate": percentage(errors, units),
        "n_utterances": len(counts),
        "n_units": units,
        "correct": totals[CORRECT],
        "substitutions": totals[SUBSTITUTIONS],
        "deletions": totals[DELETIONS],
        "insertions": totals[INSERTIONS],
        "errors": errors,
        "sentence_errors": sentence_errors,
        "sentence_error_rate": percentage(sentence_errors, len(counts)),
    }


def intervals(
    counts: Counts, groups: Sequence[str] | None, bootstrap: Bootstrap
) -> dict[str, tuple[float, float] | None]:
    """Return `interval` of the rate and `sentence_error_interval`.

    They are None where there are fewer than two utterances or groups: one says nothing about how
    much another would differ.

    Args:
        counts: A row for each utterance.
        groups: The group of each utterance, where whole groups (speakers) are to be resampled.
        bootstrap: How.
    """
    names = ("interval", "sentence_error_interval")
    errors = n_errors(counts)
    ones = np.ones_like(errors)
    rows = np.stack([errors, n_units(counts), (errors > 0).astype(np.int64), ones], axis=1)
    if groups is not None:
        rows = _sum_by(rows, groups)
    if len(rows) < 2 or bootstrap.n_resamples == 0:
        return dict.fromkeys(names)
    sums = resample_sums(rows, bootstrap.n_resamples, bootstrap.seed)
    pairs = ((sums[:, 0], sums[:, 1]), (sums[:, 2], sums[:, 3]))
    found = [percentile_interval(*pair, bootstrap.confidence) for pair in pairs]
    return dict(zip(names, found, strict=True))


def tally_by(counts: Counts, groups: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the numbers of each group, in order of first appearance."""
    positions: dict[str, list[int]] = {}
    for position, group in enumerate(groups):
        positions.setdefault(group, []).append(position)
    return {group: tally(counts[chosen]) for group, chosen in positions.items()}


def length_groups(counts: Counts) -> list[str]:
    """Return the range that each reference's length is in, such as `10-19`."""
    labels = ["0", *map(_range_label, _LENGTH_STARTS, (*_LENGTH_STARTS[1:], None))]
    return [labels[bisect_right(_LENGTH_STARTS, length)] for length in n_units(counts).tolist()]


def length_order(label: str) -> int:
    """Return a key that sorts the labels of `length_groups`."""
    return int(label.partition("-")[0].rstrip("+"))


def _range_label(start: int, following: int | None) -> str:
    return f"{start}+" if following is None else f"{start}-{following - 1}"


def _sum_by(rows: NDArray[np.int64], groups: Sequence[str]) -> NDArray[np.int64]:
    _, members = np.unique(np.asarray(groups, dtype=object), return_inverse=True)
    sums = np.zeros((members.max(initial=-1) + 1, rows.shape[1]), dtype=np.int64)
    np.add.at(sums, members, rows)
    return sums


def resample_sums(rows: NDArray[np.int64], n_resamples: int, seed: int = 0) -> NDArray[np.float64]:
    """Draw as many rows as there are, with replacement, `n_resamples` times, and sum each draw.

    Equal rows are drawn together, by how often each occurs. That is the same distribution as
    drawing row by row, and its cost does not grow with the number of utterances.

    Returns:
        [n_resamples, columns]; the same for the same rows, in any order, and seed.
    """
    unique, counts = np.unique(rows, axis=0, return_counts=True)
    generator = np.random.default_rng(seed)
    shares, values = counts / len(rows), unique.astype(np.float64)
    step = max(1, _DRAWS_AT_ONCE // len(unique))
    sums = [
        generator.multinomial(len(rows), shares, size=min(step, n_resamples - start)) @ values
        for start in range(0, n_resamples, step)
    ]
    return np.concatenate(sums) if sums else np.empty((0, rows.shape[1]))


def percentile_interval(
    errors: NDArray[np.float64], totals: NDArray[np.float64], confidence: float
) -> tuple[float, float] | None:
    """Return where the middle share `confidence` of the rates lies, in percent.

    Draws without any total have no rate and are left out; None if no draw is left.
    """
    drawn = totals > 0
    if not drawn.any():
        return None
    rates = 100 * errors[drawn] / totals[drawn]
    low, high = np.quantile(rates, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)
