"""Data as ESPnet2's tasks name it: files with a line for each id, their names and types.

Example:
    ```yaml
    data_src: espnet3.systems.espnet2.data_files
    data_src_args:
      files:
        - [dump/raw/train/wav.scp, speech_mix, sound]
        - [dump/raw/train/spk1.scp, speech_ref1, sound]
    ```
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from espnet3.components.data.audio import AudioForm, in_threads, read_duration
from espnet3.components.data.dataset import Sample, as_position
from espnet3.components.data.errors import AudioError
from espnet3.components.data.sources.base import content_of, find_input, find_root
from espnet3.components.data.sources.kaldi import check_wav_values, line_of, read_table
from espnet3.components.data.sources.text import CHARACTERS_PER_SECOND
from espnet3.config.fingerprint import digest
from espnet3.errors import ConfigError, RecordError, suggest
from espnet3.io.artifacts import read_artifact
from espnet3.io.atomic import StrPath

_SOUND, _TEXT, _ARRAY, _LABEL = "sound", "text", "npy", "label"
_NUMBERS: Mapping[str, Callable[[str], Any]] = {
    "text_int": lambda line: np.array(line.split(), dtype=np.int64),
    "text_float": lambda line: np.array(line.split(), dtype=np.float32),
    "csv_int": lambda line: np.array(line.split(","), dtype=np.int64),
    "csv_float": lambda line: np.array(line.split(","), dtype=np.float32),
}
TYPES = (_SOUND, _TEXT, _ARRAY, *_NUMBERS, _LABEL)
"""Types of ESPnet2 that are read here; `label` is ours."""


@dataclass(frozen=True)
class _Column:
    """One file: a field of all samples."""

    file: Path
    name: str
    type: str
    table: dict[str, str]
    root: str = ""
    """Where relative paths in the file count from."""

    def path(self, id: str) -> str:
        return os.path.join(self.root, self.table[id])


class Dataset:
    """Samples whose fields are those of several files, in the order of the first.

    Args:
        files: For each `[path, name, type]`, as in ESPnet2's `--train_data_path_and_name_and_type`.
            Types are `sound` (of audio files), `text`, `npy` (of files), `text_int`, `text_float`,
            `csv_int`, `csv_float`, and `label`: of a file such as `utt2spk`, the number of the
            speaker among all that are in it, in the order of their names, as ESPnet2 counts them.
        sample_rate: The rate that all audio must have; None for any.
        channel: The channel to take, from 0; `mix` for the mean of all, `only` to refuse files with
            more than one; None keeps all.
        resample: Bring audio of another rate to `sample_rate`, instead of refusing it.
        recipe_dir: The recipe's folder.

    Raises:
        ConfigError: An entry is wrong, or a file is not found.
        RecordError: Files have different ids, or a line is wrong.
    """

    def __init__(
        self,
        files: Sequence[Sequence[str]],
        *,
        sample_rate: int | None = None,
        channel: int | str | None = None,
        resample: bool = False,
        recipe_dir: StrPath | None = None,
    ) -> None:
        self._form = AudioForm(sample_rate, channel, resample)
        self._columns = [_open(_checked(entry), recipe_dir) for entry in files]
        if not self._columns:
            raise ConfigError(
                key="files", value=[], problem="but names no file", fix=f"Write: {_EXAMPLE}"
            )
        _check_names(self._columns)
        first = self._columns[0]
        self._ids = list(first.table)
        for column in self._columns[1:]:
            _check_ids(column, first)

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: int) -> Sample:
        id = self._ids[as_position(index, len(self))]
        sample = self._texts(id)
        for column in self._columns:
            if column.type == _SOUND:
                try:
                    audio = self._form.read(column.path(id))
                except AudioError as error:
                    raise AudioError(f"{line_of(column.file, id)}: {error}") from error
                sample[column.name] = audio.samples
                sample["sample_rate"] = audio.sample_rate
            elif column.type == _ARRAY:
                sample[column.name] = read_artifact(column.path(id))
        return sample

    def fields(self, index: int) -> Sample:
        """Return the sample without its audio and arrays, which are not opened."""
        return self._texts(self._ids[as_position(index, len(self))])

    def utt_id(self, index: int) -> str:
        """Return the id of a sample."""
        return self._ids[as_position(index, len(self))]

    def durations(self) -> list[float]:
        """Return the seconds of the first file with sounds; of texts, those to say them.

        Raises:
            AudioError: The header of a file cannot be read.
        """
        sound = next((one for one in self._columns if one.type == _SOUND), None)
        if sound is not None:
            return in_threads(read_duration, [sound.path(id) for id in self._ids])
        lines = self._columns[0].table
        return [len(lines[id]) / CHARACTERS_PER_SECOND for id in self._ids]

    def fingerprint(self) -> str:
        """Return a digest of the files, but for the content of the audio."""
        files = [[one.name, one.type, content_of(one.file)] for one in self._columns]
        return digest({**self._form.settings(), "files": files})

    def _texts(self, id: str) -> Sample:
        sample: Sample = {"utt_id": id}
        for column in self._columns:
            if column.type == _TEXT:
                sample[column.name] = column.table[id]
            elif column.type in _NUMBERS:
                sample[column.name] = _numbers(column, id)
        return sample


_EXAMPLE = "files: [[dump/raw/train/wav.scp, speech, sound], [dump/raw/train/text, text, text]]"


def _checked(entry: Any) -> tuple[str, str, str]:
    parts = entry.split(",") if isinstance(entry, str) else list(entry)
    if len(parts) != 3 or not all(isinstance(part, str) and part for part in parts):
        raise ConfigError(
            key="files",
            value=entry,
            problem="but an entry is a path, a name and a type",
            fix=f"Write: {_EXAMPLE}",
        )
    path, name, type = parts
    if type not in TYPES:
        raise ConfigError(
            key="files",
            value=entry,
            problem=f"whose type is not read here; known are {', '.join(TYPES)}",
            fix=f"{suggest(type, TYPES)} Or write it as npy files: [PATH, {name}, npy]".strip(),
        )
    return path, name, type


def _open(entry: tuple[str, str, str], recipe_dir: StrPath | None) -> _Column:
    path, name, type = entry
    file = find_input(path, recipe_dir)
    table = read_table(file)
    if type == _LABEL:
        numbers = {label: str(number) for number, label in enumerate(sorted(set(table.values())))}
        return _Column(file, name, "text_int", {id: numbers[one] for id, one in table.items()})
    if type not in (_SOUND, _ARRAY):
        return _Column(file, name, type, table)
    check_wav_values(table, file)
    return _Column(
        file, name, type, table, str(find_root(list(table.values()), file.parent, recipe_dir))
    )


def _check_names(columns: Sequence[_Column]) -> None:
    names = [one.name for one in columns]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(
            key="files",
            value=names,
            problem=f"but {twice} is there twice",
            fix="Give each file a name of its own.",
        )


def _check_ids(column: _Column, first: _Column) -> None:
    if column.table.keys() == first.table.keys():
        return
    id = next(iter(column.table.keys() ^ first.table.keys()))
    has, lacks = (column, first) if id in column.table else (first, column)
    raise RecordError(
        f"{id} is in {has.file}, but not in {lacks.file}.",
        fix="Write the same ids into all files.",
    )


def _numbers(column: _Column, id: str) -> Any:
    try:
        return _NUMBERS[column.type](column.table[id])
    except ValueError as error:
        raise RecordError(
            f"{line_of(column.file, id)} is {column.table[id]!r:.80}, which is no {column.type}.",
            fix="Write numbers, or name another type.",
        ) from error
