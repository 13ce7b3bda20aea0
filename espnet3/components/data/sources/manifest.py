"""A manifest: a table with one utterance per line, as JSON Lines or tab-separated."""

import math
import os
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from espnet3.components.data.dataset import Sample
from espnet3.components.data.sources.base import (
    COMMON,
    Clip,
    SpeechSource,
    as_fields,
    content_of,
    find_columns,
    find_input,
    unique_ids,
)
from espnet3.errors import RecordError
from espnet3.io.atomic import StrPath

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
            Fields that are not named are looked for under common names; see `columns.COMMON`.
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
