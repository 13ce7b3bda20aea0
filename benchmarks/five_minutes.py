"""The benchmark `workers` on five minutes' work, which takes eleven."""

from collections.abc import Iterator

from benchmarks.figures import Figure
from benchmarks.workers import measure_work


def measure() -> Iterator[Figure]:
    """Compare 1 worker, 2 workers, and 2 processes that share nothing."""
    yield from measure_work(300)
