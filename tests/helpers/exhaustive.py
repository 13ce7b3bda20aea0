"""Which cases of a matrix `make test` takes; `make test-exhaustive` takes the others."""

from collections.abc import Iterable
from typing import Any

import pytest


def few(cases: Iterable[Any], n: int) -> list[Any]:
    """Keep `n` cases, from all over the list, and mark the others as exhaustive.

    For cases that are more of the same. What differs, a fault or a promise of its own, stays.
    """
    cases = list(cases)
    step = max(len(cases) / n, 1.0)
    kept = {int(step * number) for number in range(n)}
    return [case if at in kept else _exhaustive(case) for at, case in enumerate(cases)]


def pairs(rows: Iterable[Any], columns: Iterable[Any]) -> list[Any]:
    """Keep so many pairs that each row and each column comes, and mark the others as exhaustive.

    For what two lists have nothing to do with: any folder in the script of any scheduler.
    """
    rows, columns = list(rows), list(columns)
    shorter = min(len(rows), len(columns))
    return [
        (row, column) if i % shorter == j % shorter else _exhaustive((row, column))
        for i, row in enumerate(rows)
        for j, column in enumerate(columns)
    ]


def _exhaustive(case: Any) -> Any:
    mark = pytest.mark.exhaustive
    if hasattr(case, "marks"):
        return pytest.param(*case.values, id=case.id, marks=[*case.marks, mark])
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=mark)
