"""The index of a Parquet file: where row groups begin, and the durations and ids of the rows."""

import hashlib
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from espnet3.components.data.audio import Source, read_duration
from espnet3.components.data.errors import AudioError, DataError
from espnet3.components.data.sources.column_file import Array
from espnet3.components.data.sources.columns import find_columns, unique_ids
from espnet3.components.data.sources.shard_ids import id_columns
from espnet3.components.data.sources.shard_index import IndexKind, ShardIndex
from espnet3.io.atomic import StrPath
from espnet3.text import folded


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
            f"{shard} cannot be read as a Parquet file: {folded(error).rstrip('.')}. Copy or make "
            "it again; or name the shards only: path: FOLDER/*.parquet"
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
            f"{shard}, row group {group} cannot be read: {folded(error).rstrip('.')}. Copy or make "
            "the shard again."
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
    """Yield what the table tells, else the header of the audio; NaN if neither can be read."""
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
                if chunk.path_in_schema.partition(".")[0] == speech:
                    continue
                start = chunk.dictionary_page_offset or chunk.data_page_offset
                data.seek(min(start, chunk.data_page_offset))
                hasher.update(data.read(chunk.total_compressed_size))
    return hasher.hexdigest()
