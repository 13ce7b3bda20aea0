"""Several values of a decoder's settings, tried on one set: each has a folder of results.

The folders do not depend on which other values were asked for, so that a sweep resumes, and grows
by further values, as every inference does.
"""

import itertools
import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from espnet3.errors import ConfigError, suggest
from espnet3.io.atomic import write_json, write_text
from espnet3.io.scp import safe_name
from espnet3.systems.base.context import SWEEP
from espnet3.systems.base.inference import decode_all, parallel_of, plan_inference
from espnet3.systems.base.metric import measure
from espnet3.systems.base.results_table import (
    MEASURED_FROM,
    in_columns,
    interval_of,
    is_error_rate,
    markdown_table,
    with_interval,
)
from espnet3.systems.base.run_description import look_at_folder
from espnet3.text import count, listed

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig
    from espnet3.parallel.open_pool import SharedCluster
    from espnet3.systems.base.inference_output import Need
    from espnet3.systems.base.metric_config import PreparedMetric
    from espnet3.systems.base.stages import Detached

logger = logging.getLogger(__name__)
RATE = "rate"
Goal = Literal["min", "max"]


@dataclass(frozen=True)
class SweepCriterion:
    """The number by which the values of a sweep are compared."""

    test_set: str
    metric: str
    number: str = ""
    """Of those that the metric returns; else its rate, or its first one."""
    goal: Goal = "min"

    def __str__(self) -> str:
        number = f".{self.number}" if self.number else ""
        return f"{self.test_set}/{self.metric}{number}"

    def of(self, numbers: Mapping[str, Any]) -> float:
        """Return the number.

        Raises:
            ConfigError: the metric has no such number, or none that can be compared.
        """
        name = self.name_in(numbers)
        value = numbers.get(name)
        if isinstance(value, int | float) and not math.isnan(value):
            return float(value)
        known = _numbers(numbers)
        raise ConfigError(
            f"--best {self} cannot be compared: {name or 'nothing'} of {self.metric} is {value!r} "
            f"on {self.test_set}.",
            fix=f"{suggest(name, known)} Its numbers are: {', '.join(known)}.".strip(),
        )

    def name_in(self, numbers: Mapping[str, Any]) -> str:
        """Return which number it is."""
        first = RATE if RATE in numbers else next(iter(_numbers(numbers)), "")
        return self.number or first


def _numbers(values: Mapping[str, Any]) -> list[str]:
    return [key for key, value in values.items() if isinstance(value, int | float)]


def choose(text: str, goal: str | None, metrics: "Sequence[PreparedMetric]") -> SweepCriterion:
    """Return what `SET/METRIC`, or `SET/METRIC.NUMBER`, stands for.

    Args:
        text: as it was typed; the name of a metric in upper or lower case.
        goal: `min` or `max`; error rates need none.
        metrics: those that are measured.

    Raises:
        ConfigError: no such metric is measured, or it is not known which of its numbers is better.
    """
    from espnet3.components.metrics.error_rate import ErrorRate

    test_set, slash, name = text.partition("/")
    names = [metric.name for metric in metrics]
    if not (test_set and slash and name):
        raise ConfigError(
            f"--best {text!r} does not name a test set and a metric.",
            fix=f"Write, for example: --best valid/{names[0].lower() if names else 'wer'}",
        )
    by_name = {metric.name.casefold(): metric for metric in metrics}
    found, number = by_name.get(name.casefold()), ""
    if found is None and "." in name:
        name, _, number = name.rpartition(".")
        found = by_name.get(name.casefold())
    if found is None:
        close = suggest(name.casefold(), [known.casefold() for known in names])
        raise ConfigError(
            f"--best {text}: no metric called {name!r} is measured. The metrics config has "
            f"{listed(names)}.",
            fix=f"{close} Write, for example: --best {test_set}/{names[0].lower()}".strip(),
        )
    is_rate = isinstance(found.metric, ErrorRate) and (number or RATE).endswith(RATE)
    if goal is None and not is_rate:
        raise ConfigError(
            f"--best {text} does not say whether more or less of it is better: {found.name} is no "
            "error rate.",
            fix=f"Write: --best {text} max, or: --best {text} min",
        )
    return SweepCriterion(test_set, found.name, number, "max" if goal == "max" else "min")


Values = Mapping[str, Any]
"""A value for each swept key."""


def points_of(swept: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return each combination of the values of the swept keys; the last key changes fastest.

    Example:
        >>> points_of({"beam": [1, 4], "weight": [0.3]})
        [{'beam': 1, 'weight': 0.3}, {'beam': 4, 'weight': 0.3}]
    """
    return [dict(zip(swept, each, strict=True)) for each in itertools.product(*swept.values())]


def folder_of(values: Values) -> str:
    """Return the name of the folder for some values, which others do not share.

    Example:
        >>> folder_of({"model.decoder.lm_weight": 0.3, "model.decoder.beam_size": 8})
        'model.decoder.lm_weight=0.3,model.decoder.beam_size=8'
    """
    return safe_name(",".join(f"{key}={spell(value)}" for key, value in values.items()))


def spell(value: Any) -> str:
    """Return a value as one writes it behind `key=`."""
    return value if isinstance(value, str) else json.dumps(value)


@dataclass(frozen=True)
class Point:
    """The configs for one choice of values."""

    values: Values
    inference: "LoadedConfig"
    metrics: "LoadedConfig"
    folder: Path
    """Its `inference_dir`."""

    def __str__(self) -> str:
        return " ".join(f"{key}={spell(value)}" for key, value in self.values.items())


@dataclass(frozen=True)
class _Score:
    point: Point
    numbers: Mapping[str, Any]
    """All of the metric."""
    value: float
    """The one to compare."""
    interval: Sequence[float] | None

    def cells(self) -> list[str]:
        return [*map(spell, self.point.values.values()), with_interval(self.value, self.interval)]

    def record(self) -> dict[str, Any]:
        return {
            "values": dict(self.point.values),
            "value": self.value,
            "folder": self.point.folder.name,
            "numbers": {k: v for k, v in self.numbers.items() if k != MEASURED_FROM},
        }


@dataclass
class Sweep:
    """Decodes and scores one set with each choice of values, and finds the best."""

    points: Sequence[Point]
    criterion: SweepCriterion
    folder: Path
    """Where the table goes."""
    best: Point | None = field(default=None, init=False)
    """Known when all are measured; of equal ones the first."""

    def infer(
        self, *, detach: bool, needs: "Sequence[Need]", workers: "SharedCluster | None" = None
    ) -> "dict[str, Any] | Detached":
        """Decode the set with all values, on one set of workers.

        Raises:
            StaleRunError: before anything is decoded, if one of the folders has other results.
        """
        runs = [
            replace(run, name=f"{point}, {run.name}")
            for point in self.points
            for run in plan_inference(point.inference, needs=needs)
        ]
        # Those that are refused first: nothing was decoded for them yet.
        runs.sort(key=lambda run: not look_at_folder(run).refused)
        return decode_all(runs, parallel_of(self.points[0].inference, detach=detach), workers)

    def measure(self) -> Path:
        """Score all, write the table, and choose the best.

        Returns:
            The path of `sweep.json`.
        """
        scores = [self._measure(point) for point in self.points]
        better = max if self.criterion.goal == "max" else min
        best = better(scores, key=lambda score: score.value)
        self.best = best.point
        path = self.folder / f"{SWEEP}.json"
        record = {"criterion": str(self.criterion), "goal": self.criterion.goal}
        points = [score.record() for score in scores]
        write_json(path, {**record, "points": points, "best": dict(best.point.values)})
        rows = [[*score.cells(), "best" if score is best else ""] for score in scores]
        header = [*self.points[0].values, f"{self.criterion.metric} of {self.criterion.test_set}"]
        table = markdown_table([*header, ""], rows)
        write_text(path.with_suffix(".md"), f"# Sweep: {self.criterion}\n\n{table}\n")
        for line in in_columns([[*header, ""], *rows]):
            logger.info("%s", line)
        logger.info("%s", self.told())
        return path

    def told(self) -> str:
        """Return a line on the best, and where the table and its results are."""
        assert self.best is not None
        n_choices = count(len(self.points), "choice")
        return (
            f"Best of {n_choices} by {self.criterion}: {self.best}. Results: {self.best.folder}; "
            f"table: {self.folder / SWEEP}.md"
        )

    def _measure(self, point: Point) -> "_Score":
        results = json.loads(measure(point.metrics, point.inference).read_bytes())
        numbers = results[self.criterion.metric][self.criterion.test_set]
        value = self.criterion.of(numbers)
        name = self.criterion.name_in(numbers)
        is_whole = is_error_rate(numbers) and name == RATE
        interval = numbers["interval"] if is_whole else interval_of(numbers, name)
        return _Score(point, numbers, value, interval)

    def describe(self, test_sets: Sequence[str]) -> list[str]:
        """Return lines for a dry run.

        Args:
            test_sets: those that the best values decode.
        """
        better = "highest" if self.criterion.goal == "max" else "lowest"
        last = f"then {listed(test_sets)} with the best" if test_sets else "no other test set"
        return [
            f"Sweep: {count(len(self.points), 'choice')}, by the {better} {self.criterion}; {last}",
            *(f"  {point} into {point.folder}" for point in self.points),
        ]
