"""Texts without audio, such as for a language model.

Example:
    ```yaml
    data_src: text
    data_src_args: {path: [data/train/manifest.jsonl, corpus.txt]}
    ```
"""

import os
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from espnet3.components.data.dataset import Sample, as_position
from espnet3.components.data.sources.base import COMMON, SpeechSource, content_of, find_input
from espnet3.components.data.sources.kaldi import read_table
from espnet3.config.fingerprint import digest
from espnet3.errors import ConfigError, RecordError, suggest
from espnet3.io.atomic import StrPath
from espnet3.io.tables import read_jsonl

CHARACTERS_PER_SECOND = 15
"""About as fast as people read aloud."""

SPEECH_SOURCES = ("kaldi", "jsonl", "tsv", "huggingface", "lhotse", "folder")
"""Sources that read texts without opening audio."""

_Texts = Iterator[tuple[str, str]]


class Dataset:
    """Texts in the order of the files; an empty line is none.

    How a file is read depends on its name:

    - `NAME.jsonl`: a manifest; the column `text`, or one of the other common names;
    - `text`, or a folder with this file: that of a Kaldi data directory, an id before each text;
    - any other: one text per line, or with `has_ids` an id before it.

    With `of`, the texts are those of another source, whose audio is not opened.

    Samples have `utt_id` and `text`. A duration is how long it would take to say the text, at 15
    characters per second, so that batches of similar lengths can be made as for speech, with
    `batch_seconds` or `max_padding`.

    Args:
        path: A file or folder, or a list of them, relative to the current folder or the recipe's.
        column: Of a manifest: the column with the text.
        has_ids: Each line begins with an id.
        of: The `data_src` that the texts belong to, such as `tsv` or `lhotse`.
        recipe_dir: The recipe's folder.

    Raises:
        ConfigError: A file or column is not found, or there is no text at all.
        RecordError: A line is wrong; the message has file and line.
    """

    def __init__(
        self,
        path: StrPath | Sequence[StrPath],
        *,
        column: str | None = None,
        has_ids: bool = False,
        of: str | None = None,
        recipe_dir: StrPath | None = None,
    ) -> None:
        paths = [path] if isinstance(path, str | os.PathLike) else list(path)
        self._settings: dict[str, Any] = {"column": column, "has_ids": has_ids}
        self._ids: list[str] = []
        self._texts: list[str] = []
        if of is not None:
            self._files: list[Path] = []
            sources = [_open_source(of, entry, column, recipe_dir) for entry in paths]
            self._settings |= {"of": [source.fingerprint() for source in sources]}
            for source in sources:
                self._take(_texts_of(source))
            return
        self._files = [_file_in(find_input(entry, recipe_dir)) for entry in paths]
        for file in self._files:
            self._take(_reader_of(file, column, has_ids)(file))

    def _take(self, texts: _Texts) -> None:
        for id, text in texts:
            if text.strip():
                self._ids.append(id)
                self._texts.append(text)

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, index: int) -> Sample:
        position = as_position(index, len(self))
        return {"utt_id": self._ids[position], "text": self._texts[position]}

    def fields(self, index: int) -> Sample:
        """Return the sample, which has no audio to leave out."""
        return self[index]

    def durations(self) -> list[float]:
        """Return the seconds that it would take to say each text."""
        return [len(text) / CHARACTERS_PER_SECOND for text in self._texts]

    def fingerprint(self) -> str:
        """Return a digest of the files."""
        return digest({**self._settings, "files": [content_of(file) for file in self._files]})


def _open_source(
    of: str, path: StrPath, column: str | None, recipe_dir: StrPath | None
) -> SpeechSource:
    if of not in SPEECH_SOURCES:
        raise ConfigError(
            f"of is {of!r}, which is no source with audio.{suggest(of, SPEECH_SOURCES)} Known: "
            f"{', '.join(SPEECH_SOURCES)}.",
            fix="Write: of: kaldi",
        )
    module = import_module(f"espnet3.components.data.sources.{of}")
    columns: dict[str, Any] = {} if column is None else {"columns": {"text": column}}
    source: SpeechSource = module.Dataset(path, recipe_dir=recipe_dir, **columns)
    return source


def _texts_of(source: SpeechSource) -> _Texts:
    for i in range(len(source)):
        fields = source.fields(i)
        yield str(fields["utt_id"]), str(fields.get("text", ""))


def _file_in(path: Path) -> Path:
    return path / "text" if path.is_dir() else path


def _reader_of(file: Path, column: str | None, has_ids: bool) -> Callable[[Path], _Texts]:
    if file.suffix == ".jsonl":
        return lambda path: _read_manifest(path, column)
    # Of a folder, the file is called so.
    return _read_kaldi if has_ids or file.name == "text" else _read_lines


def _read_kaldi(file: Path) -> _Texts:
    if not file.is_file():
        raise ConfigError(f"path is {str(file.parent)!r}, a folder without a file {file.name!r}.")
    yield from read_table(file).items()


def _read_lines(file: Path) -> _Texts:
    # Bytes are split, since str.splitlines takes more than newlines for an end of line.
    for number, line in enumerate(file.read_bytes().split(b"\n"), 1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        except UnicodeDecodeError as error:
            raise RecordError(
                f"{file}:{number}: The line is not UTF-8 ({error}).",
                fix="Convert the file, such as from Latin-1: iconv -f latin1 -t utf-8 OLD > NEW",
            ) from error
        yield f"{file.stem}-{number}", text


def _read_manifest(file: Path, column: str | None) -> _Texts:
    names = COMMON["text"] if column is None else (column,)
    for position, row in enumerate(read_jsonl(file)):
        found = next((name for name in names if name in row), None)
        if found is None or not isinstance(row[found], str):
            raise _no_text(file, position, row, names)
        id = next((row[name] for name in COMMON["utt_id"] if name in row), None)
        yield str(id) if id is not None else f"{file.stem}-{position + 1}", row[found]


def _no_text(file: Path, position: int, row: Any, names: Sequence[str]) -> ConfigError:
    has = list(row) if isinstance(row, dict) else []
    return ConfigError(
        f"{file}: item {position} has no text called {' or '.join(names)}."
        f"{suggest(names[0], has)} It has: {', '.join(has) or 'none'}.",
        fix="Write: column: COLUMN",
    )
