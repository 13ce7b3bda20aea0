"""A whole call, from `runner(...)` to the merged file, processes started and stopped."""

import importlib
import itertools
import multiprocessing
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.alternatives import ALTERNATIVES
from benchmarks.busy_items import N_ITEMS, ComputeRunner, NothingProvider, compute
from benchmarks.figures import Figure, Skipped, best_of, seconds
from espnet3.parallel import use_parallel

N_WORKERS = 2
LIMIT = 1.3


def run_ours(output_dir: Path) -> None:
    """Run, commit and merge all items."""
    with use_parallel({"env": "local", "n_workers": N_WORKERS}):
        merged = ComputeRunner(NothingProvider(), output_dir=output_dir)(range(N_ITEMS))
    assert len(merged.read_text().splitlines()) == N_ITEMS


def run_pool() -> None:
    """Run all items on a pool of processes, results in memory."""
    with multiprocessing.get_context("spawn").Pool(N_WORKERS) as pool:
        assert len(pool.map(compute, range(N_ITEMS), chunksize=1)) == N_ITEMS


def measure() -> Iterator[Figure | Skipped]:
    """Compare with a pool of processes, then with what else people use."""
    with tempfile.TemporaryDirectory() as folder:
        new_dir = map(Path(folder).joinpath, map(str, itertools.count()))
        ours, pool = best_of(6, lambda: run_ours(next(new_dir)), run_pool)
    what = f"{N_ITEMS} items of ~4 ms on {N_WORKERS} workers, to disk; against Pool(chunksize=1)"
    yield Figure(what, ours, "s", pool, LIMIT)
    for name, (package, run) in ALTERNATIVES.items():
        try:
            importlib.import_module(package)
        except ImportError:
            yield Skipped(f"beside: {name}", "not installed")
        else:
            yield Figure(f"beside: {name}", seconds(run), "s", pool)
