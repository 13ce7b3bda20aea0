"""How evenly work is spread: when the last item ends, over when it could have ended at best."""

import multiprocessing
from collections.abc import Iterable, Iterator

from benchmarks.figures import Figure
from benchmarks.sleeping_items import (
    N_ITEMS,
    SleepRunner,
    Span,
    UnevenWorkers,
    draw_costs,
    sleep_for,
)
from espnet3.parallel import use_parallel

N_WORKERS = 8
SEED = 0
N_ROUNDS = 3
LIMIT = 1.05
LIMIT_UNEVEN = 1.10
_SLOW = {3: 0.5}
_LATE = {4: 0.5, 5: 0.7, 6: 0.8, 7: 1.0}


def ideal_end(spans: Iterable[Span]) -> float:
    """Return the earliest time at which these workers could have ended this work.

    That is the T for which the sum over workers of speed * max(0, T - ready) is the work, where a
    worker is ready at its first item, and the work is what the items really took, at full speed.
    So neither the start of processes nor an overlong sleep() counts for or against anyone.
    """
    spans = list(spans)
    ready: dict[str, tuple[float, float]] = {}
    for span in sorted(spans, key=lambda span: -span.begin):
        ready[span.worker] = (span.begin, span.speed)
    work = sum((span.end - span.begin) * span.speed for span in spans)
    speed = offset = 0.0
    end = float("inf")
    for begin, worker_speed in sorted(ready.values()):
        if begin >= end:
            break
        speed += worker_speed
        offset += worker_speed * begin
        end = (work + offset) / speed
    return end


def run_spread(
    *,
    speeds: dict[int, float] | None = None,
    delays: dict[int, float] | None = None,
    with_costs: bool = True,
) -> list[Span]:
    """Run the items through a runner."""
    runner = SleepRunner(UnevenWorkers(SEED, speeds or {}, delays or {}))
    with use_parallel({"env": "local", "n_workers": N_WORKERS}):
        return list(runner(range(N_ITEMS), costs=draw_costs(SEED) if with_costs else None))


def run_static() -> list[Span]:
    """Run the items in one contiguous shard per worker."""
    with multiprocessing.get_context("spawn").Pool(N_WORKERS) as pool:
        return pool.map(sleep_for, draw_costs(SEED), chunksize=N_ITEMS // N_WORKERS)


def figure_of(what: str, runs: Iterable[list[Span]], limit: float | None = None) -> Figure:
    """Return the run that was disturbed least, in seconds since its first item began."""
    figures = []
    for spans in runs:
        first = min(span.begin for span in spans)
        last = max(span.end for span in spans)
        figures.append(Figure(what, last - first, "s", ideal_end(spans) - first, limit))
    return min(figures, key=lambda figure: figure.value)


def measure() -> Iterator[Figure]:
    """Spread 1,000 items over equal, slow and late workers."""
    work = f"{N_ITEMS:,} lognormal items on {N_WORKERS} workers"
    yield figure_of(f"{work}; against the ideal", (run_spread() for _ in range(N_ROUNDS)), LIMIT)
    yield figure_of(
        "the same, one worker at half speed",
        (run_spread(speeds=_SLOW) for _ in range(N_ROUNDS)),
        LIMIT_UNEVEN,
    )
    yield figure_of(
        "the same, half of the workers 0.5 to 1 s late",
        (run_spread(delays=_LATE) for _ in range(N_ROUNDS)),
        LIMIT_UNEVEN,
    )
    yield figure_of("beside: without costs=", [run_spread(with_costs=False)])
    yield figure_of("beside: one contiguous shard per worker", [run_static()])
