"""Scores of `metrics.json`, one per metric and test set."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espnet3.errors import IncompleteRunError
from espnet3.systems.base.metric_record import MEASURED_FROM

_ERROR_RATE = ("rate", "unit", "n_units", "substitutions", "deletions", "insertions")


@dataclass(frozen=True)
class Score:
    """The numbers of one metric on one test set."""

    metric: str
    test_set: str
    numbers: Mapping[str, Any]

    @property
    def is_error_rate(self) -> bool:
        """Whether it counts edits of words, characters or tokens."""
        return all(key in self.numbers for key in _ERROR_RATE)

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
        return {
            key: value
            for key, value in self.numbers.items()
            if key != MEASURED_FROM and isinstance(value, str | int | float | None)
        }

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
            f"{path} cannot be read ({error}). Measure again: python run.py --stage measure ..."
        ) from error


def main_score(scores: Sequence[Score], test_set: str) -> Score | None:
    """Return the error rate that the details of a test set are about: of words, if there is one."""
    rates = [score for score in scores if score.test_set == test_set and score.is_error_rate]
    return next((score for score in rates if score.unit == "words"), next(iter(rates), None))
