"""Parquet shards, read by position.

Example:
    ```yaml
    data_src: parquet
    data_src_args:
      path: data/train-{00000..00099}.parquet
      columns: {text: transcription}
    ```
"""

import io
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from espnet3.components.data.dataset import Sample
from espnet3.components.data.errors import AudioError, DataError
from espnet3.components.data.sources.base import check_extra
from espnet3.components.data.sources.column_file import Array, ColumnFile
from espnet3.components.data.sources.columns import as_fields
from espnet3.components.data.sources.open_shards import Recent
from espnet3.components.data.sources.parquet_index import (
    ParquetIndexer,
    audio_of,
    open_parquet,
    read_group,
)
from espnet3.components.data.sources.paths import StrPath
from espnet3.components.data.sources.shard_paths import Paths, find_shards
from espnet3.components.data.sources.shard_source import OpenShard, ShardSource

logger = logging.getLogger(__name__)

_LARGE_GROUP_BYTES = 64 * 2**20


class Dataset(ShardSource):
    """Rows in the order of the shards; other columns are kept under their own names.

    The audio column holds files, which soundfile reads, or their paths, as `datasets` writes them.
    Columns `NAME.npy` of bytes and `NAME.json` of text are decoded as the field `NAME`. Durations
    come from a `duration` column, else from the headers of the files, once: each shard is indexed
    beside it, or in the user's cache where the folder cannot be written. Without a column of ids,
    the name of the shard and the row number are the id.

    A row cannot be read alone: its row group is read, and the last ones are kept. Row groups of
    about a megabyte, as `write_parquet_shards` makes them, suit any order.

    Args:
        path: A shard, a folder, a pattern such as `train-{000..009}.parquet`, or a list of these,
            relative to the current folder or the recipe's.
        columns: The column of each field, such as `{speech: audio, text: transcription}`. Fields
            that are not named are looked for under common names; see `columns.COMMON`.
        sample_rate: The rate that all audio must have; None for any.
        channel: The channel to take, from 0; `mix` for the mean of all, `only` to refuse files with
            more than one; None keeps all.
        resample: Bring audio of another rate to `sample_rate`, instead of refusing it.
        cache_mb: Megabytes of row groups that each process keeps.
        index_dir: The folder for the indexes.
        recipe_dir: The recipe's folder.

    Raises:
        MissingExtraError: pyarrow is not installed.
        ConfigError: A shard or column is not found.
        DataError: A shard is damaged, or has other columns than the first one.
        RecordError: An id is wrong.
    """

    def __init__(
        self,
        path: Paths,
        *,
        columns: Mapping[str, str] | None = None,
        sample_rate: int | None = None,
        channel: int | str | None = None,
        resample: bool = False,
        cache_mb: int = 64,
        index_dir: StrPath | None = None,
        recipe_dir: StrPath | None = None,
    ) -> None:
        check_extra("pyarrow", "parquet")
        shards = find_shards(path, ".parquet", recipe_dir)
        files = ParquetIndexer(columns).kind(index_dir).files_of(shards)
        super().__init__(shards, files, sample_rate=sample_rate, channel=channel, resample=resample)
        self._groups: Recent[Any] = Recent(cache_mb * 2**20, cost=_n_bytes)
        self._columns: dict[str, str] = ColumnFile(files[0]).facts["columns"]
        self._settings["columns"] = self._columns
        self._largest_group = 0
        self._survey()
        if self._largest_group > _LARGE_GROUP_BYTES:
            logger.warning(
                "The row groups of %s have up to %d MB, which are read for each row that is asked "
                "for out of order. Write them anew: write_parquet_shards(dataset, FOLDER)",
                shards[0].parent, self._largest_group >> 20,
            )  # fmt: skip

    def _seconds_of(self, index: ColumnFile, shard: Path) -> Array:
        if index.facts["columns"] != self._columns:
            raise DataError(
                f"{shard} has the columns {_listed(index.facts['columns'])}, but {self._shards[0]} "
                f"has {_listed(self._columns)}. Name what all have: columns: {{FIELD: COLUMN}}"
            )
        self._largest_group = max(self._largest_group, index.facts["group_bytes"])
        return index["seconds"]

    def _open(self, shard: int) -> OpenShard:
        return _OpenParquet(self._shards[shard], self._index_files[shard])

    def _read(self, shard: "_OpenParquet", row: int) -> tuple[Sample, Any]:
        ends = shard.index["group_ends"]
        group = int(np.searchsorted(ends, row, side="right"))
        path = shard.file.path
        table = self._groups.get((path, group), lambda: read_group(shard.table_file, group, path))
        at = row - (int(ends[group - 1]) if group else 0)
        speech = self._columns["speech"]
        cells = {name: table.column(name)[at].as_py() for name in table.column_names}
        id = shard.id_at(row)
        where = f"{path}, row {row} ({id})"
        try:
            audio = audio_of(cells.pop(speech), path.parent)
        except AudioError as error:
            raise AudioError(f"{where}: {error}") from None
        return as_fields(id, _decoded(cells, where), self._columns), audio


class _OpenParquet(OpenShard):
    def __init__(self, path: Path, index_file: Path) -> None:
        super().__init__(path, index_file)
        self.table_file = open_parquet(path)


def _decoded(cells: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the cells with those of columns `NAME.npy` and `NAME.json` as the values `NAME`."""
    row = {}
    for name, value in cells.items():
        field, _, kind = name.rpartition(".")
        try:
            if kind == "npy" and isinstance(value, bytes):
                row[field] = np.load(io.BytesIO(value), allow_pickle=False)
            elif kind == "json" and field and isinstance(value, str):
                row[field] = json.loads(value)
            else:
                row[name] = value
        except (ValueError, EOFError) as error:
            raise DataError(f"{where}: {name} is damaged: {error} Make it again.") from error
    return row


def _n_bytes(table: Any) -> int:
    return int(table.nbytes)


def _listed(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{field}: {column}" for field, column in columns.items())
