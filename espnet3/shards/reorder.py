"""Join shards whose lines are not in dataset order, as after sorting items by length.

Two passes in bounded memory: lines are dealt into buckets of neighbouring ranks, then each bucket
is sorted and written. So no file is read at random, which network file systems punish.
"""

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from espnet3.errors import IncompleteRunError
from espnet3.io.atomic import open_atomic

_BUCKET_BYTES = 32 << 20
_Ranks = NDArray[np.int64]


def restore_lines(
    parts: Iterable[tuple[Path, Sequence[int] | _Ranks]],
    target: Path,
    *,
    n_lines: int,
    n_bytes: int,
) -> None:
    """Write the lines of all parts to `target`, in the order of their ranks.

    Args:
        parts: a file and, for each of its lines, that line's rank in the output.
        target: appears whole or not at all.
        n_lines: how many lines there are in all; the ranks must be 0 to `n_lines - 1`, each once.
        n_bytes: about how many bytes there are in all; chooses the number of buckets.

    Raises:
        IncompleteRunError: if a rank is missing or there twice, or a part has another number of
            lines than ranks.
    """
    n_buckets = max(1, -(-n_bytes // _BUCKET_BYTES))
    width = max(1, -(-n_lines // n_buckets))
    with tempfile.TemporaryDirectory(prefix=".merge-", dir=target.parent) as folder:
        buckets = [_Bucket(Path(folder) / str(number)) for number in range(n_buckets)]
        for path, ranks in parts:
            _deal(path, np.asarray(ranks, dtype=np.int64), buckets, width, n_lines)
        with open_atomic(target, "wb") as output:
            for number, bucket in enumerate(buckets):
                first = min(number * width, n_lines)
                bucket.drain(output, range(first, min(first + width, n_lines)))


def _deal(path: Path, ranks: _Ranks, buckets: list["_Bucket"], width: int, n_lines: int) -> None:
    lines = _split(path.read_bytes())
    if len(lines) != len(ranks):
        raise IncompleteRunError(
            f"{path} has {len(lines)} lines, but {len(ranks)} were expected. If it was changed, "
            f"remove the folder {path.parent} and run the same command again."
        )
    if len(ranks) and not (ranks.min() >= 0 and ranks.max() < n_lines):
        raise IncompleteRunError(
            f"The ranks of the lines of {path} run from {ranks.min()} to {ranks.max()}, but there "
            f"are {n_lines} lines in all. Give the ranks 0 to {n_lines - 1}, each once."
        )
    numbers = ranks // width
    order = np.argsort(numbers, kind="stable")
    ends = np.searchsorted(numbers[order], np.arange(len(buckets)), side="right")
    start = 0
    for bucket, end in zip(buckets, ends.tolist(), strict=True):
        if end > start:
            chosen = order[start:end]
            bucket.add([lines[i] for i in chosen.tolist()], ranks[chosen])
        start = end


def _split(data: bytes) -> list[bytes]:
    lines = data.split(b"\n")  # not splitlines, which also cuts at a lone carriage return
    if lines[-1] == b"":
        lines.pop()
    return lines


class _Bucket:
    """Lines with neighbouring ranks, kept in a file until it is their turn."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ranks: list[_Ranks] = []

    def add(self, lines: list[bytes], ranks: _Ranks) -> None:
        with self._path.open("ab") as file:
            file.write(b"\n".join(lines) + b"\n")
        self._ranks.append(ranks)

    def drain(self, output: IO[Any], expected: range) -> None:
        ranks = np.concatenate(self._ranks) if self._ranks else np.empty(0, np.int64)
        order = np.argsort(ranks, kind="stable")
        self._check(ranks[order], expected)
        if not len(ranks):
            return
        lines = _split(self._path.read_bytes())
        output.write(b"\n".join([lines[i] for i in order.tolist()]) + b"\n")
        self._path.unlink()

    def _check(self, ranks: _Ranks, expected: range) -> None:
        wanted = np.arange(expected.start, expected.stop)
        if not np.array_equal(ranks, wanted):
            missing = np.setdiff1d(wanted, ranks)
            twice = ranks[1:][ranks[1:] == ranks[:-1]]
            raise IncompleteRunError(
                f"Lines are missing for ranks {missing[:5].tolist()} ({missing.size} in all) "
                f"and there twice for {twice[:5].tolist()} ({twice.size} in all). Give each part "
                "the ranks of its own lines, each rank once over all parts."
            )
