"""A dataset that `datasets` saved to disk; nothing is downloaded.

Example:
    ```yaml
    data_src: huggingface
    data_src_args: {path: data/fleurs, split: test, columns: {text: transcription}}
    ```
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from espnet3.components.data.dataset import Sample
from espnet3.components.data.errors import AudioError
from espnet3.components.data.sources.base import (
    Clip,
    SpeechSource,
    as_fields,
    check_extra,
    find_columns,
    find_input,
    unique_ids,
)
from espnet3.errors import ConfigError, suggest
from espnet3.io.atomic import StrPath


class Dataset(SpeechSource):
    """Rows in their order; other columns are kept in the samples under their own names.

    The audio column holds files, which soundfile reads, or their paths. Durations come from a
    `duration` column, else from the headers of the files. Without a column of ids, the row number
    is the id.

    Args:
        path: The folder that `save_to_disk` wrote, relative to the current one or the recipe's.
        split: Which one, if the folder has several.
        columns: The column of each field, such as `{speech: audio, text: transcription}`. Fields
            that are not named are looked for under common names; see `COMMON` in `base`.
        sample_rate: The rate that all audio must have; None for any.
        channel: The channel to take, from 0; `mix` for the mean of all, `only` to refuse files with
            more than one; None keeps all.
        resample: Bring audio of another rate to `sample_rate`, instead of refusing it.
        recipe_dir: The recipe's folder.

    Raises:
        MissingExtraError: `datasets` is not installed.
        ConfigError: Folder, split or column is not found.
    """

    def __init__(
        self,
        path: StrPath,
        *,
        split: str | None = None,
        columns: Mapping[str, str] | None = None,
        sample_rate: int | None = None,
        channel: int | str | None = None,
        resample: bool = False,
        recipe_dir: StrPath | None = None,
    ) -> None:
        super().__init__(sample_rate=sample_rate, channel=channel, resample=resample)
        check_extra("datasets", "huggingface")
        self._folder = find_input(path, recipe_dir)
        table = _pick_split(_load(self._folder), split, self._folder)
        # Before the changes below, each of which makes another fingerprint.
        self._table_fingerprint = str(table._fingerprint)
        self._columns = find_columns(columns, table.column_names, self._folder)
        speech = self._columns["speech"]
        # A saved format, such as torch, would turn the cells into tensors.
        table = _as_files(table.with_format(None), speech)
        # Apart from the others, so that reading a text does not load the audio.
        self._audio_column = table.select_columns([speech])
        # A table without columns has no rows.
        has_others = len(table.column_names) > 1
        self._others: Any = table.remove_columns([speech]) if has_others else None
        self._ids = self._find_ids()

    def __len__(self) -> int:
        return len(self._audio_column)

    def _find_ids(self) -> list[str]:
        if "utt_id" in self._columns:
            return unique_ids(self._column("utt_id"), self._where)
        width = len(str(len(self)))
        return [f"{i:0{width}d}" for i in range(len(self))]

    def _column(self, field: str) -> list[Any]:
        # Taken whole: one by one is a hundred times slower.
        return list(self._others[self._columns[field]][:])

    def _fields(self, position: int) -> Sample:
        row = {} if self._others is None else self._others[position]
        return as_fields(self._ids[position], row, self._columns)

    def _clip(self, position: int) -> Clip:
        audio = self._audio_column[position][self._columns["speech"]]
        if isinstance(audio, str):
            audio = {"path": audio, "bytes": None}
        if audio and audio.get("bytes") is not None:
            return Clip(audio["bytes"])
        if audio and audio.get("path"):
            return Clip(os.path.join(self._folder, audio["path"]))
        raise AudioError("There is no audio. Leave the row out where the dataset is made.")

    def _known_durations(self) -> list[float | None]:
        return self._column("duration") if "duration" in self._columns else [None] * len(self)

    def _lengths(self, positions: Sequence[int]) -> list[float | None]:
        # The content comes out of one big file, where threads are no gain.
        return [self._try_length(position) for position in positions]

    def _where(self, position: int) -> str:
        return f"{self._folder}, row {position}"

    def _origin(self) -> Any:
        return {"table": self._table_fingerprint, "columns": self._columns}


def _load(folder: Any) -> Any:
    import datasets

    try:
        return datasets.load_from_disk(folder)
    except FileNotFoundError as error:
        raise ConfigError(
            f"path is {str(folder)!r}, which is no folder that datasets saved ({error}). Save it "
            f"first: datasets.load_dataset(NAME).save_to_disk({str(folder)!r})"
        ) from error


def _pick_split(loaded: Any, split: str | None, folder: Any) -> Any:
    if not isinstance(loaded, dict):
        if split is None or str(loaded.split) == split:
            return loaded
        raise ConfigError(
            f"split is {split!r}, but {folder} holds one dataset, of split {loaded.split}.",
            fix="Remove split.",
        )
    if split in loaded:
        return loaded[split]
    what = "is not set" if split is None else f"is {split!r}"
    hint = suggest(split or "", loaded) or f" Write: split: {next(iter(loaded))}"
    raise ConfigError(f"split {what}, but {folder} has the splits {', '.join(loaded)}.{hint}")


def _as_files(table: Any, column: str) -> Any:
    """Return the table with the audio as files, since decoding by `datasets` needs torchcodec."""
    import datasets

    feature = table.features[column]
    if isinstance(feature, datasets.Audio):
        return table.cast_column(column, datasets.Audio(decode=False))
    if getattr(feature, "dtype", None) in ("string", "large_string"):
        return table
    has = [name for name, kind in table.features.items() if isinstance(kind, datasets.Audio)]
    raise ConfigError(
        f"columns.speech is {column!r}, which is {feature}, neither audio nor the path of a file.",
        fix=f"Write: columns: {{speech: {has[0] if has else 'COLUMN'}}}",
    )
