"""Run one kind of work through one library, in a process of its own: `peers` starts it.

What a library leaves behind, or a pool that waits for a dead worker, ends with this process.
"""

import importlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.alternatives import ALTERNATIVES, map_pool
from benchmarks.figures import seconds
from benchmarks.peer_items import (
    ItemsProvider,
    MapRunner,
    compute_or_die,
    compute_shortly,
    deadly_items,
    read_span,
    sleep_and_tell,
    spell,
)
from benchmarks.sleeping_items import draw_costs
from benchmarks.spread import ideal_end
from espnet3.parallel import use_parallel

OURS = "ESPnet3"
PEERS: dict[str, tuple[str, Callable[..., Any]]] = {
    "multiprocessing.Pool": ("multiprocessing", map_pool),
    **ALTERNATIVES,
}
N_WORKERS = 2
N_TRIVIAL, N_FEW = 3_000, 10
N_SHORT = 1_000
N_SKEWED, N_SLEEPERS = 400, 4
N_KILLED = 200
N_ROUNDS = 2
Mapper = Callable[..., Any]


def map_ours(
    function: Any,
    items: Sequence[Any],
    n_workers: int,
    *,
    output_dir: Path | None = None,
    costs: Sequence[float] | None = None,
) -> Any:
    """Map with a runner; results are in memory without a folder."""
    runner = MapRunner(ItemsProvider(function, items), output_dir=output_dir)
    with use_parallel({"env": "local", "n_workers": n_workers}):
        return runner(range(len(items)), costs=costs)


def measure_trivial(mapped: Mapper) -> dict[str, Any]:
    """Return the microseconds of an item: many, less a few, which are all start."""
    many = seconds(lambda: mapped(spell, range(N_TRIVIAL), N_WORKERS))
    few = seconds(lambda: mapped(spell, range(N_FEW), N_WORKERS))
    return {"value": 1e6 * max(many - few, 0.0) / (N_TRIVIAL - N_FEW)}


def measure_short(mapped: Mapper) -> dict[str, Any]:
    """Return the seconds of a whole call, results in memory."""
    run = lambda: _all(mapped(compute_shortly, range(N_SHORT), N_WORKERS))  # noqa: E731
    return {"value": min(seconds(run) for _ in range(N_ROUNDS))}


def measure_disk(mapped: Mapper) -> dict[str, Any]:
    """Return the seconds of a whole call, results in a file that survives a power failure."""
    with tempfile.TemporaryDirectory() as folder:

        def run(number: int) -> None:
            if mapped is map_ours:
                output_dir = Path(folder, str(number))
                found = map_ours(compute_shortly, range(N_SHORT), N_WORKERS, output_dir=output_dir)
                assert len(found.read_text().splitlines()) == N_SHORT
                return
            results = _all(mapped(compute_shortly, range(N_SHORT), N_WORKERS))
            with open(f"{folder}/results.jsonl", "w") as file:
                file.writelines(f"{json.dumps(one)}\n" for one in results)
                file.flush()
                os.fsync(file.fileno())

        return {"value": min(seconds(partial(run, i)) for i in range(N_ROUNDS))}


def measure_skewed(mapped: Mapper) -> dict[str, Any]:
    """Return how long skewed items took, once workers were up, over the least that is possible."""
    costs = draw_costs(0, N_SKEWED)
    run = partial(map_ours, costs=costs) if mapped is map_ours else mapped
    spans = [read_span(text) for text in run(sleep_and_tell, costs, N_SLEEPERS)]
    first, last = min(s.begin for s in spans), max(s.end for s in spans)
    return {"value": (last - first) / (ideal_end(spans) - first)}


def measure_killed(mapped: Mapper) -> dict[str, Any]:
    """Tell how a run ends in which a worker is killed once, and what was computed again."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            n_results = len(list(mapped(compute_or_die, deadly_items(folder, N_KILLED), N_WORKERS)))
            how = "finishes" if n_results == N_KILLED else f"ends with {n_results} results"
        except BaseException as error:
            how = f"raises {type(error).__name__}"
        computed = Path(folder, "computed").read_text().split()
    again = len(computed) - len(set(computed))
    return {"text": f"{how}; {again} of {N_KILLED} items again"}


def _all(results: Any) -> Any:
    assert len(results) == N_SHORT
    return results


WORK = {
    "trivial": measure_trivial,
    "short": measure_short,
    "disk": measure_disk,
    "skewed": measure_skewed,
    "killed": measure_killed,
}


def main(peer: str, work: str, output: str) -> None:
    """Measure, and write the answer to a file: the libraries print what they like."""
    mapped: Mapper = map_ours
    if peer != OURS:
        package, mapped = PEERS[peer]
        importlib.import_module(package)
    Path(output).write_text(json.dumps(WORK[work](mapped)))


if __name__ == "__main__":
    main(*sys.argv[1:])
