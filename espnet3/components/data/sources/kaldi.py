"""A data directory of Kaldi or ESPnet2.

Example:
    ```yaml
    data_src: kaldi
    data_src_args: {path: data/test, sample_rate: 16000}
    ```
"""

import math
import os
import re
import shlex
from codecs import BOM_UTF8
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from espnet3.components.data.dataset import Sample
from espnet3.components.data.sources.base import (
    Clip,
    SpeechSource,
    content_of,
    find_input,
    find_root,
)
from espnet3.errors import ConfigError, RecordError
from espnet3.io.atomic import StrPath
from espnet3.io.scp import check_id, read_scp

Segment = tuple[str, float, float | None]
"""Recording, start and end in seconds; None for the end of the recording."""
_TO_THE_END = re.compile(r"-1(\.0*)?")
_ARCHIVE = re.compile(r":\d+(\[[\d:,]*\])?$")


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
        # Without segments each recording is an utterance of the same id.
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
        f"path is {str(file.parent)!r}, which has no {file.name}.",
        fix="Write the folder of a Kaldi data directory, such as path: data/test",
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
        f"{id_file} does not have.",
        fix=f"Make them agree: utils/fix_data_dir.sh {folder}; or take "
        "what is there: strict: false",
    )


def _some(ids: list[str], limit: int = 3) -> str:
    if not ids:
        return "0 ids"
    names = ", ".join(ids[:limit]) + (", ..." if len(ids) > limit else "")
    return f"{len(ids)} id{'s' if len(ids) > 1 else ''} ({names})"


def read_table(file: Path) -> dict[str, str]:
    """Return the values by id, in the order of the file; a line may have an id only.

    Raises:
        RecordError: A line has no id, an impossible one or one that was there before, or is not
            UTF-8.
    """
    # Four times as fast as `read_scp`, which is left to find the line and the words for it. ASCII
    # white space only, as in Kaldi; a backslash is one.
    lines = file.read_bytes().removeprefix(BOM_UTF8).removesuffix(b"\n").split(b"\n")
    try:
        pairs = [(id.decode(), rest) for id, rest in map(_split, lines)]
        table = {id: rest.decode() for id, rest in pairs}
        for id in table:
            check_id(id)
    except ValueError:
        table, pairs = {}, [("", b"")]
    if len(table) < len(pairs) and lines != [b""]:
        for _ in read_scp(file):
            pass
        raise RecordError(f"{file} is no table of `<id> <value>` lines.", fix="Write it again.")
    return table


def read_segments(file: Path, recordings: Mapping[str, str]) -> dict[str, Segment] | None:
    """Return the parts by utterance, or None if there is no such file.

    Raises:
        RecordError: A line is not `<id> <recording> <start> <end>`, or names no recording of
            `wav.scp`.
    """
    if not file.exists():
        return None
    return {id: _segment(id, rest, file, recordings) for id, rest in read_table(file).items()}


def read_numbers(file: Path) -> dict[str, float]:
    """Return the seconds by id; empty if there is no such file.

    Raises:
        RecordError: A value is not a finite number, 0 or more.
    """
    if not file.exists():
        return {}
    return {id: _seconds(text, id, file) for id, text in read_table(file).items()}


def check_wav_values(wavs: Mapping[str, str], file: Path) -> None:
    """Raise a `RecordError` for the first value that is not the path of a file."""
    for id, value in wavs.items():
        if not value:
            raise RecordError(
                f"{line_of(file, id)} has no path.", fix=f"Write: {id} /path/to/{id}.wav"
            )
        if value.endswith("|"):
            raise RecordError(
                f"{line_of(file, id)} is a command, {value!r:.80}, and commands are never executed "
                "here.",
                fix=f"Run them once, then write path: {file.parent}_wav. "
                f"{_command_to_run_pipes(file)}",
            )
        # Without a look at the file: a name may end like that, but hardly ever does.
        if _ARCHIVE.search(value) or value == "-":
            raise RecordError(
                f"{line_of(file, id)} is a part of an archive, {value!r:.80}, and not an audio "
                "file. In the ESPnet2 recipe, write files: scripts/audio/format_wav_scp.sh "
                f"--audio-format wav {shlex.quote(str(file))} {shlex.quote(f'{file.parent}_wav')}"
            )


def line_of(file: Path, id: str) -> str:
    """Return `<file>:<line> (<id>)`; for errors, so it reads the file again."""
    lines = file.read_bytes().split(b"\n")
    number = next((n for n, line in enumerate(lines, 1) if _split(line)[0] == id.encode()), 0)
    return f"{file}:{number} ({id})"


def _split(line: bytes) -> tuple[bytes, bytes]:
    match line.split(None, 1):
        case [id, rest]:
            return id, rest.rstrip()
        case [id]:
            return id, b""
    return b"", b""


def _segment(id: str, rest: str, file: Path, recordings: Mapping[str, str]) -> Segment:
    parts = rest.split()
    if len(parts) < 3:
        raise RecordError(
            f"{line_of(file, id)} is incomplete.",
            fix=f"Write: {id} RECORDING START END, times in seconds",
        )
    if len(parts) > 3:
        raise RecordError(
            f"{line_of(file, id)} has {parts[3]!r} after its end, a channel in Kaldi, which is not "
            "read here.",
            fix="Delete it, and choose the channel of all utterances: channel: 0",
        )
    recording, start = parts[0], _seconds(parts[1], id, file)
    if recording not in recordings:
        raise RecordError(
            f"{line_of(file, id)} names the recording {recording!r}, which wav.scp does not have.",
            fix=f"Make them agree: utils/fix_data_dir.sh {shlex.quote(str(file.parent))}",
        )
    end = None if _TO_THE_END.fullmatch(parts[2]) else _seconds(parts[2], id, file)
    if end is not None and end <= start:
        raise RecordError(
            f"{line_of(file, id)} ends at {end:g} s, not after its start at {start:g} s. Correct "
            "the line, or write -1 for the end of the recording."
        )
    return recording, start, end


def _seconds(text: str, id: str, file: Path) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if 0 <= seconds < math.inf:
        return seconds
    raise RecordError(
        f"{line_of(file, id)} has {text!r} where a number of seconds is expected.",
        fix="Write one, 0 or more, such as 3.25",
    )


def _command_to_run_pipes(file: Path) -> str:
    old, new = shlex.quote(str(file.parent)), shlex.quote(f"{file.parent}_wav")
    return (
        f"cp -r {old} {new} && while read -r id command; do "
        f'eval "${{command%|}}" < /dev/null > {new}/"$id".wav && '
        f'echo "$id" {new}/"$id".wav; done < {old}/wav.scp > {new}/wav.scp'
    )
