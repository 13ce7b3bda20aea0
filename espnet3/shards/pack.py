"""Pack the shards of a merged run into one file, and take them out again.

A shard is a folder with two files or more, and file systems limit how many files a user has. Once a
run is merged, its shards are only read to say which worker did what, or to merge again.
`split.tar` holds them as they were, for any `tar`; `split.tar.index` says where each file is. It is
written last: until then the folders count, and a shard that has a folder is the one in the folder
ever after.

The first shard keeps its folder. Versions that do not know of packed shards take a run without any
folder for one that has not begun, and would plan it again where a setting changed.
"""

import json
import os
import re
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import IO

from espnet3.errors import RunFolderError
from espnet3.io.atomic import dump_json, fsync_dir, open_atomic
from espnet3.io.shared_files import (
    Count,
    DamagedFileError,
    is_there,
    parse_record,
    read_file,
    read_in_order,
)
from espnet3.shards.commit import Done, discard_attempt, make_attempt
from espnet3.shards.layout import DONE, RunLayout, discarded_path

FORMAT = "espnet3-packed-shards"
VERSION = 1
_BLOCK = 1 << 20
_POINTER = re.compile(rb"\bsplit\.(\d+)/")
_OVERLAP = 64
_TRIES = 5


@dataclass(frozen=True)
class _Head:
    """The first line of an index."""

    run_id: str
    format: str = FORMAT
    version: int = VERSION


@dataclass(frozen=True)
class _Member:
    """Place of a file in the tar, and its attributes."""

    offset: Count
    n_bytes: Count
    crc32: Count
    mode: Count
    mtime_ns: int


@dataclass(frozen=True)
class _Packed:
    """A line of an index: a shard."""

    shard: Count
    mode: Count
    mtime_ns: int
    files: dict[str, _Member]


@dataclass(frozen=True)
class Tidied:
    """Shards and files that were packed or taken out."""

    n_shards: int = 0
    """How many were packed, or taken out."""
    n_files: int = 0
    """Files and folders that they were, or are again."""
    n_left: int = 0
    """Shards that stay folders."""


class Pack:
    """The packed shards of a run, in the tar of its layout."""

    def __init__(self, layout: RunLayout, lines: Iterable[_Packed]) -> None:
        self._layout = layout
        self.lines = {line.shard: line for line in lines}

    def committed(self) -> dict[int, Done]:
        """Return what the shards say of themselves.

        Raises:
            DamagedFileError: the tar is not the one of the index.
        """
        with self._open() as file:
            return {
                shard: parse_record(self._read(file, shard, DONE), Done, self._layout.packed)
                for shard in self.lines
            }

    def read(self, shard: int) -> dict[str, bytes]:
        """Return the content of all files of a shard, proven; see `committed`."""
        with self._open() as file:
            return {name: self._read(file, shard, name) for name in self.lines[shard].files}

    def _open(self) -> IO[bytes]:
        try:
            return self._layout.packed.open("rb")
        except FileNotFoundError:
            raise self._damaged("is gone") from None

    def _read(self, file: IO[bytes], shard: int, name: str) -> bytes:
        member = self.lines[shard].files[name]
        file.seek(member.offset)
        content = file.read(member.n_bytes)
        if len(content) != member.n_bytes or zlib.crc32(content) != member.crc32:
            shard_path = self._layout.relative_path(shard)
            raise self._damaged(f"does not hold {shard_path}/{name} as it was")
        return content

    def _damaged(self, what: str) -> DamagedFileError:
        return DamagedFileError(
            f"{self._layout.packed} {what}. Bring it back from a copy; or remove "
            f"{self._layout.packed_index} and run the same command as before again, which computes "
            "those shards."
        )


def read_pack(layout: RunLayout, run_id: str) -> Pack | None:
    """Return the packed shards of a run; None if there are none.

    Raises:
        RunFolderError: they are damaged, or packed by a newer version.
        FileSystemError: they cannot be read from here.
    """
    path = layout.packed_index
    content = read_file(path)
    if content is None:
        return None
    first, *lines = content.splitlines() or [b""]
    with suppress(ValueError):
        head = json.loads(first)
        if isinstance(head, dict) and head.get("version", VERSION) != VERSION:
            raise RunFolderError(
                f"{path} has version {head['version']!s:.40} of packed shards; this ESPnet3 reads "
                f"version {VERSION}.",
                fix="Take them out with the ESPnet3 that packed them: espnet3 tidy --undo DIR",
            )
    if parse_record(first, _Head, path).run_id != run_id:
        return None  # of a run that was here before
    return Pack(layout, (parse_record(line, _Packed, path) for line in lines))


def pack_shards(
    layout: RunLayout, run_id: str, shards: Mapping[int, Done], stays: Callable[[Done], bool]
) -> Tidied:
    """Pack the folders of committed shards of a merged run, and remove them.

    Each file is compared with its checksum before, and once more in the tar. It may be killed at
    any moment: the same call then does the rest.

    Args:
        layout: of the run.
        run_id: of the run.
        shards: those that are committed.
        stays: tells which are needed where they are.
    """
    pack = read_pack(layout, run_id)
    if pack is None:
        # The first one stays: see above.
        chosen = [s for s, done in sorted(shards.items()) if s > 0 and not stays(done)]
        lines = _write_tar(layout, {shard: shards[shard] for shard in chosen})
        if not lines:
            return Tidied(n_left=len(shards))
        pack = Pack(layout, lines)
        for shard in pack.lines:
            pack.read(shard)  # what cannot be read back is not removed
        _write_index(layout, run_id, lines)
    same = [shard for shard in sorted(pack.lines) if _is_as_packed(layout, pack, shard)]
    for _ in read_in_order(lambda shard: _remove(layout, shard), same):
        pass
    for group in range(layout.n_groups):
        with suppress(OSError):  # some shards of it stay
            os.rmdir(layout.group_path(group))
    n_files = sum(1 + len(pack.lines[shard].files) for shard in same)
    return Tidied(len(same), n_files, layout.n_shards - len(pack.lines))


def _write_tar(layout: RunLayout, shards: Mapping[int, Done]) -> list[_Packed]:
    """Write the tar; return a line for each shard that is in it, which those that changed are not.

    The permissions are those of the folder's files, and the owner is the user that unpacks.
    """
    if not shards:
        return []
    lines = []
    with (
        open_atomic(layout.packed, "wb") as file,
        tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        found = read_in_order(lambda shard: _read_folder(layout, shards[shard]), shards)
        for shard, read in zip(shards, found, strict=True):
            if read is not None:
                lines.append(_add(tar, layout, shard, read))
    return lines


_Files = dict[str, tuple[bytes, os.stat_result]]


def _read_folder(layout: RunLayout, done: Done) -> _Files | None:
    """Return the files of a shard; None if they are not just those that were committed."""
    folder = layout.shard_path(done.shard)
    try:
        entries = list(os.scandir(folder))
        if any(not entry.is_file(follow_symlinks=False) for entry in entries):
            return None
        if {entry.name for entry in entries} != {DONE, *done.files}:
            return None
        files = {e.name: (Path(e.path).read_bytes(), e.stat()) for e in entries}
    except OSError:
        return None
    is_same = all(
        len(files[name][0]) == known["bytes"] and zlib.crc32(files[name][0]) == known["crc32"]
        for name, known in done.files.items()
    )
    return files if is_same else None


def _add(tar: tarfile.TarFile, layout: RunLayout, shard: int, files: _Files) -> _Packed:
    name, found = layout.relative_path(shard), os.stat(layout.shard(shard))
    folder = tarfile.TarInfo(name)
    folder.type, folder.mode = tarfile.DIRTYPE, found.st_mode & 0o777
    folder.mtime = int(found.st_mtime)
    tar.addfile(folder)
    members = {}
    for file_name, (content, stat) in sorted(files.items()):
        info = tarfile.TarInfo(f"{name}/{file_name}")
        info.size, info.mode, info.mtime = len(content), stat.st_mode & 0o777, int(stat.st_mtime)
        tar.addfile(info, BytesIO(content))
        # Behind it is only what fills its last block.
        offset = tar.offset - -(-len(content) // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
        crc32 = zlib.crc32(content)
        members[file_name] = _Member(offset, len(content), crc32, info.mode, stat.st_mtime_ns)
    return _Packed(shard, folder.mode, found.st_mtime_ns, members)


def _write_index(layout: RunLayout, run_id: str, lines: Iterable[_Packed]) -> None:
    with open_atomic(layout.packed_index) as file:
        file.write(dump_json(asdict(_Head(run_id))) + "\n")
        for line in lines:
            file.write(dump_json(asdict(line)) + "\n")


def _is_as_packed(layout: RunLayout, pack: Pack, shard: int) -> bool:
    """Tell whether a shard still has its folder, and that is the one which was packed."""
    member = pack.lines[shard].files[DONE]
    content = read_file(os.path.join(layout.shard_path(shard), DONE))
    return content is not None and zlib.crc32(content) == member.crc32


def _remove(layout: RunLayout, shard: int) -> None:
    # By another name first: a reader finds all of a shard, or nothing.
    dead = discarded_path(layout.new_attempt(shard))
    os.rename(layout.shard(shard), dead)
    discard_attempt(dead)


def unpack_shards(layout: RunLayout, run_id: str) -> Tidied:
    """Take the packed shards out again, each as it was, and remove the tar.

    Called before anything is merged or computed again. Several processes may do so at once, and
    each may be killed at any moment.
    """
    pack = read_pack(layout, run_id)
    if pack is None:
        return Tidied()
    absent = [shard for shard in pack.lines if not is_there(layout.shard(shard))]
    for _ in read_in_order(lambda shard: _restore(layout, pack, shard), absent):
        pass
    # All names are on the disk before the only other copy goes; its index first.
    for group in {layout.group_of(shard) for shard in absent}:
        fsync_dir(layout.group_path(group))
    fsync_dir(layout.root)
    layout.packed_index.unlink(missing_ok=True)
    layout.packed.unlink(missing_ok=True)
    return Tidied(len(absent), sum(1 + len(pack.lines[shard].files) for shard in absent))


def _restore(layout: RunLayout, pack: Pack, shard: int) -> None:
    line, target = pack.lines[shard], layout.shard(shard)
    for last in (False,) * _TRIES + (True,):
        attempt = layout.new_attempt(shard)
        try:
            make_attempt(attempt)
            for name, content in pack.read(shard).items():
                _write(attempt / name, content, line.files[name])
            fsync_dir(attempt)
            os.chmod(attempt, line.mode)
            os.utime(attempt, ns=(line.mtime_ns, line.mtime_ns))
            os.rename(attempt, target)
            return
        except OSError:
            # Another process was first, or a driver that came took the attempt for a dead one's.
            discard_attempt(attempt)
            if is_there(target):
                return
            if last:
                raise


def _write(path: Path, content: bytes, member: _Member) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.chmod(path, member.mode)
    os.utime(path, ns=(member.mtime_ns, member.mtime_ns))


def shards_named_in(paths: Iterable[Path]) -> set[int]:
    """Return the shards into whose folders the lines of merged files point."""
    return {shard for path in paths if path.is_file() for shard in _named_in(path)}


def _named_in(path: Path) -> Iterator[int]:
    rest = b""
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            rest += block
            yield from (int(match[1]) for match in _POINTER.finditer(rest))
            rest = rest[-_OVERLAP:]  # where a name may have been cut
