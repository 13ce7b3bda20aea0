"""Publish a shard: work in a folder of one's own, `done` last, then one rename.

A shard may be run more than once, by a requeued job or by a second driver, but is seen only once:
the first rename wins and a late twin removes itself. There are no locks to leave behind.
"""

import json
import logging
import os
import shutil
import time
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from espnet3.io.atomic import fsync_dir, fsync_file, write_json
from espnet3.shards.layout import DONE, POSITION, RunLayout, shard_of, shard_of_attempt
from espnet3.shards.manifest import load_manifest

logger = logging.getLogger(__name__)
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Done:
    """What a committed shard says of itself."""

    run_id: str
    shard: int
    start: int
    stop: int
    n_failed: int = 0
    seconds: float = 0.0
    load_seconds: float = 0.0
    finished: float = field(default_factory=time.time)
    host: str = ""
    pid: int = 0
    files: dict[str, dict[str, int]] = field(default_factory=dict)
    summary: Any = None

    @property
    def n_items(self) -> int:
        """Items of the shard, failed ones included."""
        return self.stop - self.start

    @property
    def n_written(self) -> int:
        """Items that have a result."""
        return self.n_items - self.n_failed


def begin_attempt(layout: RunLayout, shard: int) -> Path:
    """Make a fresh folder for one attempt at a shard."""
    attempt = layout.new_attempt(shard)
    attempt.mkdir()
    return attempt


def finish_attempt(attempt: Path, done: Done) -> Done:
    """Make the attempt's files durable and write `done`, which also lists them with checksums."""
    (attempt / POSITION).unlink(missing_ok=True)
    files = _seal_all(attempt)
    done = Done(**{**asdict(done), "files": files, "finished": time.time()})
    write_json(attempt / DONE, asdict(done))
    return done


def _seal_all(folder: Path) -> dict[str, dict[str, int]]:
    """Force all files to disk; return an entry per file, and one per subfolder (`wav/`)."""
    entries: dict[str, dict[str, int]] = {}
    for path in walk_files(folder):
        name = entry_name(folder, path)
        entry = entries.setdefault(name, {"files": 0, "bytes": 0, "crc32": 0, "lines": 0})
        _seal(path, entry)
    for parent in {path.parent for path in walk_files(folder)}:
        fsync_dir(parent)
    return entries


def entry_name(folder: Path, path: Path) -> str:
    """Return the entry of `done` that covers a file: its name, or its subfolder's with a slash.

    One entry per subfolder keeps `done` small where a shard holds a thousand wav files.
    """
    first, *rest = path.relative_to(folder).parts
    return f"{first}/" if rest else first


def walk_files(folder: Path) -> Iterator[Path]:
    """Yield all files below a folder in a fixed order."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.is_dir(follow_symlinks=False):
            yield from walk_files(Path(entry.path))
        elif entry.is_file():
            yield Path(entry.path)


def _seal(path: Path, entry: dict[str, int]) -> None:
    """Force a file to disk and add it to the entry: size, checksum, number of lines."""
    fsync_file(path)
    entry["files"] += 1
    with path.open("rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            entry["crc32"] = zlib.crc32(block, entry["crc32"])
            entry["bytes"] += len(block)
            entry["lines"] += block.count(b"\n")


def commit(attempt: Path, layout: RunLayout, done: Done) -> bool:
    """Publish a finished attempt as its shard.

    The rename is the commit point: before it readers see nothing, after it everything.

    Returns:
        False if another attempt was published first, or if the run was started anew meanwhile;
        `attempt` is then removed.
    """
    target = layout.shard(done.shard)
    while not _rename(attempt, target):
        rival = read_done(target)
        if (rival and rival.run_id == done.run_id) or not _is_current(layout.root, done.run_id):
            logger.info("%s was committed by another attempt; this one is dropped", target.name)
            discard_attempt(attempt)
            return False
        logger.warning("%s is damaged or of another run; this attempt replaces it", target)
        set_aside(layout, done.shard)
    fsync_dir(layout.root)
    return True


def _rename(attempt: Path, target: Path) -> bool:
    try:
        os.rename(attempt, target)  # refuses a folder that is not empty
    except OSError:
        if not attempt.exists():
            raise  # swept by someone who took this attempt for dead: the shard is not ours
        if not target.exists():
            raise
        return False
    return True


def _is_current(root: Path, run_id: str) -> bool:
    manifest = load_manifest(root)
    return manifest is not None and manifest.run_id == run_id


def read_done(shard_dir: str | os.PathLike[str]) -> Done | None:
    """Return what a shard folder says of itself; None if `done` is absent or damaged."""
    try:
        with open(os.path.join(shard_dir, DONE), "rb") as file:
            return Done(**json.loads(file.read()))
    except (OSError, ValueError, TypeError):
        return None


def set_aside(layout: RunLayout, shard: int) -> None:
    """Take a shard's folder out of the way, so that the shard counts as not done."""
    _remove_as(layout.shard(shard), layout.new_attempt(shard))


def committed_shards(root: Path, run_id: str) -> dict[int, Done]:
    """Return the committed shards of a run, by number; damaged and foreign ones are left out."""
    found = {}
    for entry in os.scandir(root):
        if shard_of(entry.name) is None:
            continue
        done = read_done(entry.path)
        if done is not None and done.run_id == run_id:
            found[done.shard] = done
    return found


def attempts(root: Path) -> dict[int, list[Path]]:
    """Return the folders of unfinished attempts, by shard."""
    found: dict[int, list[Path]] = {}
    for entry in os.scandir(root):
        shard = shard_of_attempt(entry.name)
        if shard is not None:
            found.setdefault(shard, []).append(Path(entry.path))
    return found


def discard_attempt(attempt: Path) -> None:
    """Remove an attempt that is given up, even if its worker is still writing.

    The folder gets another name first: a twin that is about to commit must find all of it, or
    nothing.
    """
    _remove_as(attempt, attempt.with_name(f"{attempt.name}-dead"))


def _remove_as(folder: Path, name: Path) -> None:
    try:
        os.rename(folder, name)
    except OSError:  # gone already, or a read-only file system: then nothing can be done
        return
    shutil.rmtree(name, ignore_errors=True)
