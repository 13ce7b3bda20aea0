"""Publish a shard: work in a folder of one's own, `done` last, then one rename.

A shard may be run more than once, by a requeued job or by a second driver, but is seen only once:
the first rename wins and a late twin removes itself. There are no locks to leave behind.

Of a network file system it is assumed that a rename is all or nothing at the server, and that what
others published may be seen late; see docs/file-systems.md.
"""

import errno
import json
import logging
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from espnet3.errors import ProviderError
from espnet3.io.atomic import fsync_dir, fsync_file
from espnet3.io.json_text import dump_json
from espnet3.shards.done import Done
from espnet3.shards.layout import (
    DONE,
    POSITION,
    RunLayout,
    discarded_path,
    shard_of,
    shard_of_attempt,
)
from espnet3.shards.manifest import read_run_id

__all__ = [
    "SETTLE_SECONDS", "Done", "attempts", "begin_attempt", "commit", "committed_shards",
    "discard_attempt", "entry_name", "finish_attempt", "read_done", "set_aside",
    "set_aside_damaged", "walk_files",
]  # fmt: skip
logger = logging.getLogger(__name__)
SETTLE_SECONDS = 10.0
"""How long a folder without a `done` may be one that was published, and is not all seen yet."""
_BLOCK = 1 << 17  # larger ones are new memory at each read, which costs more than the reading
_LOOK_SECONDS = 0.2
_REMOVED = (".nfs", ".fuse_hidden")  # NFS, FUSE: gone, but still open somewhere; vanish soon
# What rename says of a target that is a folder with something in it, or a file.
_OCCUPIED = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}


def begin_attempt(layout: RunLayout, shard: int) -> Path:
    """Make a fresh folder for one attempt at a shard."""
    attempt = layout.new_attempt(shard)
    attempt.mkdir()
    (attempt / POSITION).touch()
    return attempt


def finish_attempt(attempt: Path, done: Done) -> Done:
    """Make the attempt's files durable and write `done`, which also lists them with checksums.

    Raises:
        FileNotFoundError: if the attempt was discarded by someone who took it for dead.
        ProviderError: if the runner wrote a file of its own that is called `done`.
    """
    # Also the proof that this is still the folder that was begun: a writer that makes its folders
    # as it goes would bring a discarded attempt back, with only what it wrote since.
    (attempt / POSITION).unlink()
    if (attempt / DONE).exists():
        raise ProviderError(
            f"The runner wrote {attempt / DONE}, but a file {DONE!r} is what commits a shard. "
            f'Give it another name in open_writers, such as shard_dir / "{DONE}.txt".'
        )
    files = _seal_all(attempt)
    done = Done(**{**asdict(done), "files": files, "finished": time.time()})
    # Without a temporary file: nobody looks at it before the rename.
    _write_through(attempt / DONE, dump_json(asdict(done), indent=2, where=attempt) + "\n")
    fsync_dir(attempt)
    return done


def _write_through(path: Path, text: str) -> None:
    with path.open("x", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _seal_all(folder: Path) -> dict[str, dict[str, int]]:
    """Force all files to disk; return an entry per file, and one per subfolder (`wav/`)."""
    entries: dict[str, dict[str, int]] = {}
    for path in walk_files(folder):
        name = entry_name(folder, path)
        entry = entries.setdefault(name, {"files": 0, "bytes": 0, "crc32": 0, "lines": 0})
        _seal(path, entry)
    for parent, folders, _ in os.walk(folder):
        for name in folders:
            fsync_dir(os.path.join(parent, name))
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
        if entry.name.startswith(_REMOVED):
            continue
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
    while _is_current(layout.root, done.run_id):
        # Not forced to disk: if power fails before it is there, the shard is run again.
        if _rename(attempt, target):
            return True
        if _is_commit(_read_settled(target), done.shard, done.run_id):
            break
        logger.warning("%s is damaged or of another run; this attempt replaces it", target)
        set_aside_damaged(layout, done.shard)
    logger.info("%s belongs to another attempt or run; this attempt is dropped", target)
    discard_attempt(attempt)
    return False


def _rename(attempt: Path, target: Path) -> bool:
    try:
        os.rename(attempt, target)  # refuses a folder that is not empty
    except OSError as error:
        # A lost attempt was swept by someone who took it for dead: then the shard is not ours.
        if error.errno in _OCCUPIED or (attempt.exists() and target.exists()):
            return False
        raise
    return True


def _is_commit(done: Done | None, shard: int, run_id: str) -> bool:
    return done is not None and done.run_id == run_id and done.shard == shard


def _is_current(root: Path, run_id: str) -> bool:
    return read_run_id(root) == run_id


def read_done(shard_dir: str | os.PathLike[str]) -> Done | None:
    """Return what a shard folder says of itself; None if `done` is absent or damaged."""
    try:
        with open(os.path.join(shard_dir, DONE), "rb") as file:
            return Done(**json.loads(file.read()))
    except (OSError, ValueError, TypeError):
        return None


def _read_settled(shard_dir: Path) -> Done | None:
    """Return what a shard says of itself, waiting for a `done` that may only be seen late."""
    begin, age = time.monotonic(), None
    while (done := read_done(shard_dir)) is None and not (shard_dir / DONE).exists():
        if age is None:
            age = _age(shard_dir)
        if age + time.monotonic() - begin >= SETTLE_SECONDS:
            break
        time.sleep(_LOOK_SECONDS)
    return done


def _age(shard_dir: Path) -> float:
    """Return for how long nothing was put into a folder; 0 if it is not to be seen."""
    # Both times are the file system's: its clock need not be that of this machine.
    try:
        with tempfile.TemporaryFile(dir=shard_dir.parent) as file:
            now = os.fstat(file.fileno()).st_mtime
        return max(now - shard_dir.stat().st_mtime, 0.0)
    except OSError:
        return 0.0


def set_aside(layout: RunLayout, shard: int) -> None:
    """Take a shard's folder out of the way, so that the shard counts as not done.

    Raises:
        OSError: if it is there and cannot be moved.
    """
    removed = layout.new_attempt(shard)
    with suppress(FileNotFoundError):
        os.rename(layout.shard(shard), removed)
        _remove(removed)


def set_aside_damaged(layout: RunLayout, shard: int, bounds: Sequence[int] = ()) -> None:
    """Do the same, unless the folder turns out to be a good commit of the current run.

    A twin may have committed since the caller looked: what was moved is looked at again, and put
    back. With `bounds`, only if it holds the items between them.
    """
    target, removed = layout.shard(shard), layout.new_attempt(shard)
    if target.is_dir():
        _read_settled(target)  # before it is moved: for others it would be gone meanwhile
    with suppress(FileNotFoundError):
        os.rename(target, removed)
        done = _read_settled(removed)
        if (
            done is not None
            and done.shard == shard
            and list(bounds) in ([], [done.start, done.stop])
            and _is_current(layout.root, done.run_id)
        ):
            with suppress(OSError):  # a third one took the place: then this one is a late twin
                os.rename(removed, target)
                return
        _remove(removed)


def committed_shards(layout: RunLayout, run_id: str) -> dict[int, Done]:
    """Return the committed shards of a run, by number; damaged and foreign ones are left out."""
    found = {}
    for entry in os.scandir(layout.root):
        shard = shard_of(entry.name)
        # A copy that somebody made by hand (`split.07`, or one that says it is another) is none.
        if shard is None or entry.name != layout.shard_name(shard):
            continue
        done = read_done(entry.path)
        if done is not None and _is_commit(done, shard, run_id):
            found[shard] = done
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
    dead = discarded_path(attempt)
    try:
        os.rename(attempt, dead)
    except OSError:  # gone already, or a read-only file system: then nothing can be done
        return
    _remove(dead)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    with suppress(OSError):
        path.unlink()
