"""Scores of `metrics.json`, and their breakdown by utterance, length and speaker."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from espnet3.commands import recipe_command
from espnet3.components.metrics.error_rate import Counts, n_errors, n_units, percentage
from espnet3.errors import IncompleteRunError
from espnet3.systems.base.results_table import (
    MEASURED_FROM,
    interval_of,
    is_error_rate,
    plain_numbers,
)

DASH = "\u2013"
_KINDS = ("correct", "substitutions", "deletions", "insertions")
_MOST_BINS = 8
_STEPS = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 3600.0)


@dataclass(frozen=True)
class Score:
    """The numbers of one metric on one test set."""

    metric: str
    test_set: str
    numbers: Mapping[str, Any]

    @property
    def is_error_rate(self) -> bool:
        """Tell whether it counts edits of words, characters or tokens."""
        return is_error_rate(self.numbers)

    @property
    def rate(self) -> float | None:
        """In percent; None without any unit in the references."""
        return self.numbers.get("rate")

    @property
    def interval(self) -> tuple[float, float] | None:
        """Of the rate."""
        found = self.numbers.get("interval")
        return None if found is None else (float(found[0]), float(found[1]))

    @property
    def unit(self) -> str:
        """Such as `words`."""
        return str(self.numbers.get("unit", ""))

    @property
    def settings(self) -> Mapping[str, Any]:
        """Those of the metric, as they were when it was measured."""
        found: Mapping[str, Any] = self._record.get("settings", {})
        return found

    def input_path(self, key: str, base: Path) -> Path | None:
        """Return the file that an input was read from; None if it is not on record."""
        entry = self._record.get("inputs", {}).get(key)
        return base / entry["path"] if isinstance(entry, Mapping) else None

    @property
    def scalars(self) -> dict[str, Any]:
        """The plain numbers and texts, of any metric."""
        return plain_numbers(self.numbers)

    def interval_of(self, key: str) -> tuple[float, float] | None:
        """Return the interval of one of them."""
        return interval_of(self.numbers, key)

    @property
    def _record(self) -> Mapping[str, Any]:
        found = self.numbers.get(MEASURED_FROM)
        return found if isinstance(found, Mapping) else {}


def read_scores(path: Path) -> list[Score]:
    """Read `metrics.json`; none if there is no such file.

    Raises:
        IncompleteRunError: it is damaged.
    """
    if not path.is_file():
        return []
    try:
        results = json.loads(path.read_bytes())
        return [
            Score(metric, test_set, numbers)
            for metric, sets in results.items()
            for test_set, numbers in sets.items()
        ]
    except (ValueError, AttributeError) as error:
        raise IncompleteRunError(
            f"{path} cannot be read ({error}). Measure again: {recipe_command('measure')}"
        ) from error


def main_score(scores: Sequence[Score], test_set: str) -> Score | None:
    """Return the error rate that the details of a test set are about: of words, if there is one."""
    rates = [score for score in scores if score.test_set == test_set and score.is_error_rate]
    return next((score for score in rates if score.unit == "words"), next(iter(rates), None))


@dataclass(frozen=True)
class Utterances:
    """Ids, and a row of counts for each."""

    ids: list[str]
    counts: Counts

    def worst(self, n_wanted: int) -> list[int]:
        """Return the numbers of those with the most errors; of equals, the shortest first."""
        errors, units = n_errors(self.counts), n_units(self.counts)
        order = np.lexsort((units, -errors))[:n_wanted]
        # Utterances without errors are not worst, even if there is room for them.
        return [int(number) for number in order if errors[number]]


@dataclass(frozen=True)
class UtteranceGroup:
    """A part of a test set, such as the utterances of one speaker."""

    label: str
    rate: float | None
    n_utterances: int
    n_units: int


def read_utterances(path: Path) -> Utterances | None:
    """Read `<metric>.jsonl` of a test set; None if it is not there, or of another kind."""
    if not path.is_file():
        return None
    ids, rows = [], []
    try:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                record = json.loads(line)
                ids.append(str(record["id"]))
                rows.append([record[kind] for kind in _KINDS])
    except (ValueError, KeyError, TypeError):
        return None
    return Utterances(ids, np.array(rows, dtype=np.int64).reshape(len(rows), len(_KINDS)))


def by_units(counts: Counts) -> list[UtteranceGroup]:
    """Break down by the length of the reference: each length, or ranges with as many each."""
    lengths = n_units(counts)
    found = np.unique(lengths)
    if len(found) <= _MOST_BINS + 2:
        starts = found.tolist()
    else:
        shares = np.arange(_MOST_BINS) / _MOST_BINS
        # A set, because quantiles of a few frequent lengths coincide.
        starts = sorted({int(start) for start in np.quantile(lengths, shares)})
    stops = [*(start - 1 for start in starts[1:]), int(found[-1]) if len(found) else 0]
    labels = [f"{a}" if a == b else f"{a}{DASH}{b}" for a, b in zip(starts, stops, strict=True)]
    return _grouped(counts, lengths, starts, labels.__getitem__)


def by_seconds(counts: Counts, seconds: NDArray[np.float64]) -> list[UtteranceGroup]:
    """Break down by duration: ranges of one round width, and the rest."""
    if not len(seconds):
        return []
    # Not the longest: one recording of an hour would put all others into the first bin.
    reach = float(np.quantile(seconds, 0.98))
    step = next((step for step in _STEPS if reach / step <= _MOST_BINS), _STEPS[-1])
    n_bins = max(1, min(_MOST_BINS, int(np.ceil(reach / step))))
    starts = [step * i for i in range(n_bins)]
    return _grouped(counts, seconds, starts, lambda i: _seconds_label(i, step, n_bins))


def _seconds_label(number: int, step: float, n_bins: int) -> str:
    start = step * number
    return f"{start:g} s +" if number == n_bins - 1 else f"{start:g}{DASH}{start + step:g} s"


def _grouped(
    counts: Counts,
    values: NDArray[np.int64] | NDArray[np.float64],
    starts: Sequence[float],
    label: Callable[[int], str],
) -> list[UtteranceGroup]:
    members = np.searchsorted(np.asarray(starts), values, side="right") - 1
    errors, units = n_errors(counts), n_units(counts)
    return [
        _group(label(i), errors[members == i], units[members == i])
        for i in range(len(starts))
        if (members == i).any()
    ]


def _group(label: str, errors: Counts, units: Counts) -> UtteranceGroup:
    total = int(units.sum())
    return UtteranceGroup(label, percentage(int(errors.sum()), total), len(errors), total)


def read_groups(path: Path) -> list[UtteranceGroup]:
    """Read a table `<metric>.by_<field>.tsv`; lines of another form are passed over."""
    with path.open(encoding="utf-8") as lines:
        titles = next(lines, "").rstrip("\n").split("\t")
        rows = [line.rstrip("\n").split("\t") for line in lines]
    return list(_parsed(titles, rows))


def _parsed(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterable[UtteranceGroup]:
    for row in rows:
        cells = dict(zip(titles[1:], row[1:], strict=False))
        try:
            rate = float(cells["rate"]) if cells["rate"] else None
            yield UtteranceGroup(row[0], rate, int(cells["n_utterances"]), int(cells["n_units"]))
        except (KeyError, ValueError):
            continue
