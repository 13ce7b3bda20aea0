"""A whole call, from `runner(...)` to the merged file, processes started and stopped."""

import importlib
import itertools
import resource
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.alternatives import ALTERNATIVES, has_slurm, map_pool
from benchmarks.busy_items import N_ITEMS, ComputeRunner, NothingProvider, compute
from benchmarks.figures import Figure, Skipped, best_of, seconds
from espnet3.parallel import use_parallel

N_WORKERS = 2
LIMIT = 1.3
N_SHORT, N_MANY = 1000, 8
LIMIT_IN_MEMORY, LIMIT_IN_FOLDER = 1.05, 1.15


def run_ours(output_dir: Path | None, n_items: int = N_ITEMS, n_workers: int = N_WORKERS) -> None:
    """Run all items, then commit and merge them if there is a folder."""
    with use_parallel({"env": "local", "n_workers": n_workers}):
        made = ComputeRunner(NothingProvider(), output_dir=output_dir)(range(n_items))
    assert len(made.read_text().splitlines() if output_dir else made) == n_items


def run_pool(
    method: str | None = "spawn", n_items: int = N_ITEMS, n_workers: int = N_WORKERS
) -> None:
    """Run all items on a pool of processes, results in memory."""
    assert len(map_pool(compute, range(n_items), n_workers, method)) == n_items


def measure_short_items(new_dir: Iterator[Path]) -> Iterator[Figure]:
    """Compare many workers with `multiprocessing.Pool` as it is: on Linux, it forks."""
    memory, folder, pool = best_of(
        4,
        lambda: run_ours(None, N_SHORT, N_MANY),
        lambda: run_ours(next(new_dir), N_SHORT, N_MANY),
        lambda: run_pool(None, N_SHORT, N_MANY),
    )
    what = f"{N_SHORT} items of ~4 ms on {N_MANY} workers"
    yield Figure(f"{what}, in memory; against Pool({N_MANY})", memory, "s", pool, LIMIT_IN_MEMORY)
    yield Figure(f"{what}, to disk; against Pool({N_MANY})", folder, "s", pool, LIMIT_IN_FOLDER)
    # On a machine that others use, time by the clock says little; CPU time is the same.
    memory, folder, pool = (
        min(_cpu_seconds(call) for _ in range(3))
        for call in (
            lambda: run_ours(None, N_SHORT, N_MANY),
            lambda: run_ours(next(new_dir), N_SHORT, N_MANY),
            lambda: run_pool(None, N_SHORT, N_MANY),
        )
    )
    yield Figure("beside: the same in memory, CPU time", memory, "s", pool)
    yield Figure("beside: the same to disk, CPU time", folder, "s", pool)


def _cpu_seconds(call: Callable[[], None]) -> float:
    """Return the CPU time of a call, that of the processes included which it starts and ends."""
    before = _cpu_time()
    call()
    return _cpu_time() - before


def _cpu_time() -> float:
    both = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def measure() -> Iterator[Figure | Skipped]:
    """Compare with a pool of processes, then with what else people use."""
    with tempfile.TemporaryDirectory() as folder:
        new_dir = map(Path(folder).joinpath, map(str, itertools.count()))
        yield from measure_short_items(new_dir)
        ours, pool = best_of(6, lambda: run_ours(next(new_dir)), run_pool)
    what = f"{N_ITEMS} items of ~4 ms on {N_WORKERS} workers, to disk; against Pool(chunksize=1)"
    yield Figure(what, ours, "s", pool, LIMIT)
    for name, (package, run) in ALTERNATIVES.items():
        if why := why_not(name, package):
            yield Skipped(f"beside: {name}", why)
        else:
            taken = seconds(lambda run=run: run(compute, range(N_ITEMS), N_WORKERS))
            yield Figure(f"beside: {name}", taken, "s", pool)


def why_not(name: str, package: str) -> str:
    """Return why one of the alternatives cannot be measured here; empty if it can."""
    try:
        importlib.import_module(package)
    except ImportError:
        return "not installed"
    return "no Slurm answers here" if name.endswith("Slurm") and not has_slurm() else ""
