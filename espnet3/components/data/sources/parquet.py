"""Parquet shards, read by position.

Example:
    ```yaml
    data_src: parquet
    data_src_args:
      path: data/train-{00000..00099}.parquet
      columns: {text: transcription}
    ```
"""

import hashlib
import io
import json
import logging
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from espnet3.components.data.audio import Source, read_duration
from espnet3.components.data.dataset import Sample
from espnet3.components.data.errors import AudioError, DataError
from espnet3.components.data.sources.base import as_fields, check_extra, find_columns, unique_ids
from espnet3.components.data.sources.shard_index import (
    Array,
    ColumnFile,
    IndexKind,
    ShardIndex,
    id_columns,
)
from espnet3.components.data.sources.shard_source import (
    OpenShard,
    Paths,
    Recent,
    ShardSource,
    find_shards,
)
from espnet3.io.atomic import StrPath
from espnet3.text import folded

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
            that are not named are looked for under common names; see `COMMON` in `base`.
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
                "for out of order. Write them again: write_parquet_shards(dataset, FOLDER)",
                shards[0].parent, self._largest_group >> 20,
            )  # fmt: skip

    def _seconds_of(self, index: ColumnFile, shard: Path) -> Array:
        if index.facts["columns"] != self._columns:
            raise DataError(
                f"{shard} has the columns {_listed(index.facts['columns'])}, but {self._shards[0]} "
                f"has {_listed(self._columns)}.",
                fix="Name what all have: columns: {FIELD: COLUMN}",
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
                # Shards come from others, and a pickle would run their code.
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


def open_parquet(shard: Path) -> Any:
    """Return a `pyarrow.parquet.ParquetFile`.

    Raises:
        DataError: It is missing, no Parquet file, or cut short.
    """
    import pyarrow
    from pyarrow import parquet

    try:
        # Its threads do not survive a fork; a row group is small enough without them.
        return parquet.ParquetFile(shard, memory_map=False, pre_buffer=False)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(
            f"{shard} cannot be read as a Parquet file: {folded(error).rstrip('.')}.",
            fix="Copy or make it again; or name the shards only: path: FOLDER/*.parquet",
        ) from error


def read_group(file: Any, group: int, shard: Path, columns: list[str] | None = None) -> Any:
    """Return a row group as a table.

    Raises:
        DataError: It is damaged.
    """
    import pyarrow

    try:
        return file.read_row_group(group, columns=columns, use_threads=False)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(
            f"{shard}, row group {group} cannot be read: {folded(error).rstrip('.')}.",
            fix="Copy or make the shard again.",
        ) from error


def audio_of(value: Any, folder: Path) -> Source:
    """Return the audio of a cell: bytes, a path, or `datasets`' struct of both.

    Raises:
        AudioError: There is none.
    """
    if isinstance(value, Mapping):
        value = value["path"] if value.get("bytes") is None else value["bytes"]
    if isinstance(value, bytes):
        return value
    if isinstance(value, str) and value:
        return os.path.join(folder, value)
    raise AudioError(
        f"The audio is {value!r:.80}, neither a file's content nor a path. Leave the row out "
        "where the shard is made."
    )


@dataclass(frozen=True)
class ParquetIndexer:
    """Indexes files by what the user wrote as `columns`."""

    given: Mapping[str, str] | None = None

    def kind(self, index_dir: StrPath | None = None) -> IndexKind:
        """Return the kind of index; that of other columns is kept apart."""
        suffix = ""
        if self.given:
            words = sorted(f"{field}={column}" for field, column in self.given.items())
            suffix = hashlib.sha256("\0".join(words).encode()).hexdigest()[:8]
        return IndexKind(f"parquet-1:{suffix}", self.build, index_dir)

    def build(self, shard: Path) -> ShardIndex:
        """Return the index of a file.

        Facts: `columns` (of the fields), `digest` (of all but the audio) and `group_bytes`, the
        size of its largest row group. Columns: `group_ends`, per row group; `seconds` and the
        ids, per row.

        Raises:
            ConfigError: There is no such column, or none with audio.
            DataError: The file is damaged.
            RecordError: An id is wrong.
        """
        file = open_parquet(shard)
        metadata = file.metadata
        columns = find_columns(self.given, file.schema_arrow.names, shard)
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        ends = np.cumsum([group.num_rows for group in groups], dtype=np.int64)
        facts = {
            "columns": columns,
            "digest": _digest(shard, file, columns["speech"]),
            "group_bytes": max((group.total_byte_size for group in groups), default=0),
        }
        ids = _ids(file, shard, columns)
        seconds = np.array(list(_seconds(file, shard, columns)), dtype=np.float64)
        return ShardIndex(facts, {"group_ends": ends, "seconds": seconds, **id_columns(ids)})


def _ids(file: Any, shard: Path, columns: Mapping[str, str]) -> list[str]:
    n_rows = file.metadata.num_rows
    if "utt_id" not in columns:
        return [f"{'_'.join(shard.stem.split())}-{row:08d}" for row in range(n_rows)]
    return unique_ids(_column(file, shard, columns["utt_id"]), lambda row: f"{shard}, row {row}")


def _column(file: Any, shard: Path, name: str) -> Iterator[Any]:
    for group in range(file.metadata.num_row_groups):
        yield from read_group(file, group, shard, [name]).column(name).to_pylist()


def _seconds(file: Any, shard: Path, columns: Mapping[str, str]) -> Iterator[float]:
    """Yield what the table has, else the header of the audio; NaN if neither can be read."""
    known = _known_seconds(file, shard, columns)
    row = 0
    for group in range(file.metadata.num_row_groups):
        n_rows = file.metadata.row_group(group).num_rows
        part = known[row : row + n_rows]
        row += n_rows
        if not np.isnan(part).any():
            yield from part.tolist()
            continue
        speech = columns["speech"]
        for cell, value in zip(
            read_group(file, group, shard, [speech]).column(speech), part.tolist(), strict=True
        ):
            yield _header_seconds(cell, shard) if math.isnan(value) else value


def _known_seconds(file: Any, shard: Path, columns: Mapping[str, str]) -> Array:
    known = np.full(file.metadata.num_rows, math.nan)
    if "duration" in columns:
        for row, value in enumerate(_column(file, shard, columns["duration"])):
            if isinstance(value, int | float) and 0 <= value < math.inf:
                known[row] = value
    return known


def _header_seconds(cell: Any, shard: Path) -> float:
    try:
        return read_duration(audio_of(cell.as_py(), shard.parent))
    # A damaged header may state a rate of 0.
    except (AudioError, ZeroDivisionError):
        return math.nan


def _digest(shard: Path, file: Any, speech: str) -> str:
    """Hash the stored bytes of all columns but the audio."""
    hasher = hashlib.sha256(f"{file.schema_arrow.to_string()}\0{file.metadata.num_rows}".encode())
    with shard.open("rb") as data:
        for i in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(i)
            for j in range(group.num_columns):
                chunk = group.column(j)
                hasher.update(f"{chunk.path_in_schema}\0{chunk.total_compressed_size}\0".encode())
                # A struct is stored as a column per field, such as audio.bytes and audio.path.
                if chunk.path_in_schema.partition(".")[0] == speech:
                    continue
                start = chunk.dictionary_page_offset or chunk.data_page_offset
                data.seek(min(start, chunk.data_page_offset))
                hasher.update(data.read(chunk.total_compressed_size))
    return hasher.hexdigest()
