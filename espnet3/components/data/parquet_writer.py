"""Write a dataset as Parquet shards."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from espnet3.components.data.dataset import Dataset
from espnet3.components.data.errors import DataError
from espnet3.components.data.shard_writer import (
    AudioEncoding,
    EncodedSample,
    ShardSize,
    ShardWriting,
)
from espnet3.components.data.sources.base import check_extra
from espnet3.components.data.sources.parquet import ParquetIndexer
from espnet3.components.data.sources.shard_index import IndexKind
from espnet3.io.atomic import StrPath, dump_json

_GROUP_BYTES = 2**20  # what is read to get at one row


def write_parquet_shards(
    dataset: Dataset,
    folder: StrPath,
    *,
    name: str = "shard",
    shard_seconds: float | None = None,
    samples_per_shard: int | None = None,
    audio_format: str = "flac",
    bits: int = 16,
    n_threads: int = 1,
) -> list[Path]:
    """Write shards `NAME-000000.parquet`, ..., and their indexes.

    As `write_tar_shards`, with a row per item: `utt_id`, `audio` (as `datasets` has it: a struct of
    `bytes` and `path`), `duration`, a column per other field (`FIELD.json` of lists and dicts), and
    `FIELD.npy` for each array. A shard is in memory until it is written.

    Raises:
        MissingExtraError: pyarrow is not installed.
        ConfigError: An argument is wrong.
        DataError: The dataset is empty, or a sample cannot be written.
        StaleRunError: The folder holds shards of that name of other data or settings.
    """
    check_extra("pyarrow", "parquet")
    size = ShardSize(shard_seconds, samples_per_shard)
    form = AudioEncoding(audio_format, bits)
    kind = _Parquet(audio_format)
    return ShardWriting(dataset, folder, kind, name, size, form, n_threads).run()


@dataclass(frozen=True)
class _Parquet:
    audio_format: str
    ending: str = ".parquet"

    @contextmanager
    def open(self, file: IO[bytes]) -> Iterator[Callable[[EncodedSample], None]]:
        rows: list[dict[str, Any]] = []
        yield lambda sample: rows.append(self._row(sample))
        _write(file, rows)

    def index(self) -> IndexKind:
        return ParquetIndexer().kind()

    def _row(self, sample: EncodedSample) -> dict[str, Any]:
        audio = {"bytes": sample.audio, "path": f"{sample.utt_id}.{self.audio_format}"}
        arrays = {f"{name}.npy": data for name, data in sample.arrays.items()}
        known = {"utt_id": sample.utt_id, "audio": audio, "duration": sample.seconds}
        return {**dict(map(_cell, sample.fields.items())), **arrays, **known}


def _cell(field: tuple[str, Any]) -> tuple[str, Any]:
    """Return the column and the value; as JSON what Parquet would not give back as it was."""
    name, value = field
    is_nested = isinstance(value, dict | list)
    return (f"{name}.json", dump_json(value)) if is_nested else (name, value)


def _write(file: IO[bytes], rows: list[dict[str, Any]]) -> None:
    import pyarrow
    from pyarrow import parquet

    # Of all rows, as a sample may lack a field that others have; the cell is then null.
    names = dict.fromkeys(name for row in rows for name in row)
    arrays = {}
    for name in names:
        try:
            arrays[name] = pyarrow.array([row.get(name) for row in rows])
        except pyarrow.ArrowException as error:
            raise DataError(
                f"The field {name!r} of the samples from {rows[0]['utt_id']!r} to "
                f"{rows[-1]['utt_id']!r} is not of one type: {error}. Return it as text or as a "
                "number in all of them."
            ) from error
    n_bytes = sum(len(row["audio"]["bytes"]) for row in rows)
    rows_per_group = max(1, len(rows) * _GROUP_BYTES // max(n_bytes, 1))
    others = [name for name in names if name != "audio"]
    parquet.write_table(
        pyarrow.table(arrays),
        file,
        row_group_size=rows_per_group,
        # Audio does not get smaller; and its pages need no statistics.
        compression={"audio.bytes": "NONE", "audio.path": "SNAPPY"}
        | dict.fromkeys(others, "SNAPPY"),
        use_dictionary=False,
        write_statistics=others,
    )
