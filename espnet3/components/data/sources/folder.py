"""A folder of audio files, each with a text file of the same name beside it.

Example:
    ```yaml
    data_src: folder
    data_src_args: {path: recordings/train, sample_rate: 16000}
    ```
"""

import os
from collections import Counter
from pathlib import Path
from typing import Any

from espnet3.components.data.audio import BY_FFMPEG, BY_SNDFILE
from espnet3.components.data.dataset import Sample
from espnet3.components.data.sources.base import Clip, SpeechSource, find_input
from espnet3.errors import ConfigError, RecordError
from espnet3.io.atomic import StrPath
from espnet3.text import first_few


class Dataset(SpeechSource):
    """Audio files in the order of their names, folders below included.

    `a.txt` is the text of `a.wav`. The id of an utterance is the path of its file in the folder,
    without the ending, and with `-` for `/`.

    Args:
        path: The folder, relative to the current one or the recipe's.
        speaker_is_folder: The first folder on the way to a file names its speaker, as in
            `path/anna/monday/1.wav`.
        sample_rate: The rate that all files must have; None for any.
        channel: The channel to take, from 0; `mix` for the mean of all, `only` to refuse files with
            more than one; None keeps all.
        resample: Bring audio of another rate to `sample_rate`, instead of refusing it.
        recipe_dir: The recipe's folder.

    Raises:
        ConfigError: The folder is not found, or has no audio in it.
        RecordError: A file has no text beside it, or a text no audio; the message names the first.
    """

    def __init__(
        self,
        path: StrPath,
        *,
        speaker_is_folder: bool = False,
        sample_rate: int | None = None,
        channel: int | str | None = None,
        resample: bool = False,
        recipe_dir: StrPath | None = None,
    ) -> None:
        super().__init__(sample_rate=sample_rate, channel=channel, resample=resample)
        self._folder = find_input(path, recipe_dir)
        self._speaker_is_folder = speaker_is_folder
        self._files = find_pairs(self._folder)
        self._texts = [_read_text(self._folder / f.with_suffix(".txt")) for f in self._files]
        self._ids = _ids_of(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def _fields(self, position: int) -> Sample:
        fields: Sample = {"utt_id": self._ids[position], "text": self._texts[position]}
        parts = self._files[position].parts
        if self._speaker_is_folder and len(parts) > 1:
            fields["speaker"] = parts[0]
        return fields

    def _clip(self, position: int) -> Clip:
        return Clip(os.fspath(self._folder / self._files[position]))

    def _known_durations(self) -> list[float | None]:
        return [None] * len(self)

    def _where(self, position: int) -> str:
        return str(self._folder / self._files[position])

    def _origin(self) -> Any:
        names = [file.as_posix() for file in self._files]
        return {"texts": dict(zip(names, self._texts, strict=True)), "by": self._speaker_is_folder}


def find_pairs(folder: Path) -> list[Path]:
    """Return the audio files below a folder that have a text beside them, relative to it.

    Raises:
        ConfigError: There is no audio at all.
        RecordError: Audio without a text, or a text without audio.
    """
    found = [Path(root, name) for root, _, names in os.walk(folder) for name in names]
    paths = sorted(path.relative_to(folder) for path in found if not path.name.startswith("."))
    audio = [path for path in paths if path.suffix.lower() in BY_SNDFILE | BY_FFMPEG]
    if not audio:
        raise ConfigError(
            f"path is {str(folder)!r}, which holds no audio file.",
            fix="Name a folder with audio files, and a text file beside each: a.wav and a.txt",
        )
    texts = {path.with_suffix("") for path in paths if path.suffix == ".txt"}
    stems = Counter(path.with_suffix("") for path in audio)
    _refuse(folder, [p for p in audio if p.with_suffix("") not in texts], "no text beside it")
    _refuse(folder, [p for p in audio if stems[p.with_suffix("")] > 1], "a twin of another format")
    alone = sorted(text.with_suffix(".txt") for text in texts - stems.keys())
    # A readme beside the recordings is no transcript that lost its audio.
    if len(alone) > 1 or any(len(path.parts) > 1 for path in alone):
        _refuse(folder, alone, "no audio beside it")
    return audio


def _refuse(folder: Path, files: list[Path], problem: str) -> None:
    if files:
        raise RecordError(
            f"{folder / files[0]} has {problem}; so have {len(files)} files in all: "
            f"{first_few(files, 3)}.",
            fix="Add what is missing, or move these files elsewhere.",
        )


def _read_text(file: Path) -> str:
    try:
        return " ".join(file.read_text(encoding="utf-8-sig").split())
    except UnicodeDecodeError as error:
        raise RecordError(
            f"{file} is not UTF-8 ({error}).",
            fix="Convert it, such as from Latin-1: iconv -f latin1 -t utf-8 OLD > NEW",
        ) from error


def _ids_of(files: list[Path]) -> list[str]:
    ids = ["_".join("-".join(file.with_suffix("").parts).split()) for file in files]
    counts = Counter(ids)
    return [id if counts[id] == 1 else f"{id}-{i}" for i, id in enumerate(ids, 1)]
