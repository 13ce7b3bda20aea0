"""Plan ten million items: seconds, memory, size of the manifest; and what a worker reads of it.

Of strings memory is that of the whole process, the list of them included; so is it for the rest.
What a worker adds to its memory for the items of a shard is measured in a process of its own.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, best_of
from benchmarks.measured_process import report_usage, run_measured
from espnet3.shards.layout import manifest_path
from espnet3.shards.manifest import (
    Manifest,
    check_unique,
    collect_items,
    items_digest,
    publish_manifest,
    require_manifest,
)
from espnet3.shards.plan import make_plan

N_ITEMS = 10_000_000
N_SHARDS = 16 * 64
LIMIT = 5.0
_MEGABYTE = 1e6
_LIMIT_MEMORY = 1000.0
_LIMIT_MANIFEST = 1.0
_LIMIT_STRINGS = 3.0
_LIMIT_STRINGS_MEMORY = 1200.0
_LIMIT_SLICE = 50.0


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


def _strings() -> list[str]:
    return [_string(number) for number in range(N_ITEMS)]


def _string(number: int) -> str:
    return f"speaker{number % 5000:05d}-session{number // 5000:05d}-{number:010d}"


INPUTS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "range": lambda: (range(N_ITEMS),),
    "list": lambda: (list(range(N_ITEMS)),),
    "range with costs": lambda: (range(N_ITEMS), _costs()),
    "shuffled list": lambda: (_shuffled(),),
}


def main(kind: str, folder: str = "") -> None:
    """Do what one figure is about, in this process, which `run_measured` started."""
    if kind == "slices":
        report_usage(lambda: read_slices(Path(folder)))
    elif kind == "plain":
        strings = _strings()
        report_usage(lambda: write_and_read(strings, Path(folder) / "plain.json"))
    else:
        indices, *costs = (_strings(),) if kind == "strings" else INPUTS[kind]()
        with tempfile.TemporaryDirectory() as made:
            report_usage(lambda: plan(indices, Path(folder or made), *costs))


def write_and_read(items: list[str], path: Path) -> None:
    """Do the same with the standard library, the whole list at once, and prove nothing."""
    path.write_text(json.dumps(items))
    json.loads(path.read_text())


def read_slices(folder: Path) -> None:
    """Do what a worker does to know the items of the shards that it takes."""
    manifest = require_manifest(folder)
    items = manifest.open_items(folder)
    for shard in range(0, manifest.n_shards, 10):
        start, stop = manifest.bounds[shard : shard + 2]
        assert items[start:stop][0] == _string(start)


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
    yield from _measure_strings()


def _measure_strings() -> Iterator[Figure]:
    """Plan from a list of strings, against writing it as JSON and reading it again."""
    what = f"{N_ITEMS:,} items, planned from a list of strings"
    with tempfile.TemporaryDirectory() as name:
        ours = run_measured("benchmarks.ten_million", "strings", name)
        slices = run_measured("benchmarks.ten_million", "slices", name)
        plain = run_measured("benchmarks.ten_million", "plain", name)
    yield Figure(
        f"{what}; CPU, against writing and reading it as JSON", ours.cpu_seconds, "s",
        plain.cpu_seconds, _LIMIT_STRINGS,
    )  # fmt: skip
    yield Figure(f"{what}: peak memory", ours.peak / _MEGABYTE, "MB", limit=_LIMIT_STRINGS_MEMORY)
    added = slices.growth / _MEGABYTE
    yield Figure("the items of 103 shards in turn: memory", added, "MB", limit=_LIMIT_SLICE)


def _time(what: str, function: Callable[[], None], limited: bool) -> Figure:
    ours, plain = best_of(3, function, lambda: list(range(N_ITEMS)))
    return Figure(f"{what}; against list(range(n))", ours, "s", plain, LIMIT if limited else None)


if __name__ == "__main__":
    main(*sys.argv[1:])
