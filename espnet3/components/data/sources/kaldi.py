"""A data directory of Kaldi or ESPnet2.

Example:
    ```yaml
    data_src: kaldi
    data_src_args: {path: data/test, sample_rate: 16000}
    ```
"""

import os
import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from espnet3.components.data.dataset import Sample
from espnet3.components.data.sources.base import Clip, SpeechSource, content_of
from espnet3.components.data.sources.kaldi_files import (
    check_wav_values,
    line_of,
    read_numbers,
    read_segments,
    read_table,
)
from espnet3.components.data.sources.paths import StrPath, find_input, find_root
from espnet3.errors import ConfigError
from espnet3.io.scp import RecordError


class Dataset(SpeechSource):
    """Utterances in the order of `segments`, else of `wav.scp`.

    Of `text` and `utt2spk` come the fields `text` and `speaker`. Durations are those of `segments`,
    `utt2dur` or `reco2dur`, else those of the files' headers. A `wav.scp` with commands or archives
    is refused: nothing is ever executed.

    Args:
        path: The directory, relative to the current folder or the recipe's.
        sample_rate: The rate that all files must have; None for any.
        channel: The channel to take, from 0; `mix` for the mean of all, `only` to refuse files with
            more than one; None keeps all.
        resample: Bring audio of another rate to `sample_rate`, instead of refusing it.
        strict: Refuse `text` and `utt2spk` that have not exactly the ids of the utterances. If
            False, an utterance without a line has no such field.
        recipe_dir: The recipe's folder.

    Raises:
        ConfigError: The directory, its `wav.scp`, or the folder of relative paths is not found.
        RecordError: A line is wrong, or ids do not agree; the message has file and line.
    """

    def __init__(
        self,
        path: StrPath,
        *,
        sample_rate: int | None = None,
        channel: int | str | None = None,
        resample: bool = False,
        strict: bool = True,
        recipe_dir: StrPath | None = None,
    ) -> None:
        super().__init__(sample_rate=sample_rate, channel=channel, resample=resample)
        self._folder = find_input(path, recipe_dir)
        self._strict = strict
        self._wavs = read_table(_required(self._folder / "wav.scp"))
        check_wav_values(self._wavs, self._folder / "wav.scp")
        self._segments = read_segments(self._folder / "segments", self._wavs)
        self._ids = list(self._wavs if self._segments is None else self._segments)
        self._text = self._optional("text")
        self._speakers = self._optional("utt2spk")
        self._root = find_root(list(self._wavs.values()), self._folder, recipe_dir)

    def __len__(self) -> int:
        return len(self._ids)

    def _optional(self, name: str) -> dict[str, str]:
        file = self._folder / name
        if not file.exists():
            return {}
        table = read_table(file)
        if self._strict:
            _check_same_ids(file, table, self._ids, self._id_file)
        return table

    @property
    def _id_file(self) -> str:
        return "wav.scp" if self._segments is None else "segments"

    def _fields(self, position: int) -> Sample:
        id = self._ids[position]
        fields = {"utt_id": id}
        for name, table in (("text", self._text), ("speaker", self._speakers)):
            if id in table:
                fields[name] = table[id]
        return fields

    def _clip(self, position: int) -> Clip:
        id = self._ids[position]
        if self._segments is None:
            return Clip(os.path.join(self._root, self._wavs[id]))
        recording, start, end = self._segments[id]
        return Clip(os.path.join(self._root, self._wavs[recording]), start, end)

    def _known_durations(self) -> list[float | None]:
        recordings = read_numbers(self._folder / "reco2dur")
        if self._segments is not None:
            parts = self._segments.values()
            return [_part_seconds(start, end, recordings.get(r)) for r, start, end in parts]
        utterances = read_numbers(self._folder / "utt2dur") or recordings
        return [utterances.get(id) for id in self._ids]

    def _where(self, position: int) -> str:
        return line_of(self._folder / self._id_file, self._ids[position])

    def _origin(self) -> Any:
        names = ("wav.scp", "segments", "text", "utt2spk")
        files = content_of(*(self._folder / name for name in names))
        return {**files, "strict": self._strict}


def _required(file: Path) -> Path:
    if file.is_file():
        return file
    raise ConfigError(
        f"path is {str(file.parent)!r}, which has no {file.name}. Write the folder of a Kaldi data "
        "directory, such as path: data/test"
    )


def _part_seconds(start: float, end: float | None, whole: float | None) -> float | None:
    end = whole if end is None else end
    return None if end is None else max(0.0, end - start)


def _check_same_ids(
    file: Path, table: Mapping[str, str], ids: Collection[str], id_file: str
) -> None:
    expected = set(ids)
    if table.keys() == expected:
        return
    folder = shlex.quote(str(file.parent))
    missing = [id for id in ids if id not in table]
    extra = [id for id in table if id not in expected]
    raise RecordError(
        f"{file} has no line for {_some(missing)} of {id_file}, and lines for {_some(extra)} that "
        f"{id_file} does not have. Make them agree: utils/fix_data_dir.sh {folder}; or take "
        "what is there: strict: false"
    )


def _some(ids: list[str], limit: int = 3) -> str:
    if not ids:
        return "0 ids"
    names = ", ".join(ids[:limit]) + (", ..." if len(ids) > limit else "")
    return f"{len(ids)} id{'s' if len(ids) > 1 else ''} ({names})"
