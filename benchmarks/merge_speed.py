"""Merge 1 GB in 1,000 shards with its proof of completeness; against `cat`.

Ours forces the merged file to the disk before it appears, so `cat` is followed by `sync` of its
file; what it takes without stands beside. All read the shards from the file system's cache.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, best_of, seconds
from benchmarks.measured_process import Usage, report_usage, run_measured
from espnet3.shards.commit import Done, begin_attempt, commit, finish_attempt
from espnet3.shards.manifest import Manifest, load_manifest, publish_manifest
from espnet3.shards.merge import check_complete, concat_files
from espnet3.shards.reorder import restore_lines

N_SHARDS = 1_000
LINES_PER_SHARD = 5_000
LINE_BYTES = 200
N_LINES = N_SHARDS * LINES_PER_SHARD
N_BYTES = N_LINES * LINE_BYTES
LIMIT = 4.0
LIMIT_REORDER = 12.0
_LIMIT_MEMORY = 100.0
_N_ROUNDS = 3
_FREE_BYTES = 6 * N_BYTES
_CAT = "cat split.*/text > cat.out"


def make_run(root: Path) -> None:
    """Lay out a complete run."""
    bounds = list(range(0, N_LINES + 1, LINES_PER_SHARD))
    costs = [1.0] * N_SHARDS
    manifest = Manifest({}, N_LINES, bounds, costs, None, {"items": "range"})
    manifest = publish_manifest(root, manifest, range(N_LINES))
    layout = manifest.layout(root)
    for shard in range(N_SHARDS):
        start, stop = bounds[shard], bounds[shard + 1]
        attempt = begin_attempt(layout, shard)
        lines = [f"utt{item:08d}".ljust(LINE_BYTES - 1, "x") for item in range(start, stop)]
        (attempt / "text").write_text("\n".join(lines) + "\n")
        done = finish_attempt(attempt, Done(manifest.run_id, shard, start, stop))
        commit(attempt, layout, done)


def merge(root: Path) -> None:
    """Prove that the run is complete and join its shards."""
    manifest = _load(root)
    check_complete(root, manifest)
    layout = manifest.layout(root)
    shard_dirs = [layout.shard(shard) for shard in range(N_SHARDS)]
    assert concat_files(shard_dirs, "text", root / "merge.out") == N_LINES


def reorder(root: Path, ranks: Any) -> None:
    """Do the same where each line has its own place in the output."""
    manifest = _load(root)
    check_complete(root, manifest)
    layout = manifest.layout(root)
    parts = ((layout.shard(shard) / "text", ranks[shard]) for shard in range(N_SHARDS))
    restore_lines(parts, root / "reorder.out", n_lines=N_LINES, n_bytes=N_BYTES)


def shuffled_ranks() -> Any:
    """Return the place of each line, shard by shard."""
    import numpy as np

    ranks = np.random.default_rng(0).permutation(N_LINES)
    return ranks.reshape(N_SHARDS, LINES_PER_SHARD)


def _load(root: Path) -> Manifest:
    manifest = load_manifest(root)
    assert manifest is not None
    return manifest


def measure() -> Iterator[Figure]:
    """Merge in both ways, by turns with `cat`."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        _check_space(root)
        make_run(root)
        yield from _compare("merge", root, _N_ROUNDS, LIMIT)
        yield from _compare("reorder", root, _N_ROUNDS, LIMIT_REORDER)


def _compare(kind: str, root: Path, n_rounds: int, limit: float) -> Iterator[Figure]:
    usages: list[Usage] = []
    cats: list[float] = []
    for _ in range(n_rounds):
        cats.append(_shell(f"{_CAT} && sync cat.out", root))
        _remove_outputs(root)  # its pages are free again, as they were for cat
        usages.append(run_measured("benchmarks.merge_speed", kind, str(root)))
        size = (root / f"{kind}.out").stat().st_size
        assert size == N_BYTES, size
        _remove_outputs(root)
    ours, cat = min(usage.seconds for usage in usages), min(cats)
    gigabytes = f"{N_BYTES / 1e9:g} GB in {N_SHARDS:,} shards"
    what = {"merge": "merged", "reorder": "put in order line by line"}[kind]
    yield Figure(f"{gigabytes}, {what}; against cat + sync", ours, "s", cat, limit)
    growth = max(usage.growth for usage in usages) / 1e6
    yield Figure(f"{gigabytes}, {what}: memory", growth, "MB", limit=_LIMIT_MEMORY)
    if kind == "merge":
        (plain,) = best_of(n_rounds, lambda: _shell(_CAT, root))
        yield Figure("beside: against cat without sync", ours, "s", plain)


def _shell(command: str, root: Path) -> float:
    return seconds(lambda: subprocess.run(command, shell=True, check=True, cwd=root))


def _remove_outputs(root: Path) -> None:
    for path in root.glob("*.out"):
        path.unlink()


def _check_space(root: Path) -> None:
    free = shutil.disk_usage(root).free
    if free < _FREE_BYTES:
        sys.exit(
            f"merge_speed needs {_FREE_BYTES / 1e9:g} GB for temporary files, but {root.parent} "
            f"has {free / 1e9:.1f} GB. Choose another disk: TMPDIR=/path make bench"
        )


if __name__ == "__main__":
    run_dir = Path(sys.argv[2])
    if sys.argv[1] == "merge":
        report_usage(lambda: merge(run_dir))
    else:
        given = shuffled_ranks()
        report_usage(lambda: reorder(run_dir, given))
