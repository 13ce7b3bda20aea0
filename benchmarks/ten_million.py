"""Plan ten million items: seconds, memory, and the size of the manifest."""

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, best_of
from benchmarks.measured_process import report_usage, run_measured
from espnet3.shards.items import check_unique, collect_items, items_digest
from espnet3.shards.layout import manifest_path
from espnet3.shards.manifest import Manifest, publish_manifest
from espnet3.shards.plan import make_plan

N_ITEMS = 10_000_000
N_SHARDS = 16 * 64
LIMIT = 5.0
_MEGABYTE = 1e6
_LIMIT_MEMORY = 1000.0
_LIMIT_MANIFEST = 1.0


def plan(indices: Any, folder: Path, costs: Any = None) -> None:
    """Do all that happens between the call of a runner and the start of its first worker."""
    items = collect_items(indices)
    check_unique(items)
    described = {"items": items_digest(items)}
    cut = make_plan(len(items), N_SHARDS, costs=costs)
    manifest = Manifest({}, len(items), cut.bounds, cut.costs, None, described)
    manifest_path(folder).unlink(missing_ok=True)
    publish_manifest(folder, manifest, items)


def _shuffled() -> list[int]:
    import numpy as np

    shuffled: list[int] = np.random.default_rng(0).permutation(N_ITEMS).tolist()
    return shuffled


def _costs() -> Any:
    import numpy as np

    return np.random.default_rng(0).lognormal(size=N_ITEMS)


INPUTS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "range": lambda: (range(N_ITEMS),),
    "list": lambda: (list(range(N_ITEMS)),),
    "range with costs": lambda: (range(N_ITEMS), _costs()),
    "shuffled list": lambda: (_shuffled(),),
}


def main(kind: str) -> None:
    """Plan in this process, which `run_measured` started."""
    indices, *costs = INPUTS[kind]()
    with tempfile.TemporaryDirectory() as folder:
        report_usage(lambda: plan(indices, Path(folder), *costs))


def measure() -> Iterator[Figure]:
    """Plan from a range and from a list, which have limits, and from harder inputs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind, make in INPUTS.items():
            limited = kind in ("range", "list")
            indices, *costs = make()
            what = f"{N_ITEMS:,} items, planned from a {kind}"
            yield _time(what, lambda i=indices, c=costs: plan(i, folder, *c), limited)
            if kind != "shuffled list":
                size = manifest_path(folder).stat().st_size / _MEGABYTE
                yield Figure(f"{what}: manifest", size, "MB", limit=_LIMIT_MANIFEST)
            del indices, costs
            peak = run_measured("benchmarks.ten_million", kind).peak / _MEGABYTE
            yield Figure(f"{what}: peak memory", peak, "MB", limit=_LIMIT_MEMORY)


def _time(what: str, function: Callable[[], None], limited: bool) -> Figure:
    ours, plain = best_of(3, function, lambda: list(range(N_ITEMS)))
    return Figure(f"{what}; against list(range(n))", ours, "s", plain, LIMIT if limited else None)


if __name__ == "__main__":
    main(sys.argv[1])
