"""Merge of a run: prove that nothing is missing or there twice, join files, write `_SUCCESS.json`.

Files are joined in dataset order, whatever the order in which the items were run; in SCP files each
id may appear once. `_SUCCESS.json` marks a run as complete and stores its result.
"""

import json
import logging
import os
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.errors import IncompleteRunError
from espnet3.io.atomic import open_atomic, write_json
from espnet3.io.shared_files import (
    Count,
    DamagedFileError,
    Moment,
    PathText,
    Pid,
    Seconds,
    Share,
    is_inside,
    is_there,
    look_time,
    parse_lines,
    parse_record,
    reaching,
    read_file,
    read_in_order,
    read_lines,
    unreachable,
    warn_once,
)
from espnet3.memory import no_collections
from espnet3.shards.accounting import Accounting, account
from espnet3.shards.commit import (
    Done,
    add_to_entry,
    committed_shards,
    entry_name,
    read_done,
    walk_files,
)
from espnet3.shards.layout import DONE, FAILED, RunLayout, run_folder_of
from espnet3.shards.manifest import Manifest, load_manifest, require_manifest
from espnet3.shards.pack import read_pack, shards_named_in
from espnet3.text import first_few, part_of

if TYPE_CHECKING:
    pass


_BLOCK = 1 << 18
_SHOWN = 5
_SMALL = 1 << 18
_MOST_KEPT = 64 << 20
_MUCH = 8 << 20


@dataclass(frozen=True)
class Coverage:
    """Shards of a plan that are committed, and those that are missing."""

    committed: dict[int, Done]
    missing: list[int]
    contents: dict[str, dict[str, bytes]] = field(default_factory=dict, repr=False)
    """Small files that `check_complete` has read and proven, by folder and name."""

    @property
    def is_complete(self) -> bool:
        """Tell whether every item of the plan is accounted for exactly once."""
        return not self.missing

    @contextmanager
    def at_hand(self, layout: RunLayout) -> Iterator[None]:
        """Let joiners of files in this block reuse what was read of the shards."""
        known = {layout.shard_path(shard): done for shard, done in self.committed.items()}
        token = _at_hand.set(_AtHand(known, self.contents))
        try:
            yield
        finally:
            _at_hand.reset(token)


@dataclass(frozen=True)
class _AtHand:
    """Records and contents of shards that the running merge has read, by folder."""

    done: dict[str, Done] = field(default_factory=dict)
    contents: dict[str, dict[str, bytes]] = field(default_factory=dict)


# Not an argument: in between is the `merge` of the user, which hands on folders only.
_at_hand: ContextVar[_AtHand] = ContextVar("at_hand", default=_AtHand())  # noqa: B039


def read_coverage(root: Path, manifest: Manifest) -> Coverage:
    """Look which shards are committed and hold just the items that the plan gives them."""
    bounds, layout = manifest.bounds, manifest.layout(root)
    with no_collections():
        found = committed_shards(layout, manifest.run_id)
    # Packed shards are asked for only where there is no folder: most runs are not packed.
    has_all = all(shard in found for shard in range(manifest.n_shards))
    has_pack = not has_all and is_there(layout.packed_index)
    pack = read_pack(layout, manifest.run_id) if has_pack else None
    committed = {
        shard: done
        for shard, done in ({**pack.committed(), **found} if pack else found).items()
        if shard < manifest.n_shards and [done.start, done.stop] == bounds[shard : shard + 2]
    }
    return Coverage(committed, [s for s in range(manifest.n_shards) if s not in committed])


def check_complete(
    root: Path, manifest: Manifest, *, contents: bool = True, coverage: Coverage | None = None
) -> Coverage:
    """Make sure that each item of the plan is in exactly one intact, committed shard.

    Args:
        root: The run folder.
        manifest: Its plan.
        contents: Compare all files with the checksums of `done`, not only their number and size:
            also those that a `merge` reads by itself, or leaves where they are.
        coverage: what `read_coverage` returned a moment ago; looked up if None.

    Raises:
        IncompleteRunError: with the shards and items that are missing, or the files that changed.
        FileSystemError: if they cannot be read from here.
    """
    coverage = coverage or read_coverage(root, manifest)
    if coverage.missing:
        raise IncompleteRunError(_describe_missing(root, manifest, coverage.missing))
    layout = manifest.layout(root)
    found = [(layout.shard_path(s), done) for s, done in sorted(coverage.committed.items())]
    with no_collections():
        shards = list(_not_proven(found, coverage.contents)) if contents else found
    # All sizes before any content: what is missing then shows before gigabytes are read.
    for _ in read_in_order(lambda shard: check_sizes(Path(shard[0]), shard[1]), shards):
        pass
    if contents:
        check_contents(shards)
    return coverage


def _not_proven(
    shards: Sequence[tuple[str, Done]], contents: dict[str, dict[str, bytes]]
) -> Iterator[tuple[str, Done]]:
    """Yield the shards to look at closely: those that are large, or not as they should be.

    What was read of the others is added to `contents`, as far as there is room.
    """
    n_bytes = 0
    for shard, read in zip(shards, read_in_order(_read_proven, shards), strict=True):
        if read is None:
            yield shard
        elif n_bytes < _MOST_KEPT:
            n_bytes += sum(map(len, read.values()))
            contents[shard[0]] = read


def _read_proven(shard: tuple[str, Done]) -> dict[str, bytes] | None:
    """Return the content of all files of a shard; None unless they are small and as `done` says.

    It takes as few operations as there are files; what is wrong is left to `check_sizes` and
    `check_contents`.
    """
    folder, done = shard
    read = {}
    try:
        found = os.listdir(folder)
        if len(found) != len(done.files) + 1 or DONE not in found:
            return None  # a file that is missing among so many is named below
        for name, expected in done.files.items():
            content = _read_small(f"{folder}/{name}", expected)
            if content is None:
                return None
            read[name] = content
    except OSError:
        return None
    return read


def _read_small(path: str, expected: dict[str, int]) -> bytes | None:
    """Return the content of a file if it is small, and what was committed."""
    if expected["bytes"] > _SMALL:
        return None
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would block for ever
    try:
        content = os.read(descriptor, expected["bytes"] + 1)
    finally:
        os.close(descriptor)
    is_same = len(content) == expected["bytes"] and zlib.crc32(content) == expected["crc32"]
    return content if is_same else None


def check_contents(shards: Sequence[tuple[str | Path, Done]]) -> None:
    """Compare the content of all files of shards with the checksums of their `done`.

    Raises:
        IncompleteRunError: naming the file, or the subfolder, that was changed since its commit.
        FileSystemError: if it cannot be read from here.
    """
    n_bytes = sum(entry["bytes"] for _, done in shards for entry in done.files.values())
    # zlib and reading let other threads run.
    is_slow = n_bytes > _MUCH and len(shards) > 1
    for _ in read_in_order(_check_content, shards, is_slow=is_slow):
        pass


def _check_content(shard: tuple[str | Path, Done]) -> None:
    shard_dir, done = Path(shard[0]), shard[1]
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
    verb = "is" if manifest.n_items == 1 else "are"
    shown = [f"shard {s}: items {bounds[s]} to {bounds[s + 1] - 1}" for s in missing]
    return (
        f"{part_of(n_items, manifest.n_items, 'item')} in {root} {verb} not done "
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
    n_lines = 0
    with open_atomic(target, "wb") as output:
        for shard_dir, done, content in read_parts(shard_dirs, name):
            if content is None:
                n_lines += read_part(shard_dir / name, done, buffer, output.write)
                continue
            n_written = done.n_written
            n_lines += n_written
            if done.files[name]["lines"] != n_written:
                check_lines(shard_dir / name, done, done.files[name]["lines"])
            output.write(content)
    return n_lines


def read_parts(shard_dirs: Sequence[Path], name: str) -> Iterator[tuple[Path, Done, bytes | None]]:
    """Yield each shard in the given order, with its `done`, read some shards ahead.

    Also with the content of its file `name`, proven, if that is small; None leaves it to
    `read_part`.

    Raises:
        IncompleteRunError: if one of them is no committed shard.
    """
    known = _at_hand.get()  # here, because threads have a context of their own
    folders, nothing = [os.fspath(folder) for folder in shard_dirs], dict[str, bytes]()
    kept = [known.contents.get(folder, nothing).get(name) for folder in folders]
    if None not in kept:  # all was read a moment ago, and is in memory
        return zip(shard_dirs, (known.done[folder] for folder in folders), kept, strict=True)

    def read(shard_dir: Path) -> tuple[Path, Done, bytes | None]:
        folder = os.fspath(shard_dir)
        done = known.done.get(folder) or require_done(shard_dir)
        content = known.contents.get(folder, {}).get(name)
        expected = done.files.get(name)
        if content is None and expected is not None:
            with suppress(OSError):  # `read_part` says what is wrong
                content = _read_small(f"{folder}/{name}", expected)
        return shard_dir, done, content

    return read_in_order(read, shard_dirs)


def content_at_hand(part: Path) -> bytes | None:
    """Return a file of a shard that the merge around us has read and proven, if it kept it."""
    return _at_hand.get().contents.get(os.fspath(part.parent), {}).get(part.name)


def require_done(shard_dir: Path) -> Done:
    """Return what a committed shard says of itself.

    Raises:
        IncompleteRunError: if it is none.
    """
    done = _at_hand.get().done.get(os.fspath(shard_dir)) or read_done(shard_dir)
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


@dataclass(frozen=True)
class FailedItem:
    """A line of `failed.jsonl`."""

    position: Count
    shard: Count
    index: Any = None
    error: str = ""
    traceback: str = ""
    host: str = ""
    pid: Pid = 0
    log: PathText = ""
    ids: list[str] = field(default_factory=list)


def read_failures(run_dir: Path) -> list[dict[str, Any]]:
    """Return what failed: skipped items of committed shards, and the error that stopped the run.

    Damaged lines are left out; a warning names them.
    """
    manifest = require_manifest(run_dir)
    layout = manifest.layout(run_dir)
    committed = read_coverage(run_dir, manifest).committed
    # What stopped an earlier try is over once its shard is committed; that shard's own list counts.
    stopped = [each for each in _failed_items(layout.failed) if each["shard"] not in committed]
    return sorted(
        [*stopped, *failures_of(layout, committed.values())], key=lambda each: each["position"]
    )


def failures_of(layout: RunLayout, shards: Iterable[Done]) -> list[dict[str, Any]]:
    """Return the items that were given up on in committed shards, in the order of the plan."""
    failures: dict[int, dict[str, Any]] = {}
    failed = [done for done in shards if done.n_failed]
    pack = read_pack(layout, failed[0].run_id) if failed else None
    for done in failed:
        path = layout.shard(done.shard) / FAILED
        found = _failed_items(path)
        if not found and pack is not None and done.shard in pack.lines:
            content = pack.read(done.shard).get(FAILED, b"")
            found = [asdict(item) for item in parse_lines(content, FailedItem, path)]
        failures.update({each["position"]: each for each in found})
    return [failures[position] for position in sorted(failures)]


def _failed_items(path: Path) -> list[dict[str, Any]]:
    return [asdict(item) for item in read_lines(path, FailedItem)]


def join_files(shard_dirs: Sequence[Path], name: str, target: Path) -> int:
    """Join the file `name` of all shards of a run into `target`, one line per result.

    Where items were sorted into batches by length, their lines are put back into dataset order;
    else this is `concat_files`.

    Returns:
        The number of lines written.

    Raises:
        IncompleteRunError: naming the part that was changed since its commit or lacks lines.
    """
    root = run_folder_of(shard_dirs[0]) if shard_dirs else None
    manifest = load_manifest(root) if root else None
    order = manifest.load_order(root) if manifest and root else None
    if order is None:
        return concat_files(shard_dirs, name, target)
    from espnet3.shards.reorder import join_reordered  # needs numpy

    return join_reordered(shard_dirs, name, target, order)


def join_scp(shard_dirs: Sequence[Path], name: str, target: Path) -> int:
    """Join the SCP file `name` of all shards into `target`, like `join_files`.

    Returns:
        The number of lines written.

    Raises:
        IncompleteRunError: also if an id appears twice, with the places; nothing is written then.
    """
    _check_ids([shard_dir / name for shard_dir in shard_dirs])
    return join_files(shard_dirs, name, target)


def _check_ids(parts: Sequence[Path]) -> None:
    # Eight bytes an id, so that ten million fit anywhere; a hash met twice is looked at closely.
    import numpy as np

    # These hashes differ from process to process, and so are never stored.
    hashes = array("q")
    for found in read_in_order(_hashes, [(part, content_at_hand(part)) for part in parts]):
        hashes.extend(found)
    values = np.sort(np.frombuffer(hashes, dtype=np.int64))
    suspects = set(values[1:][values[1:] == values[:-1]].tolist())
    if suspects:
        _refuse_twice(parts, suspects)


def _refuse_twice(parts: Sequence[Path], suspects: set[int]) -> None:
    seen: dict[bytes, str] = {}
    for part in parts:
        for line, id in enumerate(_ids(part, None), 1):
            if hash(id) not in suspects:
                continue
            place = f"{part}:{line}"
            if id in seen:
                raise IncompleteRunError(
                    f"The id {id.decode(errors='replace')!r} appears twice, in {seen[id]} and "
                    f"{place}.",
                    fix="Give each item an id of its own, such as speaker and utterance.",
                )
            seen[id] = place


def _hashes(part: tuple[Path, bytes | None]) -> "array[int]":
    return array("q", map(hash, _ids(*part)))


def _ids(part: Path, content: bytes | None) -> Iterator[bytes]:
    with suppress(FileNotFoundError):  # a shard without results
        with part.open("rb") if content is None else BytesIO(content) as file:
            for line in file:
                yield line.partition(b" ")[0].rstrip(b"\n")


logger = logging.getLogger(__name__)
_PATH = "__path__"
_GONE = -1


def write_success(
    layout: RunLayout,
    manifest: Manifest,
    shards: Iterable[Done],
    *,
    output_dir: Path,
    outputs: dict[str, tuple[int, int]],
    result: Any,
    keep_result: bool = True,
) -> None:
    """Write `_SUCCESS.json`: counts, sizes, versions, accounting, and what `merge` returned.

    A result that JSON cannot hold, or that is not to be kept, is left out; asking again then
    merges again.
    """
    done, now = list(shards), look_time(layout.root)
    encoded = encode_result(result, output_dir) if keep_result else None
    values = {
        "run_id": manifest.run_id,
        "n_items": manifest.n_items,
        "n_failed": sum(shard.n_failed for shard in done),
        "n_shards": manifest.n_shards,
        # Not below 0: plans of earlier versions have the time of the machine that made them.
        "seconds": round(max(now - manifest.created, 0.0), 3),
        "worker_seconds": round(sum(shard.seconds for shard in done), 3),
        "load_seconds": round(sum(shard.load_seconds for shard in done), 3),
        **_speech_facts(manifest, done),
        "accounting": account(layout.root, manifest, done).as_dict(),
        "hosts": sorted({shard.host for shard in done}),
        "outputs": outputs,
        **_artifacts_of(layout, done, result),
        "versions": manifest.versions,
        "finished": now,
        **({} if encoded is None else {"result": encoded}),
    }
    write_json(layout.success, values)


def _speech_facts(manifest: Manifest, done: list[Done]) -> dict[str, Any]:
    facts = {
        "audio_seconds": manifest.audio_seconds,
        "padded_share": manifest.padded_share,
        "n_halved": sum(shard.n_halved for shard in done) or None,
    }
    return {name: value for name, value in facts.items() if value is not None}


@dataclass(frozen=True)
class _Success:
    """Keys of `_SUCCESS.json` that readers rely on."""

    run_id: str
    n_failed: Count = 0
    seconds: Seconds = 0.0
    worker_seconds: Seconds = 0.0
    load_seconds: Seconds = 0.0
    hosts: list[str] = field(default_factory=list)
    finished: Moment = 0.0
    outputs: dict[str, tuple[int, int]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    audio_seconds: Seconds | None = None
    padded_share: Share | None = None
    n_halved: Count | None = None
    accounting: dict[str, Any] | None = None
    artifacts: dict[int, tuple[int, bool]] = field(default_factory=dict)
    result: list[Any] | None = None

    def problem(self) -> str:
        """Return in which way it makes no sense; empty if it does."""
        if self.result is not None and len(self.result) != 1:
            return f"result: {self.result!r:.60} is not a list of one value"
        odd = next((name for name in self.outputs if not is_inside(name)), None)
        return "" if odd is None else f"outputs: {odd!r:.60} is no file of the folder"


def read_success(layout: RunLayout, run_id: str) -> dict[str, Any] | None:
    """Return the content of `_SUCCESS.json` if it is of this run.

    One that is damaged proves nothing: a warning names it, and the run counts as not merged.

    Raises:
        FileSystemError: It cannot be read from here.
    """
    try:
        content = read_file(layout.success)
        if content is None:
            return None
        success = parse_record(content, _Success, layout.success)
        if success.accounting is not None:
            Accounting.from_dict(success.accounting, layout.success)
    except (DamagedFileError, IsADirectoryError) as error:
        warn_once(f"{error} So the run counts as not merged.")
        return None
    if success.run_id != run_id:
        return None
    # As it stands in the file: keys that a newer version added are dropped by `_Success`.
    values: dict[str, Any] = json.loads(content)
    # What readers rely on is there, also in a file that says less.
    known = {name: value for name, value in asdict(success).items() if value is not None}
    return {**known, **values}


def read_accounting(
    run_dir: Path, manifest: Manifest, committed: Iterable[Done] | None = None
) -> Accounting:
    """Return what a run cost so far; of a finished one, what `_SUCCESS.json` says."""
    layout = manifest.layout(run_dir)
    known = (read_success(layout, manifest.run_id) or {}).get("accounting")
    if known is not None:
        return Accounting.from_dict(known, layout.success)
    if committed is None:
        committed = read_coverage(run_dir, manifest).committed.values()
    return account(run_dir, manifest, committed)


def has_outputs(values: dict[str, Any], folder: Path) -> bool:
    """Tell whether the merged files are still there, as large and as old as they were.

    Raises:
        FileSystemError: unknown from this node.
    """
    for name, (size, mtime) in values.get("outputs", {}).items():
        stat = _stat(folder / name)
        if stat is None or (stat.st_size, stat.st_mtime_ns) != (size, mtime):
            return False
    return True


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise unreachable(error, path) from error


def _artifacts_of(
    layout: RunLayout, shards: Iterable[Done], result: Any
) -> dict[str, dict[int, tuple[int, bool]]]:
    """Return, for each shard of which more than lines to join is left, a digest of its files.

    Also whether the run needs them: those in subfolders, or in a folder that `merge` returned, are
    results; others may be removed with their shard. The digest is taken behind the merge. What
    that moved or removed is its own affair.
    """
    returned = _paths_returned(result, layout)
    artifacts = {}
    for done in shards:
        folder = layout.shard(done.shard)
        is_needed = any(name.endswith("/") for name in done.files)
        is_needed = is_needed or _is_in(layout, done.shard, returned)
        if is_needed or not _is_joined(done):
            with suppress(IncompleteRunError):
                check_sizes(folder, done)
                artifacts[done.shard] = (_digest(folder), is_needed)
    return {"artifacts": artifacts} if artifacts else {}


def _paths_returned(result: Any, layout: RunLayout) -> set[str]:
    """Return the places in the run folder that a result points to, or into."""
    root, depth = layout.root, 2 if layout.n_groups else 1
    inside = (path.relative_to(root) for path in paths_in(result) if path.is_relative_to(root))
    return {"/".join(path.parts[:depth]) for path in inside if path.parts}


def _is_in(layout: RunLayout, shard: int, places: set[str]) -> bool:
    """Tell whether a shard, or its group, is one of these places."""
    path = layout.relative_path(shard)
    return path in places or os.path.dirname(path) in places


def _is_joined(done: Done) -> bool:
    """Tell whether all that a shard holds is lines for its items, as `merge` joins them."""
    items = [entry for name, entry in done.files.items() if name != FAILED]
    return all(entry["lines"] == done.n_written for entry in items)


def shards_in_use(
    values: dict[str, Any], layout: RunLayout, output_dir: Path, shards: Iterable[Done]
) -> set[int]:
    """Return the shards whose folders a merged run needs: results lie there, or may."""
    try:
        result = decode_result(values["result"], output_dir)
    except (KeyError, IndexError, TypeError):
        result = None
    returned = _paths_returned(result, layout)
    used = shards_named_in(output_dir / name for name in values.get("outputs", {}))
    for done in shards:
        has_folder = any(name.endswith("/") for name in done.files)
        if has_folder or not _is_joined(done) or _is_in(layout, done.shard, returned):
            used.add(done.shard)
    return used


def _digest(shard_dir: Path) -> int:
    """Return a checksum of names, sizes and times of all files of a shard, without reading one."""
    digest = 0
    start = len(os.fspath(shard_dir))
    try:
        for path in walk_files(shard_dir):
            stat, name = path.stat(), os.fspath(path)[start:]
            # Also the time of the change of the inode: `cp -p` and `rsync -t` keep the other one.
            facts = f"{name}\0{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}\n"
            digest = zlib.crc32(os.fsencode(facts), digest)
    except (FileNotFoundError, NotADirectoryError):
        return _GONE
    except OSError as error:
        raise unreachable(error, error.filename or shard_dir) from error
    return digest


def known_result(values: dict[str, Any], layout: RunLayout, output_dir: Path) -> tuple[Any] | None:
    """Return what `merge` returned, in a tuple, if that is known and all it left is as it was.

    Raises:
        FileSystemError: unknown from this node.
    """
    try:
        result = decode_result(values["result"], output_dir)
    except (KeyError, IndexError, TypeError):  # not noted, or not by us
        return None
    if not has_outputs(values, output_dir) or None in map(_stat, paths_in(result)):
        return None
    return (result,) if has_artifacts(values, layout) else None


def has_artifacts(values: dict[str, Any], layout: RunLayout) -> bool:
    """Tell whether what is left in the shards, beside lines that were joined, is as it was.

    Names, sizes and times are compared; where they differ, as in a copy of the folder, contents.

    Raises:
        FileSystemError: unknown from this node.
    """
    # JSON made text of the keys.
    known = {int(shard): value for shard, value in values.get("artifacts", {}).items()}
    now = {shard: _digest(layout.shard(shard)) for shard in known}
    needed = {shard for shard, (_, is_needed) in known.items() if is_needed or now[shard] != _GONE}
    changed = sorted(shard for shard in needed if now[shard] != known[shard][0])
    if not changed:
        return True
    found = [(layout.shard(shard), read_done(layout.shard(shard))) for shard in changed]
    try:
        for folder, done in found:
            if done is None:
                raise IncompleteRunError(f"{folder} is gone or damaged since.")
        check_contents([(folder, done) for folder, done in found if done is not None])
    except IncompleteRunError as error:
        logger.warning("The run is merged, but %s", error)
        return False
    artifacts = {shard: (now[shard], known[shard][1]) for shard in known}
    with suppress(OSError):  # it is only read again next time
        write_json(layout.success, {**values, "artifacts": artifacts})
    return True


def encode_result(result: Any, output_dir: Path) -> Any:
    """Return `[result]` in JSON's types, or None if decoding could not give an equal value back.

    Paths inside `output_dir` are kept relative to it: the folder may be moved.
    """
    try:
        # In a list, so that a result of None differs from no result.
        encoded = [_encode(result, output_dir)]
        copied = json.loads(json.dumps(encoded, allow_nan=False))
        return encoded if decode_result(copied, output_dir) == result else None
    except (TypeError, ValueError, RecursionError):
        return None


def decode_result(encoded: Any, output_dir: Path) -> Any:
    """Undo `encode_result`."""
    return _decode(encoded[0], output_dir)


def _encode(value: Any, base: Path) -> Any:
    if isinstance(value, Path):
        return {_PATH: str(value.relative_to(base) if value.is_relative_to(base) else value)}
    if isinstance(value, dict):
        # JSON would turn the key 1 into "1", and the result would come back changed.
        if any(not isinstance(key, str) for key in value):
            raise TypeError("JSON keys are strings")
        return {key: _encode(entry, base) for key, entry in value.items()}
    if isinstance(value, list):
        return [_encode(entry, base) for entry in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise TypeError(f"{type(value).__name__} is not plain data")


def _decode(value: Any, base: Path) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_PATH} and isinstance(value[_PATH], str):
            return base / value[_PATH]
        return {key: _decode(entry, base) for key, entry in value.items()}
    if isinstance(value, list):
        return [_decode(entry, base) for entry in value]
    return value


def paths_in(result: Any) -> list[Path]:
    """Return the paths that a decoded result holds, at any depth."""
    if isinstance(result, dict):
        return [path for entry in result.values() for path in paths_in(entry)]
    if isinstance(result, list):
        return [path for entry in result for path in paths_in(entry)]
    return [result] if isinstance(result, Path) else []
