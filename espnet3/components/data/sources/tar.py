"""Tar shards in webdataset's layout, read by position without unpacking them.

Example:
    ```yaml
    data_src: tar
    data_src_args:
      path: data/train-{000..009}.tar
    ```
"""

import dataclasses
import hashlib
import io
import json
import math
import os
import tarfile
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from espnet3.components.data.audio import read_audio
from espnet3.components.data.dataset import Sample
from espnet3.components.data.errors import DataError
from espnet3.components.data.sources.base import COMMON
from espnet3.components.data.sources.shard_index import (
    Array,
    ColumnFile,
    IndexKind,
    ShardIndex,
    id_at,
    id_columns,
)
from espnet3.components.data.sources.shard_source import OpenShard, Paths, ShardSource, find_shards
from espnet3.errors import ConfigError, RecordError, suggest
from espnet3.io.atomic import StrPath
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
                f"{shard} is cut short after {last}, without the mark of its end.",
                fix="Copy or make it "
                f"again; if it is known to be whole: head -c 1024 /dev/zero >> {shard.name}",
            )
        raise DataError(
            f"{shard} is damaged after {last}, at byte {offset}.", fix="Copy or make it again."
        )
    while block := file.read(2**20):
        if block.strip(b"\0"):
            raise DataError(
                f"{shard} continues after its end marker. If several were joined by cat, make "
                "one of them: tar --concatenate -f A.tar B.tar; or name each as a shard."
            )


def _cut_short(shard: Path, where: str) -> DataError:
    return DataError(f"{shard} is cut short {where}.", fix="Copy or make it again.")


@dataclass
class _Builder:
    """Columns that grow member by member."""

    shard: Path
    file: IO[bytes]
    endings: dict[str, int] = dataclasses.field(default_factory=dict)
    json_keys: dict[str, None] = dataclasses.field(default_factory=dict)
    hasher: Any = dataclasses.field(default_factory=hashlib.sha256)
    ids: list[str] = dataclasses.field(default_factory=list)
    keys: dict[str, None] = dataclasses.field(default_factory=dict)
    current: set[str] = dataclasses.field(default_factory=set)
    member_ends: "array[int]" = dataclasses.field(default_factory=lambda: array("q"))
    offset: "array[int]" = dataclasses.field(default_factory=lambda: array("q"))
    size: "array[int]" = dataclasses.field(default_factory=lambda: array("q"))
    ending: "array[int]" = dataclasses.field(default_factory=lambda: array("H"))
    seconds: "array[float]" = dataclasses.field(default_factory=lambda: array("d"))

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
                f"{self.shard}: Its member {member.name!r} is there twice.", fix="Make it again."
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
                f"{self.shard}: The members of {key!r} are not next to each other.",
                fix="Write them in order: tar --sort=name -cf SHARD.tar FOLDER",
            )
        self.keys[key] = None
        self.current.clear()
        # Names of files may have spaces, but an id is one word.
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
        raise RecordError(f"{where} is not JSON: {error}.", fix="Make it again.") from None
    if not isinstance(value, dict):
        raise RecordError(
            f"{where} is {value!r:.80}, not an object.", fix='Write: {"text": "hello"}'
        )
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
        # Behind the end it is negative, for which read() would return all the rest of the tar.
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


TAR_INDEX = IndexKind("tar-1", index_tar)
"""How tar files are indexed."""
_DECODED = ("txt", "json", "npy", *AUDIO)
_PLAIN_NAMES = {"txt": "text", **dict.fromkeys(AUDIO, "speech")}


class Dataset(ShardSource):
    """Items in the order of the shards: members `KEY.flac`, `KEY.txt`, `KEY.json` are one item.

    The first time, each shard is indexed: `SHARD.tar.index` beside it, or in the user's cache
    where the folder cannot be written. The keys of the JSON are fields of the sample, and members
    such as `KEY.noisy.flac` or `KEY.tokens.npy` the fields `noisy` and `tokens`; what is of
    another kind is left out unless `columns` names it. The id is the key, or `utt_id` in the JSON.

    Args:
        path: A shard, a folder, a pattern such as `train-{000..009}.tar`, or a list of these,
            relative to the current folder or the recipe's.
        columns: The ending, or the key of the JSON, of a field, such as
            `{speech: noisy.flac, text: transcript}`.
        sample_rate: The rate that all audio must have; None for any.
        channel: The channel to take, from 0; `mix` for the mean of all, `only` to refuse files with
            more than one; None keeps all.
        resample: Bring audio of another rate to `sample_rate`, instead of refusing it.
        index_dir: The folder for the indexes.
        recipe_dir: The recipe's folder.

    Raises:
        ConfigError: A shard or column is not found.
        DataError: A shard is damaged, or an item has no audio.
        RecordError: An id or the JSON of an item is wrong.
    """

    def __init__(
        self,
        path: Paths,
        *,
        columns: Mapping[str, str] | None = None,
        sample_rate: int | None = None,
        channel: int | str | None = None,
        resample: bool = False,
        index_dir: StrPath | None = None,
        recipe_dir: StrPath | None = None,
    ) -> None:
        shards = find_shards(path, ".tar", recipe_dir)
        files = replace(TAR_INDEX, index_dir=index_dir).files_of(shards)
        super().__init__(shards, files, sample_rate=sample_rate, channel=channel, resample=resample)
        facts = [ColumnFile(file).facts for file in files]
        endings = list(dict.fromkeys(e for each in facts for e in each["endings"]))
        keys = list(dict.fromkeys(k for each in facts for k in each["json_keys"]))
        origin = str(shards[0]) if len(shards) == 1 else f"the corpus of {shards[0]}"
        self._fields = find_fields(columns, endings, keys, origin)
        self._settings["fields"] = self._fields
        self._survey()

    def _seconds_of(self, index: ColumnFile, shard: Path) -> Array:
        endings = index.facts["endings"]
        wanted = [i for i, ending in enumerate(endings) if ending in self._fields.speech]
        members = np.flatnonzero(np.isin(index["ending"], wanted))
        items = np.searchsorted(index["member_ends"], members, side="right")
        counts = np.bincount(items, minlength=len(index["member_ends"]))
        bad = np.flatnonzero(counts != 1)
        if bad.size:
            raise self._without_audio(index, shard, int(bad[0]), int(bad.size))
        seconds: Array = index["seconds"][members]
        return seconds

    def _without_audio(self, index: ColumnFile, shard: Path, row: int, n_bad: int) -> DataError:
        endings = ", ".join(index.facts["endings"][e] for e in index["ending"][_span(index, row)])
        speech = " or ".join(self._fields.speech)
        item = id_at(index, row)
        return DataError(
            f"{shard}: {n_bad} of {len(index['member_ends'])} items have not exactly one member "
            f"that ends with {speech}. The first is {item!r}, with {endings}. Leave such items out "
            f"where the shard is made, or say which is the audio: columns: {{speech: ENDING}}"
        )

    def _read(self, shard: OpenShard, row: int) -> tuple[Sample, Any]:
        index = shard.index
        span = _span(index, row)
        names = [index.facts["endings"][code] for code in index["ending"][span]]
        places = {
            name: (start, start + size)
            for name, start, size in zip(
                names, index["offset"][span].tolist(), index["size"][span].tolist(), strict=True
            )
            if self._fields.needs(name)
        }
        first = min(start for start, _ in places.values())
        # One read for the whole item: its members are next to each other.
        data = shard.file.read(first, max(end for _, end in places.values()) - first)
        members = {name: data[start - first : end - first] for name, (start, end) in places.items()}
        audio = next(members.pop(name) for name in self._fields.speech if name in members)
        id = shard.id_at(row)
        where = f"{shard.file.path}, item {id!r}"
        return self._fields.decode(id, members, where), audio


def _span(index: ColumnFile, row: int) -> slice:
    ends = index["member_ends"]
    return slice(int(ends[row - 1]) if row else 0, int(ends[row]))


@dataclass(frozen=True)
class TarFields:
    """Origin of the fields of a sample, for all items of a corpus.

    Args:
        speech: The endings of which an item must have one.
        members: The field of each ending that is decoded, but for those of `speech` and the JSON.
        keys: The field of each key in the JSON that has another name in the sample.
    """

    speech: tuple[str, ...]
    members: Mapping[str, str]
    keys: Mapping[str, str]

    def needs(self, ending: str) -> bool:
        """Tell whether members with this ending are read at all."""
        return ending in self.speech or ending in self.members or ending == "json"

    def decode(self, id: str, members: Mapping[str, bytes], where: str) -> Sample:
        """Return the fields of an item, without its speech."""
        fields: Sample = {}
        if "json" in members and "json" not in self.members:
            values = load_json(members["json"], where)
            fields = {self.keys.get(k, k): v for k, v in values.items() if v is not None}
        for ending, data in members.items():
            if ending in self.members:
                fields[self.members[ending]] = _decode(ending, data, where)
        return {"utt_id": id, **{k: v for k, v in fields.items() if k != "utt_id"}}


def find_fields(
    given: Mapping[str, str] | None, endings: list[str], json_keys: list[str], origin: str
) -> TarFields:
    """Find out which member or which key of the JSON is the speech, the text, the speaker.

    A member `noisy.flac` is the field `noisy`; `flac`, or any other kind of audio, is `speech`,
    `txt` is `text`, and the keys of `json` are fields of their own.

    Args:
        given: What the user wrote: the ending, or the key of the JSON, of a field.
        endings: All that there are.
        json_keys: Likewise.
        origin: Where these are, for the errors.

    Raises:
        ConfigError: One that was given does not exist, or it is not clear which is the speech.
    """
    chosen = _check_given(given, endings, json_keys, origin)
    speech = _find_speech(chosen, endings, origin)
    members = {e: _field_of(e) for e in endings if kind_of(e) in _DECODED and e != "json"}
    members |= {source: field for field, source in chosen.items() if source in endings}
    keys = {source: field for field, source in chosen.items() if source not in endings}
    taken = {*members.values(), *keys.values()}
    for field in ("text", "speaker"):
        found = next((name for name in COMMON[field] if name in json_keys), None)
        if found and field not in taken:
            keys[found] = field
    return TarFields(speech, {e: f for e, f in members.items() if e not in speech}, keys)


def _check_given(
    given: Mapping[str, str] | None, endings: list[str], json_keys: list[str], origin: str
) -> dict[str, str]:
    if not isinstance(given, Mapping | None):
        raise ConfigError(
            f"columns is {given!r:.80}, but must name the member of each field.",
            fix="Write: columns: {speech: flac, text: txt}",
        )
    for field, source in (given or {}).items():
        if field == "utt_id":
            raise ConfigError(
                f"columns.utt_id is {source!r}, but the id is the name of the members before its "
                "first dot, or `utt_id` in their JSON.",
                fix="Remove columns.utt_id.",
            )
        known = [*endings, *json_keys]
        if source not in known:
            raise ConfigError(
                f"columns.{field} is {source!r}, but {origin} has neither members with that ending "
                f"nor that key in their JSON.{suggest(str(source), known)} "
                f"It has: {', '.join(known)}."
            )
    return dict(given or {})


def _find_speech(chosen: Mapping[str, str], endings: list[str], origin: str) -> tuple[str, ...]:
    if "speech" in chosen:
        if kind_of(chosen["speech"]) in AUDIO:
            return (chosen["speech"],)
        problem = f"columns.speech is {chosen['speech']!r}, which is no audio"
    else:
        problem = "columns.speech is not set"
        audio = [e for e in endings if kind_of(e) in AUDIO]
        plain = tuple(e for e in audio if e in AUDIO)
        if plain or len(audio) == 1:
            return plain or tuple(audio)
    audio = [e for e in endings if kind_of(e) in AUDIO]
    raise ConfigError(
        f"{problem}, and {origin} has members that end with {', '.join(endings) or 'nothing'}.",
        fix=f"Write the one to take: columns: {{speech: {audio[0] if audio else 'flac'}}}",
    )


def _field_of(ending: str) -> str:
    name, _, kind = ending.rpartition(".")
    return name or _PLAIN_NAMES.get(kind, kind)


def _decode(ending: str, data: bytes, where: str) -> Any:
    kind = kind_of(ending)
    try:
        if kind == "txt":
            return data.decode().rstrip("\r\n")
        if kind == "json":
            return json.loads(data)
        if kind == "npy":
            # Shards come from others, and a pickle would run their code.
            return np.load(io.BytesIO(data), allow_pickle=False)
        return read_audio(data).samples if kind in AUDIO else data
    except ValueError as error:  # AudioError is one
        raise DataError(f"{where}, {ending}: {error} Make it again.") from error
