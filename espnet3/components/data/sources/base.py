"""Base classes of our sources: files, the columns of a table, and manifests of one per line."""

import importlib.util
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espnet3.components.data.audio import Audio, AudioForm, Source, in_threads, read_duration
from espnet3.components.data.dataset import Sample, as_position
from espnet3.components.data.errors import AudioError, create_command
from espnet3.config.fingerprint import digest, file_identity
from espnet3.errors import ConfigError, MissingExtraError, RecordError, suggest
from espnet3.io.atomic import StrPath
from espnet3.io.scp import check_id

# `dump/raw/org/test` is that far below the recipe that its paths count from.
_MAX_LEVELS = 4


@dataclass(frozen=True, slots=True)
class Clip:
    """A file, or a part of it in seconds."""

    source: Source
    start: float = 0.0
    end: float | None = None


class SpeechSource(ABC):
    """A dataset of utterances with audio.

    Args:
        sample_rate: The rate that all audio must have; None for any.
        channel: The channel to take, from 0; `mix` for the mean of all, `only` to refuse files with
            more than one; None keeps all.
        resample: Bring audio of another rate to `sample_rate`, instead of refusing it.
    """

    def __init__(
        self,
        *,
        sample_rate: int | None = None,
        channel: int | str | None = None,
        resample: bool = False,
    ) -> None:
        self._form = AudioForm(sample_rate, channel, resample)
        self._durations: list[float | None] | None = None

    @abstractmethod
    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Sample:
        position = as_position(index, len(self))
        fields = self._fields(position)
        try:
            audio = self._audio(position)
        except AudioError as error:
            raise AudioError(f"{self._where(position)}: {error}") from error
        return {**fields, "speech": audio.samples, "sample_rate": audio.sample_rate}

    def fields(self, index: int) -> Sample:
        """Return the sample without its audio, which is not opened."""
        return self._fields(as_position(index, len(self)))

    def durations(self, unreadable: float | None = None) -> list[float]:
        """Return the seconds of each item: those that are written down, else from file headers.

        Args:
            unreadable: What to return for an item whose header cannot be read.

        Raises:
            AudioError: A header cannot be read, and `unreadable` is None; the message has the
                number of such files.
        """
        found = self._find_durations() if self._durations is None else self._durations
        bad = [i for i, duration in enumerate(found) if duration is None]
        # Kept only when complete: a file that is still being copied can be read the next time.
        if not bad:
            self._durations = found
        elif unreadable is None:
            raise self._unreadable(bad, len(found))
        return [unreadable or 0.0 if duration is None else duration for duration in found]

    def seconds_of(self, positions: Sequence[int]) -> list[float]:
        """Return the seconds of some items: a look at a large corpus need not open all its files.

        Raises:
            AudioError: A header cannot be read; the message has the number of such files.
        """
        known = self._known_durations()
        unknown = [i for i in positions if known[i] is None]
        for i, length in zip(unknown, self._lengths(unknown), strict=True):
            known[i] = length
        bad = [i for i in unknown if known[i] is None]
        if bad:
            raise self._unreadable(bad, len(positions))
        return [known[i] or 0.0 for i in positions]

    def where(self, index: int) -> str:
        """Return where an item was written down, for errors: file and line."""
        return self._where(as_position(index, len(self)))

    def fingerprint(self) -> str:
        """Return a digest of what the items are made from, but for the audio files' content."""
        return digest({**self._form.settings(), "origin": self._origin()})

    def audio_files(self, most: int) -> list[str | os.PathLike[str]]:
        """Return the files of at most so many items, evenly spaced; none where they are inside."""
        step = max(1, -(-len(self) // most))
        return [file for i in range(0, len(self), step) if (file := self._audio_file(i))]

    def audio_file(self, index: int) -> str:
        """Return the file of an item; empty where it is inside another."""
        return os.fspath(self._audio_file(as_position(index, len(self))) or "")

    def _audio_file(self, position: int) -> str | os.PathLike[str] | None:
        try:
            source = self._clip(position).source
        except (AudioError, NotImplementedError):  # reported when it is read; or another reads it
            return None
        return None if isinstance(source, bytes) else source

    @abstractmethod
    def _fields(self, position: int) -> Sample:
        """Return the sample without its audio."""

    @abstractmethod
    def _clip(self, position: int) -> Clip:
        """Return where the audio of an item is."""

    @abstractmethod
    def _known_durations(self) -> list[float | None]:
        """Return what is known without opening audio files."""

    @abstractmethod
    def _where(self, position: int) -> str:
        """Return where an item was written down: file and line."""

    @abstractmethod
    def _origin(self) -> Any:
        """Return what the items depend on, as plain values."""

    def _audio(self, position: int) -> Audio:
        clip = self._clip(position)
        return self._form.read(clip.source, clip.start, clip.end)

    def _find_durations(self) -> list[float | None]:
        known = self._known_durations()
        unknown = [i for i, duration in enumerate(known) if duration is None]
        lengths = self._lengths(unknown)
        for i, length in zip(unknown, lengths, strict=True):
            known[i] = length
        return known

    def _lengths(self, positions: Sequence[int]) -> list[float | None]:
        return in_threads(self._try_length, positions)

    def _try_length(self, position: int) -> float | None:
        try:
            return self._length(position)
        except AudioError:
            return None

    def _length(self, position: int) -> float:
        clip = self._clip(position)
        length = read_duration(clip.source) - clip.start
        if length < 0:
            raise AudioError(f"The part starts at {clip.start:g} s, after the end of the file.")
        return length

    def _unreadable(self, positions: Sequence[int], n_items: int) -> AudioError:
        first = positions[0]
        try:
            self._length(first)
            reason = "It can be read now."  # it was being written, or the network had a pause
        except AudioError as error:
            reason = str(error)
        return AudioError(
            f"The durations of {len(positions)} of {n_items} items cannot be read from the headers "
            f"of their audio files. The first is {self._where(first)}: {reason}"
        )


def content_of(*files: Path) -> dict[str, str]:
    """Return the SHA-256 of those files that exist, by name."""
    return {file.name: file_identity(file)["sha256"] for file in files if file.is_file()}


def check_extra(package: str, extra: str) -> None:
    """Raise a `MissingExtraError` with the line that installs, unless the package is there."""
    if importlib.util.find_spec(package) is None:
        raise MissingExtraError(
            f"data_src: {extra} needs the package {package!r}, which is not installed.",
            fix=f"In your clone of ESPnet3: pip install -c constraints.txt -e '.[{extra}]'",
        )


def find_input(path: StrPath, recipe_dir: StrPath | None = None) -> Path:
    """Return the absolute path of a file or folder, relative to the current one or the recipe's.

    Raises:
        ConfigError: It is in neither place; the message has both, and the closest name.
    """
    tried = [Path(path).absolute()]
    if recipe_dir is not None:
        tried.append(Path(recipe_dir, path).absolute())
    found = next((place for place in tried if place.exists()), None)
    if found is not None:
        return found
    siblings = [f.name for place in tried if place.parent.is_dir() for f in place.parent.iterdir()]
    places = " or ".join(dict.fromkeys(map(str, tried)))
    raise ConfigError(
        f"path is {os.fspath(path)!r}, but there is no {places}."
        f"{suggest(Path(path).name, siblings)} Correct it, or make the data: "
        f"{create_command()}"
    )


def find_root(paths: Sequence[str], folder: Path, recipe_dir: StrPath | None) -> Path:
    """Return the folder that relative paths count from: the first one in which some are found.

    That is the current folder, as in Kaldi, else the recipe's, else `folder` or one above it. The
    first, the middle and the last path stand for all.

    Raises:
        ConfigError: None of the three is found in any of these.
    """
    relative = [path for path in paths if not path.startswith("/")]
    if not relative:
        return Path.cwd()
    samples = (relative[0], relative[len(relative) // 2], relative[-1])
    places = [Path.cwd(), *([Path(recipe_dir)] if recipe_dir else []), folder, *folder.parents]
    roots = list(dict.fromkeys(place.absolute() for place in places))[: _MAX_LEVELS + 3]
    for root in roots:
        if any((root / sample).exists() for sample in samples):
            return root
    raise ConfigError(
        f"{folder} refers to {relative[0]!r}, which is in none of {', '.join(map(str, roots))}.",
        fix="Run in the folder that its paths count from, or write absolute paths.",
    )


COMMON: dict[str, tuple[str, ...]] = {
    "utt_id": ("utt_id", "id", "key"),
    "speech": ("audio_filepath", "audio", "wav", "path", "audio_path", "wav_path", "file"),
    "text": ("text", "sentence", "transcript", "transcription"),
    "speaker": ("speaker", "speaker_id", "spk", "client_id"),
    "duration": ("duration",),
}
"""The names that are looked for, in this order; NeMo's among them."""


def find_columns(
    given: Mapping[str, str] | None,
    available: Iterable[str],
    origin: Path,
    common: Mapping[str, tuple[str, ...]] = COMMON,
) -> dict[str, str]:
    """Return the column for each field of a sample, such as `{"speech": "audio_filepath"}`.

    Args:
        given: What the user wrote; may name fields of the user's own.
        available: All columns.
        origin: Where these are, for the errors.
        common: The names to look for.

    Raises:
        ConfigError: `given` is no mapping, one of its columns does not exist, or none holds the
            audio.
    """
    known = list(available)
    if not isinstance(given, Mapping | None):
        raise ConfigError(
            f"columns is {given!r:.80}, but must name the column of each field.",
            fix="Write: columns: {speech: COLUMN, text: COLUMN}",
        )
    columns = {field: _first(names, known) for field, names in common.items()}
    for field, column in (given or {}).items():
        if column not in known:
            raise ConfigError(
                f"columns.{field} is {column!r}, but {origin} has no such column."
                f"{suggest(str(column), known)} It has: {', '.join(known)}."
            )
        columns[field] = column
    if columns["speech"] is None:
        raise ConfigError(
            f"columns.speech is not set, and {origin} has no column called "
            f"{', '.join(COMMON['speech'])}. It has: {', '.join(known)}.",
            fix=f"Write: columns: {{speech: {known[0] if known else 'COLUMN'}}}",
        )
    return {field: column for field, column in columns.items() if column is not None}


def as_fields(id: str, row: Mapping[str, Any], columns: Mapping[str, str]) -> Sample:
    """Return the sample of a row without its audio: named fields first, the others as they are.

    What is None is left out.
    """
    fields: Sample = {"utt_id": id}
    named = {k: row.get(v) for k, v in columns.items() if k not in ("utt_id", "speech")}
    taken = set(columns.values())
    others = {column: value for column, value in row.items() if column not in taken}
    # In this order, a column that was chosen as `text` wins over one that is called so.
    fields.update({k: v for k, v in {**others, **named}.items() if v is not None})
    return fields


def unique_ids(values: Iterable[Any], where: Callable[[int], str]) -> list[str]:
    """Return the values as ids; whole numbers become text.

    Args:
        values: One per item.
        where: Returns where an item was written down, for the errors.

    Raises:
        RecordError: A value cannot be an id, or is there twice.
    """
    first: dict[str, int] = {}
    for i, value in enumerate(values):
        id: Any = str(value) if isinstance(value, int) else value
        try:
            check_id(id)
        except RecordError as error:
            raise RecordError(f"{where(i)}: {error}") from None
        if first.setdefault(id, i) != i:
            raise RecordError(
                f"{where(i)}: The id {id!r} is that of {where(first[id])} as well.",
                fix="Make the ids "
                "unique where the data is made, or write another column: columns: {utt_id: COLUMN}",
            )
    return list(first)


def _first(names: Collection[str], known: Collection[str]) -> str | None:
    return next((name for name in names if name in known), None)


Row = dict[str, Any]

_COMMON = {**COMMON, "offset": ("offset",)}


class ManifestDataset(SpeechSource):
    """Utterances in the order of the lines; paths are relative to the manifest's folder.

    Columns that are not named below are kept in the samples under their own names. Where a line
    has an `offset` in seconds, the audio starts there and lasts for its `duration`; otherwise a
    `duration` is the length only. What has no `duration` is looked up in the file's header.
    Without ids in the manifest, the name of the audio file is one, with a number added to each if
    names repeat.

    Args:
        path: The manifest, relative to the current folder or the recipe's.
        columns: The column of each field, such as `{speech: audio_filepath, text: transcript}`.
            Fields that are not named are looked for under common names; see `COMMON`.
        sample_rate: The rate that all files must have; None for any.
        channel: The channel to take, from 0; `mix` for the mean of all, `only` to refuse files with
            more than one; None keeps all.
        resample: Bring audio of another rate to `sample_rate`, instead of refusing it.
        recipe_dir: The recipe's folder.

    Raises:
        ConfigError: The manifest or a column is not found.
        RecordError: A line is wrong; the message has file and line.
    """

    def __init__(
        self,
        path: StrPath,
        *,
        columns: Mapping[str, str] | None = None,
        sample_rate: int | None = None,
        channel: int | str | None = None,
        resample: bool = False,
        recipe_dir: StrPath | None = None,
    ) -> None:
        super().__init__(sample_rate=sample_rate, channel=channel, resample=resample)
        self._file = find_input(path, recipe_dir)
        self._rows = self._read_rows(self._file)
        # Of all rows, since lines of JSON need not have the same keys.
        names = dict.fromkeys(name for row in self._rows for name in row)
        self._columns = find_columns(columns, names, self._file, _COMMON) if self._rows else {}
        self._check_paths()
        self._ids = self._find_ids()
        self._offsets = self._numbers("offset")
        self._seconds = self._numbers("duration")

    @abstractmethod
    def _read_rows(self, file: Path) -> list[Row]:
        """Return the lines as mappings."""

    @abstractmethod
    def _line_number(self, position: int) -> int:
        """Return the line of an item, from 1; for errors, so it may read the file again."""

    def __len__(self) -> int:
        return len(self._rows)

    def _fields(self, position: int) -> Sample:
        fields = as_fields(self._ids[position], self._rows[position], self._columns)
        fields.pop("offset", None)  # it is in the audio already
        fields.pop("duration", None)  # perhaps an empty text
        length = self._seconds[position]
        return fields if length is None else {**fields, "duration": length}

    def _clip(self, position: int) -> Clip:
        audio = os.path.join(self._file.parent, self._rows[position][self._columns["speech"]])
        start, length = self._offsets[position], self._seconds[position]
        if start is None:
            return Clip(audio)
        return Clip(audio, start, None if length is None else start + length)

    def _known_durations(self) -> list[float | None]:
        return list(self._seconds)

    def _where(self, position: int) -> str:
        return f"{self._file}:{self._line_number(position)}"

    def _origin(self) -> Any:
        return {**content_of(self._file), "columns": self._columns}

    def _check_paths(self) -> None:
        column = self._columns.get("speech", "")
        for i, row in enumerate(self._rows):
            value = row.get(column)
            if not isinstance(value, str) or not value:
                raise RecordError(
                    f"{self._where(i)}: {column} is {value!r:.80}, where the path of an audio "
                    "file is expected.",
                    fix="Write it, or delete the line.",
                )

    def _find_ids(self) -> list[str]:
        column = self._columns.get("utt_id")
        if column is not None:
            return unique_ids((row.get(column) for row in self._rows), self._where)
        column = self._columns.get("speech", "")
        stems = [os.path.splitext(os.path.basename(row[column]))[0] for row in self._rows]
        ids = ["_".join(stem.split()) or "audio" for stem in stems]
        if len(set(ids)) == len(ids):
            return ids
        width = len(str(len(ids)))
        return [f"{id}-{i:0{width}d}" for i, id in enumerate(ids, 1)]

    def _numbers(self, field: str) -> list[float | None]:
        column = self._columns.get(field)
        if column is None:
            return [None] * len(self._rows)
        return [self._number(row.get(column), column, i) for i, row in enumerate(self._rows)]

    def _number(self, value: Any, column: str, position: int) -> float | None:
        if value is None or value == "":
            return None
        try:
            # float(True) is 1.0, so `true` in JSON would be a second.
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            number = math.nan
        if 0 <= number < math.inf:
            return number
        raise RecordError(
            f"{self._where(position)}: {column} is {value!r:.80}, where a number of seconds is "
            "expected.",
            fix="Write one, 0 or more, such as 3.25",
        )
