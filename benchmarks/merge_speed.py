"""Merge 1 GB in 1,000 shards, and 20,000 small files, with proof of completeness; against `cat`.

The small files are those that a merge has to read, the `done` of each shard among them, and `cat`
reads the same. Ours forces the merged file to the disk before it appears, so `cat` is followed by
`sync` of its file; what it takes without stands beside. All read the shards from the file system's
cache.
"""

import resource
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
LIMIT_SMALL = 2.0
LIMIT_SMALL_CPU = 2.0
N_SMALL_FILES = 20_000
LINES_PER_SMALL = 5
_LIMIT_MEMORY = 100.0
_N_ROUNDS = 3
_FREE_BYTES = 6 * N_BYTES
_CAT = "cat split.*/text > cat.out"
# A list for xargs, because so many names are too long for one line.
_CAT_ALL = "printf '%s\\n' split.*/* | xargs cat > cat.out"


def make_run(root: Path, n_shards: int = N_SHARDS, lines_per_shard: int = LINES_PER_SHARD) -> None:
    """Lay out a complete run."""
    n_lines = n_shards * lines_per_shard
    bounds = list(range(0, n_lines + 1, lines_per_shard))
    manifest = Manifest({}, n_lines, bounds, [1.0] * n_shards, None, {"items": "range"})
    manifest = publish_manifest(root, manifest, range(n_lines))
    layout = manifest.layout(root)
    for shard in range(n_shards):
        start, stop = bounds[shard], bounds[shard + 1]
        attempt = begin_attempt(layout, shard)
        lines = [f"utt{item:08d}".ljust(LINE_BYTES - 1, "x") for item in range(start, stop)]
        (attempt / "text").write_text("\n".join(lines) + "\n")
        done = finish_attempt(attempt, Done(manifest.run_id, shard, start, stop))
        commit(attempt, layout, done)


def merge(root: Path) -> None:
    """Prove that the run is complete and join its shards."""
    manifest = _load(root)
    layout = manifest.layout(root)
    shard_dirs = [layout.shard(shard) for shard in range(manifest.n_shards)]
    with check_complete(root, manifest).at_hand(layout):
        assert concat_files(shard_dirs, "text", root / "merge.out") == manifest.n_items


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
    with tempfile.TemporaryDirectory() as name:
        make_run(Path(name), N_SMALL_FILES // 2, LINES_PER_SMALL)
        yield from _compare_small(Path(name))


def _compare_small(root: Path) -> Iterator[Figure]:
    ours: list[float] = []
    cats: list[float] = []
    parts: list[float] = []
    cpu: list[tuple[float, float]] = []
    for _ in range(_N_ROUNDS):
        before = _children_cpu()
        cats.append(_shell(f"{_CAT_ALL} && sync cat.out", root))
        cat_cpu = _children_cpu() - before
        parts.append(_shell(f"{_CAT_ALL.replace('/*', '/text')} && sync cat.out", root))
        _remove_outputs(root)
        usage = run_measured("benchmarks.merge_speed", "merge", str(root))
        ours.append(usage.seconds)
        cpu.append((usage.cpu_seconds, cat_cpu))
        _remove_outputs(root)
    what = f"{N_SMALL_FILES:,} files in {N_SMALL_FILES // 2:,} shards, merged"
    yield Figure(f"{what}; against cat of them + sync", min(ours), "s", min(cats), LIMIT_SMALL)
    ours_cpu, cats_cpu = (min(times) for times in zip(*cpu, strict=True))
    yield Figure(f"{what}: CPU time; against cat", ours_cpu, "s", cats_cpu, LIMIT_SMALL_CPU)
    yield Figure("beside: against cat without done + sync", min(ours), "s", min(parts))


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


def _children_cpu() -> float:
    """Return what all child processes took so far: other programs do not count."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


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
    _load(run_dir)  # imports what it needs, which is not the merge's time
    if sys.argv[1] == "merge":
        report_usage(lambda: merge(run_dir))
    else:
        given = shuffled_ranks()
        report_usage(lambda: reorder(run_dir, given))
