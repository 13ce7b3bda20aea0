"""Join committed shards into final files, and prove that nothing is missing or there twice."""

import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espnet3.errors import IncompleteRunError
from espnet3.io.atomic import open_atomic
from espnet3.shards.commit import (
    Done,
    add_to_entry,
    committed_shards,
    entry_name,
    read_done,
    walk_files,
)
from espnet3.shards.file_access import reaching
from espnet3.shards.layout import DONE
from espnet3.shards.manifest import Manifest
from espnet3.text import first_few

_BLOCK = 1 << 18
_SHOWN = 5
_N_READERS = 8  # zlib and reading let other threads run; a network answers several at once


@dataclass(frozen=True)
class Coverage:
    """Which shards of a plan are committed."""

    committed: dict[int, Done]
    missing: list[int]

    @property
    def is_complete(self) -> bool:
        """Tell whether every item of the plan is accounted for exactly once."""
        return not self.missing


def read_coverage(root: Path, manifest: Manifest) -> Coverage:
    """Look which shards are committed and hold just the items that the plan gives them."""
    bounds = manifest.bounds
    committed = {
        shard: done
        for shard, done in committed_shards(manifest.layout(root), manifest.run_id).items()
        if shard < manifest.n_shards and [done.start, done.stop] == bounds[shard : shard + 2]
    }
    return Coverage(committed, [s for s in range(manifest.n_shards) if s not in committed])


def check_complete(root: Path, manifest: Manifest, *, contents: bool = True) -> Coverage:
    """Make sure that each item of the plan is in exactly one intact, committed shard.

    Args:
        root: The run folder.
        manifest: Its plan.
        contents: Compare all files with the checksums of `done`, not only their number and size:
            also those that a `merge` reads by itself, or leaves where they are.

    Raises:
        IncompleteRunError: with the shards and items that are missing, or the files that changed.
        FileSystemError: if they cannot be read from here.
    """
    coverage = read_coverage(root, manifest)
    if coverage.missing:
        raise IncompleteRunError(_describe_missing(root, manifest, coverage.missing))
    layout = manifest.layout(root)
    shards = [(layout.shard(shard), done) for shard, done in sorted(coverage.committed.items())]
    for shard_dir, done in shards:
        check_sizes(shard_dir, done)
    if contents:
        check_contents(shards)
    return coverage


def check_contents(shards: Sequence[tuple[Path, Done]]) -> None:
    """Compare the content of all files of shards with the checksums of their `done`.

    Raises:
        IncompleteRunError: naming the file, or the subfolder, that was changed since its commit.
        FileSystemError: if it cannot be read from here.
    """
    n_threads = min(_N_READERS, len(shards))
    if n_threads < 2:
        for shard_dir, done in shards:
            _check_content(shard_dir, done)
        return
    from concurrent.futures import ThreadPoolExecutor  # not before it is needed: it takes its time

    with ThreadPoolExecutor(n_threads) as pool:
        try:
            for _ in pool.map(lambda shard: _check_content(*shard), shards):
                pass
        except BaseException:  # also a signal: the rest is not waited for
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _check_content(shard_dir: Path, done: Done) -> None:
    found: dict[str, dict[str, int]] = {}
    for name, path in _committed_files(shard_dir):
        entry = found.setdefault(name, {"files": 0, "bytes": 0, "crc32": 0})
        with reaching(path):
            add_to_entry(entry, shard_dir, path, counts_lines=False)
    for name, expected in done.files.items():
        now = found.get(name, {})
        # Folders of earlier versions have no checksum of the names.
        if any(now.get(key) != expected[key] for key in expected.keys() & now.keys()) or not now:
            same = now.get("crc32") == expected["crc32"]
            what = "files of other names" if same else "other content"
            amount = _amount(expected["files"], expected["bytes"])
            raise IncompleteRunError(_damaged(shard_dir / name, amount, what))
    for name in sorted(found.keys() - done.files.keys()):
        if not name.startswith("."):  # of a desktop, or of a file system
            raise IncompleteRunError(
                f"{shard_dir / name} was not there when {shard_dir.name} was committed. A merge "
                "would take it for a result: move it out of that folder and run the same command "
                "again."
            )


def _committed_files(shard_dir: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files of a shard, each with the entry of `done` that covers it."""
    with reaching(shard_dir):
        for path in walk_files(shard_dir):
            if (name := entry_name(shard_dir, path)) != DONE:
                yield name, path


def _describe_missing(root: Path, manifest: Manifest, missing: list[int]) -> str:
    bounds = manifest.bounds
    n_items = sum(bounds[shard + 1] - bounds[shard] for shard in missing)
    shown = [f"shard {s}: items {bounds[s]} to {bounds[s + 1] - 1}" for s in missing]
    return (
        f"{n_items} of {manifest.n_items} items in {root} are not done "
        f"({first_few(shown, _SHOWN)}). Run the same command again to finish them."
    )


def check_sizes(shard_dir: Path, done: Done) -> None:
    """Compare the files with what `done` says: cheap, and catches what was edited or lost.

    Raises:
        IncompleteRunError: naming the file, or the subfolder.
    """
    found: dict[str, tuple[int, int]] = {}
    for name, path in _committed_files(shard_dir):
        n_files, n_bytes = found.get(name, (0, 0))
        with reaching(path):
            found[name] = (n_files + 1, n_bytes + path.stat().st_size)
    for name, entry in done.files.items():
        expected = (entry["files"], entry["bytes"])
        if found.get(name) != expected:
            now = _amount(*found[name]) if name in found else "missing"
            raise IncompleteRunError(_damaged(shard_dir / name, _amount(*expected), now))


def _amount(n_files: int, n_bytes: int) -> str:
    return f"{n_bytes} bytes" + (f" in {n_files} files" if n_files > 1 else "")


def _damaged(path: Path, expected: str, found: str) -> str:
    return (
        f"{path} was committed with {expected} and is now {found}. "
        f"Remove the folder {path.parent} and run the same command again to recompute it."
    )


def concat_files(shard_dirs: Sequence[Path], name: str, target: Path) -> int:
    """Join the file `name` of all shards, in the given order, into `target`.

    Streams in constant memory, compares size and checksum of each part with its `done`, and
    checks that a part has a line for each item that did not fail. `target` appears whole or not
    at all. A shard without that file must have no item to show.

    Returns:
        The number of lines written.

    Raises:
        IncompleteRunError: naming the part that was changed since its commit or lacks lines.
    """
    # One for all: memory that is new at each read costs more than the copying.
    buffer = memoryview(bytearray(_BLOCK))
    with open_atomic(target, "wb") as output:
        return sum(
            read_part(shard_dir / name, require_done(shard_dir), buffer, output.write)
            for shard_dir in shard_dirs
        )


def require_done(shard_dir: Path) -> Done:
    """Return what a committed shard says of itself.

    Raises:
        IncompleteRunError: if it is none.
    """
    done = read_done(shard_dir)
    if done is None:
        raise IncompleteRunError(
            f"{shard_dir} has no valid {DONE!r}: it is not a committed shard.",
            fix="Run the same command again to recompute it.",
        )
    return done


def read_part(part: Path, done: Done, buffer: memoryview, take: Callable[[memoryview], Any]) -> int:
    """Read a file of a shard block by block, and prove that it is as it was committed.

    Returns:
        Its number of lines: one for each item with a result.

    Raises:
        IncompleteRunError: if it was changed since its commit or lacks lines.
    """
    expected = done.files.get(part.name)
    if expected is None:
        check_lines(part, done, 0)
        return 0
    checksum = size = 0
    try:
        with part.open("rb", buffering=0) as file:
            while length := file.readinto(buffer):
                checksum = zlib.crc32(buffer[:length], checksum)
                size += length
                take(buffer[:length])
    except FileNotFoundError:
        missing = _damaged(part, f"{expected['bytes']} bytes", "missing")
        raise IncompleteRunError(missing) from None
    if (size, checksum) != (expected["bytes"], expected["crc32"]):
        raise IncompleteRunError(
            _damaged(part, f"{expected['bytes']} bytes", f"{size} bytes of other content")
        )
    # The content is what `done` was written for, so its lines need not be counted again.
    check_lines(part, done, expected["lines"])
    return expected["lines"]


def check_lines(part: Path, done: Done, n_lines: int) -> None:
    """Refuse a part that has not exactly one line for each item with a result."""
    if n_lines != done.n_written:
        raise IncompleteRunError(
            f"{part} has {n_lines} lines for {done.n_written} items with a result "
            f"(items {done.start} to {done.stop - 1}).",
            fix="Write one line per result; escape newlines in values (espnet3.io.scp does).",
        )


def outputs_of(
    folder: Path, since: dict[str, tuple[int, int]] | None = None
) -> dict[str, tuple[int, int]]:
    """Return size and modification time of the files in a folder that differ from `since`."""
    found = {}
    for entry in os.scandir(folder):
        if entry.is_file(follow_symlinks=False) and not entry.name.startswith("."):
            with suppress(FileNotFoundError):  # removed, or listed before it can be looked at
                stat = entry.stat()
                found[entry.name] = (stat.st_size, stat.st_mtime_ns)
    return {name: value for name, value in found.items() if (since or {}).get(name) != value}
