"""Publish a shard: work in a folder of one's own, `done` last, then one rename.

A shard may be run more than once, by a requeued job or by a second driver, but is seen only once:
the first rename wins and a late backup attempt removes itself. There are no locks to leave behind.

Of a network file system it is assumed that a rename is all or nothing at the server, and that what
others published may be seen late; see docs/file-systems.md.
"""

import errno
import logging
import mmap
import os
import shutil
import struct
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from espnet3.errors import FileSystemError, ProviderError, RecordError
from espnet3.io.atomic import dump_json, fsync_dir, fsync_file
from espnet3.io.shared_files import (
    Count,
    DamagedFileError,
    Moment,
    Pid,
    Seconds,
    folder_time,
    is_there,
    list_names,
    names_in,
    parse_record,
    read_file,
    read_in_order,
    share_files,
    share_folder,
)
from espnet3.shards.layout import (
    DONE,
    POSITION,
    RunLayout,
    discarded_path,
    is_group,
    is_set_aside,
    run_folder_of,
    shard_of_attempt,
    shard_of_damaged,
)
from espnet3.shards.manifest import read_run_id

logger = logging.getLogger(__name__)
SETTLE_SECONDS = 10.0
"""How long a folder without a `done` may be one that was published, and is not all seen yet."""
_BLOCK = 1 << 17  # larger ones are new memory at each read, which costs more than the reading
_LOOK_SECONDS = 0.2
_MORE_LOOKS = 2  # at a `done` that is there and not valid, before it counts as damaged
_REMOVED = (".nfs", ".fuse_hidden")  # NFS, FUSE: gone, but still open somewhere; vanish soon
# What rename says of a target that is a folder with something in it, or a file.
_OCCUPIED = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}
_POSITION = struct.Struct("=qq")  # native order, as the mapped cells have it
_FILE_FACTS = frozenset(("files", "bytes", "crc32", "lines"))
_SMALL = 1 << 16


@dataclass(frozen=True)
class Done:
    """Facts of a committed shard."""

    run_id: str
    shard: Count
    start: Count
    stop: Count
    n_failed: Count = 0
    seconds: Seconds = 0.0
    load_seconds: Seconds = 0.0
    finished: Moment = field(default_factory=time.time)
    host: str = ""
    pid: Pid = 0
    files: dict[str, dict[str, int]] = field(default_factory=dict)
    summary: Any = None
    n_halved: Count = 0
    """Batches that were too large for the memory."""
    started: Moment | None = None
    """When the attempt began, loading included, by the same clock; None in older folders."""
    n_deaths: Count = 0
    """Workers that died at this shard before."""
    owner_id: str = ""
    """The owner in `leases/` that the worker ran it for: a driver or detached worker."""

    def problem(self) -> str:
        """Return in which way it makes no sense; empty if it does."""
        if self.stop <= self.start:
            return f"stop: {self.stop} is not behind start, {self.start}"
        if self.n_failed > self.n_items:
            return f"n_failed: {self.n_failed} of {self.n_items} items"
        for name, entry in self.files.items():
            if not entry.keys() >= _FILE_FACTS or min(entry.values()) < 0:
                return f"files: {name!r:.60} lacks some of {', '.join(sorted(_FILE_FACTS))}"
        return ""

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
    make_attempt(attempt)
    # `finish_attempt` takes its absence for a sign that the folder was discarded.
    (attempt / POSITION).touch()
    return attempt


def make_attempt(attempt: Path) -> None:
    """Make the folder of an attempt, and the sub-folder of its group if it is the first there.

    Raises:
        FileExistsError: if an attempt has this name.
    """
    begin = time.monotonic()
    while True:
        try:
            attempt.mkdir()
            break
        except FileNotFoundError:
            is_late = time.monotonic() - begin > SETTLE_SECONDS
            if not is_group(attempt.parent.name):
                raise
            # False if another process made it, which this node may not see for a while.
            if not _make_group(attempt.parent):
                if is_late:
                    raise
                time.sleep(_LOOK_SECONDS)
    share_folder(attempt)


def _make_group(folder: Path) -> bool:
    try:
        folder.mkdir()
    except FileExistsError:
        return False
    # Others commit there as well, as they do in the run folder.
    share_folder(folder, is_writable=True)
    # A thousand shards will be in it: its name must outlive a power cut, as theirs do.
    fsync_dir(folder.parent)
    return True


def finish_attempt(attempt: Path, done: Done) -> Done:
    """Make the attempt's files durable and write `done`, which also lists them with checksums.

    Raises:
        FileNotFoundError: if another process took it for dead and discarded it.
        ProviderError: if the runner wrote a file of its own that is called `done`.
    """
    # Also the proof that this is still the folder that was begun: a writer that makes its folders
    # as it goes would bring a discarded attempt back, with only what it wrote since.
    (attempt / POSITION).unlink()
    if is_there(attempt / DONE):
        raise ProviderError(
            f"The runner wrote {attempt / DONE}, but a file {DONE!r} is what commits a shard.",
            fix=f'Give it another name in open_writers, such as shard_dir / "{DONE}.txt".',
        )
    # All data is on the disk before `done` exists: a power cut leaves no shard that claims more
    # than it holds.
    files = _seal_all(attempt)
    done = _write_done(attempt, replace(done, files=files))
    share_files(_all_in(attempt), attempt.parent, attempt / DONE)
    # A file that was synced, but whose name was not, is lost in a power cut all the same.
    fsync_dir(attempt)
    return done


def _all_in(folder: Path) -> Iterator[Path]:
    """Yield a folder and all that is in it."""
    for parent, _, names in os.walk(folder):
        yield Path(parent)
        for name in names:
            yield Path(parent, name)


def _write_done(attempt: Path, done: Done) -> Done:
    # Without a temporary file: it is not read before the rename.
    with (attempt / DONE).open("x", encoding="utf-8", newline="\n") as file:
        # The file got its time just now, by the one clock that all machines of a run share.
        finished = os.fstat(file.fileno()).st_mtime
        started = done.started
        if started is not None:  # by the same clock, which ticks more coarsely than that of Python
            started = min(started + finished - time.time(), finished)
        done = replace(done, finished=finished, started=started)
        try:
            file.write(dump_json(asdict(done), indent=2, where=attempt) + "\n")
        except RecordError:
            (attempt / DONE).unlink()
            raise
        file.flush()
        os.fsync(file.fileno())
    return done


def _seal_all(folder: Path) -> dict[str, dict[str, int]]:
    """Force all files to disk; return an entry per file, and one per subfolder (`wav/`)."""
    entries: dict[str, dict[str, int]] = {}
    for path in walk_files(folder):
        name = entry_name(folder, path)
        entry = entries.setdefault(name, {"files": 0, "bytes": 0, "crc32": 0, "lines": 0})
        fsync_file(path)
        add_to_entry(entry, folder, path)
    for parent, folders, _ in os.walk(folder):
        for name in folders:
            fsync_dir(os.path.join(parent, name))
    return entries


def entry_name(folder: Path, path: Path) -> str:
    """Return the entry of `done` that covers a file: its name, or its subfolder's with a slash.

    One entry per subfolder keeps `done` small where a shard holds a thousand wav files.
    """
    first, *rest = path.relative_to(folder).parts
    # The slash keeps a folder apart from a file of the same name.
    return f"{first}/" if rest else first


def walk_files(folder: Path) -> Iterator[Path]:
    """Yield all files below a folder in a fixed order."""
    # A subfolder has one checksum for all of its files, which therefore depends on their order.
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.name.startswith(_REMOVED):
            continue
        # Not through links, which may lead out of the shard, or round in circles.
        if entry.is_dir(follow_symlinks=False):
            yield from walk_files(Path(entry.path))
        elif entry.is_file():
            yield Path(entry.path)


def add_to_entry(
    entry: dict[str, int], folder: Path, path: Path, *, counts_lines: bool = True
) -> None:
    """Add a file to its entry: size, checksum, number of lines; in a subfolder, also its name.

    The entry of a subfolder has one checksum for the content of all, which does not tell what they
    are called, nor where one ends: `names_crc32` does.
    """
    size = 0
    # Unbuffered: a second buffer below blocks of this size would only copy.
    with path.open("rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            # A checksum against torn writes and bad disks; nothing here defends against forgery.
            entry["crc32"] = zlib.crc32(block, entry["crc32"])
            size += len(block)
            if counts_lines:
                entry["lines"] += block.count(b"\n")
    entry["files"] += 1
    entry["bytes"] += size
    name = os.path.relpath(path, folder)
    if os.sep in name:
        # A NUL can be part of no name, so no two lists of files give the same line.
        line = os.fsencode(f"{name}\0{size}\n")
        entry["names_crc32"] = zlib.crc32(line, entry.get("names_crc32", 0))


def commit(attempt: Path, layout: RunLayout, done: Done) -> bool:
    """Publish a finished attempt as its shard.

    The rename is the commit point: before it readers see nothing, after it everything.

    Returns:
        False if another attempt was published first, or if the run was restarted meanwhile;
        `attempt` is then removed.
    """
    target = layout.shard(done.shard)
    # Asked each time round: the run may be restarted while this one waits for a `done` to settle.
    while _is_current(layout.root, done.run_id):
        # Not forced to disk: if power fails before it is there, the shard is run again.
        if _rename(attempt, target):
            return True
        # A folder of another run, or a damaged one, must not make this attempt lose.
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
        # Another process took the attempt for dead and swept it: the shard is not ours.
        if error.errno in _OCCUPIED or (is_there(attempt) and is_there(target)):
            return False
        raise
    return True


def _is_commit(done: Done | None, shard: int, run_id: str) -> bool:
    return done is not None and done.run_id == run_id and done.shard == shard


def _is_current(root: Path, run_id: str) -> bool:
    return read_run_id(root) == run_id


def read_done(shard_dir: str | os.PathLike[str]) -> Done | None:
    """Return what a shard folder says of itself; None if `done` is not there, or not valid.

    Raises:
        FileSystemError: It cannot be read from here, so the shard may be as good as any.
    """
    path = f"{os.fspath(shard_dir)}/{DONE}"
    # Ten thousand are read for a merge, and nearly all are there, small and valid: three calls.
    # Whatever is not is looked at with more care.
    try:
        return parse_record(_read_small(path), Done, path)
    except (OSError, DamagedFileError):
        pass
    try:
        content = read_file(path)
        return None if content is None else parse_record(content, Done, path)
    except (DamagedFileError, IsADirectoryError) as error:
        logger.debug("%s", error)
        return None


def _read_small(path: str) -> bytes:
    """Return the beginning of a file, which is all of it if it holds a valid record."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would block for ever
    try:
        return os.read(descriptor, _SMALL)
    finally:
        os.close(descriptor)


def _read_settled(shard_dir: Path) -> Done | None:
    """Return what a shard says of itself, waiting for a `done` that may only be seen late.

    One that is there and not valid is looked at more than once, too.
    """
    begin, age, n_invalid = time.monotonic(), None, 0
    while (done := read_done(shard_dir)) is None:
        waited = time.monotonic() - begin
        if is_there(shard_dir / DONE):
            n_invalid += 1
            if n_invalid > _MORE_LOOKS or waited >= SETTLE_SECONDS:
                break
        else:
            # Asked for once: the file system's clock costs a file, and `waited` carries it on.
            age = _age(shard_dir) if age is None else age
            if age + waited >= SETTLE_SECONDS:
                break
        time.sleep(_LOOK_SECONDS)
    return done


def _age(shard_dir: Path) -> float:
    """Return for how long nothing was put into a folder; 0 if it is not to be seen."""
    # Both times are the file system's: its clock need not be that of this machine.
    try:
        return max(folder_time(run_folder_of(shard_dir)) - shard_dir.stat().st_mtime, 0.0)
    except OSError:
        return 0.0


def set_aside(layout: RunLayout, shard: int) -> None:
    """Take a shard's folder out of the way, so that the shard counts as not done.

    It is kept until the merge; see `remove_set_aside`.

    Raises:
        OSError: if it is there and cannot be moved.
    """
    with suppress(FileNotFoundError):
        # Renamed, not removed: a reader finds all of a shard or nothing, and the user can still
        # look.
        os.rename(layout.shard(shard), layout.new_aside(shard, is_damaged=False))


def set_aside_damaged(layout: RunLayout, shard: int, bounds: Sequence[int] = ()) -> None:
    """Do the same, unless the folder turns out to be a good commit of the current run.

    A backup attempt may have committed since the caller looked: what was moved is looked at again,
    and put back. With `bounds`, only if it holds the items between them.

    Raises:
        FileSystemError: It cannot be read from here; it is then where it was.
    """
    target, removed = layout.shard(shard), layout.new_aside(shard, is_damaged=True)
    # Before it is moved: for others it would be gone meanwhile.
    if not is_there(target) or _is_good(layout, target, shard, bounds):
        return
    with suppress(FileNotFoundError):
        os.rename(target, removed)
        try:
            is_good = _is_good(layout, removed, shard, bounds)
        except BaseException:
            # Also Ctrl-C: a good shard must not stay behind under a name that does not count.
            _put_back(removed, target)
            raise
        if is_good:
            _put_back(removed, target)
        else:
            logger.warning("It is kept as %s until the merge", removed)


def _is_good(layout: RunLayout, folder: Path, shard: int, bounds: Sequence[int]) -> bool:
    done = _read_settled(folder)
    return (
        done is not None
        and done.shard == shard
        and list(bounds) in ([], [done.start, done.stop])
        and _is_current(layout.root, done.run_id)
    )


def _put_back(removed: Path, target: Path) -> bool:
    try:
        os.rename(removed, target)
    except OSError:  # another one took the place: then this attempt is late
        return False
    return True


def restore_set_aside(layout: RunLayout, missing: Mapping[int, Sequence[int]]) -> set[int]:
    """Put folders back that were set aside as damaged, and are seen to be good by now.

    Args:
        layout: The run's.
        missing: The shards that are not done, with the bounds that the plan gives them.

    Returns:
        The shards that count as done again.
    """
    restored = set()
    for folder in _folders_where(layout, lambda name: shard_of_damaged(name) is not None):
        shard = shard_of_damaged(folder.name)
        # Asked first, because `_is_good` would wait for a `done` that may never come.
        if shard is None or shard not in missing or read_done(folder) is None:
            continue
        target = layout.shard(shard)
        if _is_good(layout, folder, shard, missing[shard]) and _put_back(folder, target):
            logger.warning("%s is good after all, and counts as done", target)
            restored.add(shard)
    return restored


def remove_set_aside(layout: RunLayout) -> None:
    """Remove the folders that were set aside: the run is merged without them."""
    folders = sorted(_folders_where(layout, is_set_aside), key=lambda folder: folder.name)
    if folders:
        names = ", ".join(folder.name for folder in folders)
        logger.info("Removing what was set aside in %s: %s", layout.root, names)
    for folder in folders:
        _remove(folder)


def _folders_where(layout: RunLayout, is_meant: Callable[[str], bool]) -> list[Path]:
    found = names_by_group(layout).items()
    return [
        Path(layout.group_path(group), name)
        for group, names in found
        for name in filter(is_meant, names)
    ]


def names_by_group(layout: RunLayout, groups: Iterable[int] | None = None) -> dict[int, list[str]]:
    """List the folders with shards and attempts; in a plan without groups, that is the run folder.

    Args:
        layout: The run's.
        groups: The groups to list; all if None.

    Raises:
        FileSystemError: One cannot be listed from here, or the run folder is gone.
    """
    if not layout.n_groups:
        return {0: list_names(layout.root)}
    if groups is not None:
        return {group: names_in(layout.group_path(group)) for group in groups}
    # This listing is short. A group that is not in it has not begun.
    names = set(list_names(layout.root))
    present = [group for group in range(layout.n_groups) if layout.group_name(group) in names]
    return {group: names_in(layout.group_path(group)) for group in present}


def named_shards(layout: RunLayout) -> set[int]:
    """Return the shards that have a folder, intact or not, by its name alone."""
    found = names_by_group(layout).items()
    shards = (layout.shard_in(group, name) for group, names in found for name in names)
    return {shard for shard in shards if shard is not None}


def committed_shards(layout: RunLayout, run_id: str) -> dict[int, Done]:
    """Return the committed shards of a run, by number; damaged and foreign ones are left out.

    Raises:
        FileSystemError: The folder, or a shard in it, cannot be read from here.
    """
    folders = {}
    for group, names in names_by_group(layout).items():
        folder, own = layout.group_path(group), layout.shards_of_group(group)
        for name in names:
            shard = layout.shard_named(name)
            if shard is not None and (shard in own or not layout.n_groups):
                folders[shard] = f"{folder}/{name}"
    found = zip(folders, read_in_order(read_done, folders.values()), strict=True)
    return {s: done for s, done in found if done is not None and _is_commit(done, s, run_id)}


def attempts(layout: RunLayout) -> dict[int, list[Path]]:
    """Return the folders of unfinished attempts, by shard."""
    found: dict[int, list[Path]] = {}
    for group, names in names_by_group(layout).items():
        folder = Path(layout.group_path(group))
        for name in names:
            shard = shard_of_attempt(name)
            if shard is not None:
                found.setdefault(shard, []).append(folder / name)
    return found


def discard_attempt(attempt: Path) -> None:
    """Remove an attempt that is given up, even if its worker is still writing.

    The folder gets another name first: a backup attempt that is about to commit must find all of
    it, or nothing.
    """
    dead = discarded_path(attempt)
    try:
        os.rename(attempt, dead)
    except OSError:  # gone already, or a read-only file system: then nothing can be done
        return
    _remove(dead)


def _remove(path: Path) -> None:
    # What a link leads to may be in use elsewhere.
    if path.is_dir() and not path.is_symlink():
        # Its worker may still be writing there, so that files appear while others are removed.
        shutil.rmtree(path, ignore_errors=True)
        return
    with suppress(OSError):
        path.unlink()


class Position:
    """The batch of items that an attempt is working on, shared through a memory-mapped file.

    The pages of a mapped file outlive their process, so after a crash the file still names the
    batch that was running: that is how an item that kills its worker is found.
    """

    def __init__(self, folder: Path) -> None:
        # Written, not truncated: storing to a hole of a full file system would be a SIGBUS.
        fd = os.open(folder / POSITION, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            # Whatever the umask: all workers need the position of a death.
            with suppress(OSError):
                os.fchmod(fd, 0o644)
            os.write(fd, _POSITION.pack(-1, 1))
            self._map = mmap.mmap(fd, _POSITION.size)
        finally:
            os.close(fd)
        self.cells = memoryview(self._map).cast("q")
        """Two integers to store to: the first position of the running batch, and its length."""

    def close(self) -> None:
        """Unmap the file; it stays until the attempt is finished or swept."""
        # A map cannot be closed while a view of it exists.
        self.cells.release()
        self._map.close()


def read_position(attempt: Path) -> tuple[int, int] | None:
    """Return `(start, stop)` of the batch an attempt is or was working on; None before any.

    Also None if it cannot be read from here: for callers that only show it.
    """
    with suppress(FileSystemError):
        return find_position(attempt)
    return None


def find_position(attempt: Path) -> tuple[int, int] | None:
    """Do the same for a caller that removes the attempt afterwards.

    Raises:
        FileSystemError: It cannot be read from here.
    """
    try:
        start, length = _POSITION.unpack(read_file(attempt / POSITION) or b"")
    except (struct.error, IsADirectoryError, DamagedFileError):
        return None
    return (start, start + length) if start >= 0 else None
