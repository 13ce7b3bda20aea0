"""A measured figure, and how to measure two things on a machine that others use too."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One line of the report.

    With a baseline, the figure is the ratio of ours to it; without one, it is `ours` itself. A
    figure without a limit stands there for information.
    """

    what: str
    ours: float
    unit: str
    baseline: float | None = None
    limit: float | None = None

    @property
    def value(self) -> float:
        """What is compared with the limit."""
        return self.ours / self.baseline if self.baseline else self.ours

    @property
    def is_over(self) -> bool:
        """Tell whether the promise is broken."""
        return self.limit is not None and self.value > self.limit


@dataclass(frozen=True)
class Skipped:
    """A comparison that is told in words: why it could not be made, or how it ended."""

    what: str
    why: str


def best_of(n_rounds: int, *functions: Callable[[], object]) -> list[float]:
    """Return the least seconds that each function took in `n_rounds` rounds.

    In each round all of them run one after the other, so that what else the machine does meets
    them alike; the least is what it disturbs least.
    """
    best = [float("inf")] * len(functions)
    for _ in range(n_rounds):
        for number, function in enumerate(functions):
            best[number] = min(best[number], seconds(function))
    return best


def seconds(function: Callable[[], object]) -> float:
    """Return how long one call takes."""
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin
