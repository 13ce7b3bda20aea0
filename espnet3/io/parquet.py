"""Parquet tables, through pyarrow, an extra."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from espnet3.errors import MissingExtraError
from espnet3.io.atomic import open_atomic


def jsonl_to_parquet(source: Path, target: Path) -> None:
    """Write the records of a JSON Lines file as a table, block by block; `target` appears whole.

    Raises:
        MissingExtraError: pyarrow is not installed.
    """
    dataset, parquet = _pyarrow()
    table = dataset.dataset(str(source), format="json")
    with open_atomic(target, "wb") as file:
        with parquet.ParquetWriter(file, table.schema) as writer:
            for batch in table.to_batches():
                writer.write_batch(batch)


def check_parquet() -> None:
    """Raise a `MissingExtraError` now rather than after the work is done."""
    _pyarrow()


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow.dataset as dataset
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise MissingExtraError(
            f"results: parquet needs pyarrow, which cannot be imported ({error}). In your clone of "
            "ESPnet3: pip install -c constraints.txt -e '.[parquet]'; or write results: jsonl"
        ) from error
    return dataset, parquet
