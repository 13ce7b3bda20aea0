"""Index of a tar file, built without unpacking; links are refused."""

import hashlib
import io
import json
import math
import os
import tarfile
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from espnet3.components.data.errors import DataError
from espnet3.components.data.sources.shard_index import ShardIndex, id_columns
from espnet3.errors import RecordError
from espnet3.io.scp import check_id

AUDIO = ("flac", "wav", "ogg", "opus", "mp3", "aiff", "au", "w64", "rf64", "caf", "sph")
"""Endings of members that soundfile reads."""
NOT_HASHED_BYTES = 2**20

_BLOCK = 512
_COMPRESSED = {b"\x1f\x8b": "gunzip", b"BZ": "bunzip2", b"\xfd7": "unxz", b"(\xb5": "unzstd"}


def index_tar(shard: Path) -> ShardIndex:
    """Return the index of a tar file in webdataset's layout.

    Members `KEY.ENDING` that follow each other and have the same key are one item; a key ends at
    the first dot of the file name. The id is the `utt_id` in the item's JSON, else the key.

    Facts: `endings` (that the column `ending` counts), `json_keys` and `digest`, of all but the
    content of audio. Columns: `member_ends` and the ids, per item; `offset`, `size`, `ending` and
    `seconds`, per member.

    Raises:
        DataError: It is no tar, cut short, or has links or an item in two places.
        RecordError: A member's JSON or id is wrong.
    """
    try:
        with shard.open("rb") as file:
            builder = _Builder(shard, file)
            for member in _members(file, shard):
                builder.add(member)
            return builder.finish()
    except OSError as error:
        raise DataError(f"The shard {shard} cannot be read: {error.strerror}.") from error


def kind_of(ending: str) -> str:
    """Return what a member is: `flac` of `flac` and of `noisy.flac`."""
    return ending.rpartition(".")[2]


def _members(file: IO[bytes], shard: Path) -> Iterator[tarfile.TarInfo]:
    """Yield the members with data; raise unless the file is a whole tar of plain files."""
    n_bytes = os.fstat(file.fileno()).st_size
    last = "its start"
    try:
        tar = tarfile.open(fileobj=file, mode="r:")  # noqa: SIM115 (it would close the file)
        while (member := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # it would keep them all
            if member.offset_data + member.size > n_bytes:
                raise _cut_short(shard, f"inside its member {member.name!r}")
            last = f"its member {member.name!r}"
            if not member.isdir():
                yield _checked(member, shard)
    except tarfile.TarError as error:
        if last == "its start":
            raise DataError(_why_no_tar(file, shard)) from error
        raise _cut_short(shard, f"after {last} ({error})") from error
    _check_end(file, tar.offset, shard, last)


def _checked(member: tarfile.TarInfo, shard: Path) -> tarfile.TarInfo:
    if member.isreg() and not member.issparse():
        return member
    kinds = {tarfile.SYMTYPE: "symbolic link", tarfile.LNKTYPE: "hard link"}
    kind = kinds.get(member.type, "device, pipe or sparse file")
    raise DataError(
        f"{shard}: Its member {member.name!r} is a {kind}, which is not followed. Pack the files "
        "themselves: tar --dereference --hard-dereference --sort=name -cf SHARD.tar FOLDER"
    )


def _why_no_tar(file: IO[bytes], shard: Path) -> str:
    file.seek(0)
    start = file.read(2)
    if not start:
        return f"{shard} is empty. Copy or make it again."
    if start in _COMPRESSED:
        return (
            f"{shard} is compressed, so that nothing in it can be read by position. Unpack it "
            f"once: {_COMPRESSED[start]} {shard.name} (audio in it should be FLAC instead)."
        )
    return (
        f"{shard} is no tar file. Name the shards only, such as path: FOLDER/*.tar; if it is to be "
        "one, copy or make it again."
    )


def _check_end(file: IO[bytes], offset: int, shard: Path, last: str) -> None:
    """Raise unless the file ends as a tar does: tarfile takes any end for a good one."""
    file.seek(offset)
    block = file.read(_BLOCK)
    if block != bytes(_BLOCK):
        if not block.strip(b"\0"):
            raise DataError(
                f"{shard} is cut short after {last}, without the mark of its end. Copy or make it "
                f"again; if it is known to be whole: head -c 1024 /dev/zero >> {shard.name}"
            )
        raise DataError(
            f"{shard} is damaged after {last}, at byte {offset}. Copy or make it again."
        )
    while block := file.read(2**20):
        if block.strip(b"\0"):
            raise DataError(
                f"{shard} continues after its end marker. If several were joined by cat, make "
                "one of them: tar --concatenate -f A.tar B.tar; or name each as a shard."
            )


def _cut_short(shard: Path, where: str) -> DataError:
    return DataError(f"{shard} is cut short {where}. Copy or make it again.")


@dataclass
class _Builder:
    """Columns that grow member by member."""

    shard: Path
    file: IO[bytes]
    endings: dict[str, int] = field(default_factory=dict)
    json_keys: dict[str, None] = field(default_factory=dict)
    hasher: Any = field(default_factory=hashlib.sha256)
    ids: list[str] = field(default_factory=list)
    keys: dict[str, None] = field(default_factory=dict)
    current: set[str] = field(default_factory=set)
    member_ends: "array[int]" = field(default_factory=lambda: array("q"))
    offset: "array[int]" = field(default_factory=lambda: array("q"))
    size: "array[int]" = field(default_factory=lambda: array("q"))
    ending: "array[int]" = field(default_factory=lambda: array("H"))
    seconds: "array[float]" = field(default_factory=lambda: array("d"))

    def add(self, member: tarfile.TarInfo) -> None:
        folder, _, name = member.name.removeprefix("./").rpartition("/")
        if name.startswith((".", "__")):  # of macOS, of webdataset
            return
        stem, _, ending = name.partition(".")
        key = f"{folder}/{stem}" if folder else stem
        name, dot, kind = ending.rpartition(".")
        ending = f"{name}{dot}{kind.lower()}"
        if next(reversed(self.keys), None) != key:
            self._start(key)
        if ending in self.current:
            raise DataError(
                f"{self.shard}: Its member {member.name!r} is there twice. Make it again."
            )
        self.current.add(ending)
        self.offset.append(member.offset_data)
        self.size.append(member.size)
        self.ending.append(self.endings.setdefault(ending, len(self.endings)))
        self.seconds.append(self._look_at(member, ending))
        self.member_ends[-1] = len(self.offset)

    def _start(self, key: str) -> None:
        if key in self.keys:
            raise DataError(
                f"{self.shard}: The members of {key!r} are not next to each other. Write them in "
                "order: tar --sort=name -cf SHARD.tar FOLDER"
            )
        self.keys[key] = None
        self.current.clear()
        self.ids.append("_".join(key.split()))
        self.member_ends.append(len(self.offset))

    def _look_at(self, member: tarfile.TarInfo, ending: str) -> float:
        """Take the duration of audio, the id of JSON, and the hash of what is small."""
        self.hasher.update(f"{member.name}\0{member.size}\0".encode(errors="surrogateescape"))
        if kind_of(ending) in AUDIO:
            seconds = _duration(self.file, member)
            self.hasher.update(seconds.hex().encode())
            return seconds
        if member.size <= NOT_HASHED_BYTES:
            self.file.seek(member.offset_data)
            data = self.file.read(member.size)
            self.hasher.update(data)
            if ending == "json":
                self._look_at_json(data, member.name)
        return math.nan

    def _look_at_json(self, data: bytes, name: str) -> None:
        value = load_json(data, f"{self.shard}, member {name!r}")
        self.json_keys.update(dict.fromkeys(value))
        if "utt_id" in value:
            self.ids[-1] = value["utt_id"]

    def finish(self) -> ShardIndex:
        for id, key in zip(self.ids, self.keys, strict=True):
            try:
                check_id(id)
            except RecordError as error:
                raise RecordError(f"{self.shard}, item {key!r}: {error}") from None
        facts = {
            "endings": list(self.endings),
            "json_keys": list(self.json_keys),
            "digest": self.hasher.hexdigest(),
        }
        names = ("member_ends", "offset", "size", "ending", "seconds")
        columns = {name: np.array(getattr(self, name)) for name in names}
        return ShardIndex(facts, {**columns, **id_columns(self.ids)})


def load_json(data: bytes, where: str) -> dict[str, Any]:
    """Return the object in a member's JSON; `where` is for the error."""
    try:
        value = json.loads(data)
    except ValueError as error:
        raise RecordError(f"{where} is not JSON: {error}. Make it again.") from None
    if not isinstance(value, dict):
        raise RecordError(f'{where} is {value!r:.80}, not an object. Write: {{"text": "hello"}}')
    return value


def _duration(file: IO[bytes], member: tarfile.TarInfo) -> float:
    """Return the seconds that the header has; NaN if it cannot be read."""
    import soundfile

    try:
        with soundfile.SoundFile(_Window(file, member.offset_data, member.size)) as audio:
            return float(audio.frames / audio.samplerate)
    except (soundfile.SoundFileError, ZeroDivisionError):
        return math.nan


class _Window(io.RawIOBase):
    """A part of a file as a file, so that only the header of the audio in it is read."""

    def __init__(self, file: IO[bytes], start: int, size: int) -> None:
        self._file, self._start, self._size, self._position = file, start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), self._size - self._position)
        self._file.seek(self._start + self._position)
        data = self._file.read(max(0, wanted))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        return self._position
