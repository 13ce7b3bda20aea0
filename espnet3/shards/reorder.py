"""Join shards whose lines are not in dataset order, as after sorting items by length.

Two passes in bounded memory: lines are dealt into buckets of neighbouring ranks, then each bucket
is sorted and written. So no file is read at random, which network file systems punish.
"""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from espnet3.errors import IncompleteRunError
from espnet3.io.atomic import open_atomic
from espnet3.io.tables import read_jsonl
from espnet3.shards.commit import Done
from espnet3.shards.layout import FAILED
from espnet3.shards.merge import check_lines, read_part, read_parts, require_done

# Small buckets are sorted within the processor's cache, in half the time of large ones; but too
# many of them would be written in crumbs.
_BUCKET_BYTES = 8 << 20
_MAX_BUCKETS = 256
_MAX_BUCKET_BYTES = 32 << 20
_PENDING_BYTES = 16 << 20
_BLOCK = 1 << 16
_READ_BYTES = 1 << 18
_LINES_AT_ONCE = 256
_Ranks = NDArray[np.int64]


def join_reordered(shard_dirs: Sequence[Path], name: str, target: Path, order: Any) -> int:
    """Join the file `name` of all shards into `target`, its lines put back into dataset order.

    Args:
        shard_dirs: in the order of the plan.
        name: of a file with one line per result.
        target: appears whole or not at all.
        order: which item of the dataset is at each position of the plan.

    Returns:
        The number of lines written.

    Raises:
        IncompleteRunError: naming the part that was changed since its commit or lacks lines.
    """
    shards = [(shard_dir / name, require_done(shard_dir)) for shard_dir in shard_dirs]
    restore_lines(
        _verified(shard_dirs, name, _line_ranks(shards, order)),
        target,
        n_lines=sum(done.n_written for _, done in shards),
        n_bytes=sum(done.files.get(name, {}).get("bytes", 0) for _, done in shards),
    )
    return sum(done.n_written for _, done in shards)


def _verified(
    shard_dirs: Sequence[Path], name: str, ranks: Iterator[_Ranks]
) -> Iterator[tuple[Path, _Ranks, bytes | None]]:
    buffer = memoryview(bytearray(_READ_BYTES))
    for (folder, done, content), own in zip(read_parts(shard_dirs, name), ranks, strict=True):
        if content is not None:
            check_lines(folder / name, done, done.files[name]["lines"])
        # `bool` drops each block: this pass only proves the content, and `restore_lines` reads it.
        elif not read_part(folder / name, done, buffer, bool):
            continue
        yield folder / name, own, content


def _line_ranks(shards: Sequence[tuple[Path, Done]], order: Any) -> Iterator[_Ranks]:
    """Yield, for each shard, which line of the joined file each of its lines is."""
    items = np.asarray(order, dtype=np.int64)
    has_line = np.ones(len(items), dtype=bool)
    for part, done in shards:
        if done.n_failed:
            failed = [record["position"] for record in read_jsonl(part.parent / FAILED)]
            has_line[failed] = False
    item_has_line = np.zeros(len(items), dtype=bool)
    item_has_line[items[has_line]] = True
    rank_of_item = np.cumsum(item_has_line) - 1
    for _, done in shards:
        own = slice(done.start, done.stop)
        yield rank_of_item[items[own][has_line[own]]]


def restore_lines(
    parts: "Iterable[tuple[Path, Sequence[int] | _Ranks, *tuple[bytes | None, ...]]]",
    target: Path,
    *,
    n_lines: int,
    n_bytes: int,
) -> None:
    """Write the lines of all parts to `target`, in the order of their ranks.

    Args:
        parts: a file and, for each of its lines, that line's rank in the output; then its content,
            if the caller has read it.
        target: appears whole or not at all.
        n_lines: how many lines there are in all; the ranks must be 0 to `n_lines - 1`, each once.
        n_bytes: about how many bytes there are in all; chooses the number of buckets.

    Raises:
        IncompleteRunError: if a rank is missing or there twice, or a part has another number of
            lines than ranks.
    """
    bucket_bytes = max(_BUCKET_BYTES, min(n_bytes // _MAX_BUCKETS, _MAX_BUCKET_BYTES))
    n_buckets = max(1, -(-n_bytes // bucket_bytes))
    width = max(1, -(-n_lines // n_buckets))
    # Beside the target, where there must be room for as much anyway, and not in a node's /tmp.
    with tempfile.TemporaryDirectory(prefix=".merge-", dir=target.parent) as folder:
        buckets = [_Bucket(Path(folder) / str(number)) for number in range(n_buckets)]
        n_pending = 0
        for path, ranks, *read in parts:
            content = read[0] if read else None
            lines = _read_lines(path) if content is None else _cut(content)
            n_pending += sum(map(len, lines)) + len(lines)
            _deal(path, lines, np.asarray(ranks, dtype=np.int64), buckets, width, n_lines)
            if n_pending > _PENDING_BYTES:
                n_pending = 0
                for bucket in buckets:
                    bucket.flush()
        with open_atomic(target, "wb") as output:
            for number, bucket in enumerate(buckets):
                first = min(number * width, n_lines)
                bucket.drain(output, range(first, min(first + width, n_lines)))


def _deal(
    path: Path,
    lines: list[bytes],
    ranks: _Ranks,
    buckets: list["_Bucket"],
    width: int,
    n_lines: int,
) -> None:
    if len(lines) != len(ranks):
        raise IncompleteRunError(
            f"{path} has {len(lines)} lines, but {len(ranks)} were expected. If it was changed, "
            f"remove the folder {path.parent} and run the same command again."
        )
    if len(ranks) and not (ranks.min() >= 0 and ranks.max() < n_lines):
        raise IncompleteRunError(
            f"The ranks of the lines of {path} run from {ranks.min()} to {ranks.max()}, but there "
            f"are {n_lines} lines in all.",
            fix=f"Give the ranks 0 to {n_lines - 1}, each once.",
        )
    numbers = ranks // width
    order = np.argsort(numbers)
    ends = np.searchsorted(numbers[order], np.arange(len(buckets)), side="right")
    lines = [lines[i] for i in order.tolist()]
    ranks = ranks[order]
    start = 0
    for bucket, end in zip(buckets, ends.tolist(), strict=True):
        if end > start:
            bucket.add(lines[start:end], ranks[start:end])
        start = end


def _cut(content: bytes) -> list[bytes]:
    # Not splitlines, which also cuts at a lone carriage return.
    *lines, rest = content.split(b"\n")
    return [*lines, rest] if rest else lines


def _read_lines(path: Path) -> list[bytes]:
    lines: list[bytes] = []
    rest = b""
    with path.open("rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            found = (rest + block).split(b"\n")
            rest = found.pop()
            lines += found
    return [*lines, rest] if rest else lines


def _write_lines(file: IO[Any], lines: list[bytes]) -> None:
    # A few at a time: large blocks of memory come from the system and go back to it at each use.
    for start in range(0, len(lines), _LINES_AT_ONCE):
        file.write(b"\n".join([*lines[start : start + _LINES_AT_ONCE], b""]))


class _Bucket:
    """Lines with neighbouring ranks, kept in a file until it is their turn."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ranks: list[_Ranks] = []
        self._pending: list[bytes] = []
        self._pending_ranks: list[_Ranks] = []

    def add(self, lines: list[bytes], ranks: _Ranks) -> None:
        self._pending += lines
        self._pending_ranks.append(ranks)

    def flush(self) -> None:
        if self._pending:
            with self._path.open("ab") as file:
                _write_lines(file, self._pending)
            self._ranks.append(np.concatenate(self._pending_ranks))
            self._pending, self._pending_ranks = [], []

    def drain(self, output: IO[Any], expected: range) -> None:
        self.flush()
        ranks = np.concatenate(self._ranks) if self._ranks else np.empty(0, np.int64)
        self._ranks = []
        order = np.argsort(ranks)
        self._check(ranks[order], expected)
        if not len(ranks):
            return
        lines = _read_lines(self._path)
        _write_lines(output, [lines[i] for i in order.tolist()])
        # At once, so that the disk need not hold all lines twice.
        self._path.unlink()

    def _check(self, ranks: _Ranks, expected: range) -> None:
        wanted = np.arange(expected.start, expected.stop)
        if not np.array_equal(ranks, wanted):
            missing = np.setdiff1d(wanted, ranks)
            twice = ranks[1:][ranks[1:] == ranks[:-1]]
            raise IncompleteRunError(
                f"Lines are missing for ranks {missing[:5].tolist()} ({missing.size} in all) "
                f"and there twice for {twice[:5].tolist()} ({twice.size} in all).",
                fix="Give each part the ranks of its own lines, each rank once over all parts.",
            )
