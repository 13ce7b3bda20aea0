"""Files of statistics: a line per item in each shard, then one set of files for all."""

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from espnet3.components.data.errors import DataError
from espnet3.components.data.stats import (
    SHAPE,
    STATS,
    STATS_KEYS,
    Moments,
    MomentsSum,
    save_stats,
    skipped_id,
)
from espnet3.components.data.stats_features import ItemStats
from espnet3.io.atomic import open_atomic, write_text
from espnet3.io.names import safe_name
from espnet3.io.tables import JsonlWriter, read_jsonl
from espnet3.shards.layout import FAILED
from espnet3.shards.merge import read_part, require_done

logger = logging.getLogger(__name__)
RECORDS = "items.jsonl"
_BLOCK = 1 << 18


class StatsWriter:
    """Writes the records of a shard; the last one of a batch has the moments of the batch.

    Which items are a batch follows from their positions alone. What `forward` was called with would
    not do: a batch that does not fit into memory, or loses its worker, is cut.

    Args:
        shard_dir: The folder of the shard.
        batch_size: Items of a batch; a shard begins with a whole one.
    """

    def __init__(self, shard_dir: Path, batch_size: int) -> None:
        self._writer = JsonlWriter(shard_dir / RECORDS)
        self._batch_size = batch_size
        self._batch: list[ItemStats] = []

    def write(self, item: ItemStats) -> None:
        """Add an item; they come in the order of the dataset."""
        if self._batch and self._number_of(self._batch[0]) != self._number_of(item):
            self._flush()
        self._batch.append(item)

    def close(self) -> None:
        """Write what is left and close the file; a second call does nothing."""
        self._flush()
        self._writer.close()

    def _number_of(self, item: ItemStats) -> int:
        return item.index // self._batch_size

    def _flush(self) -> None:
        batch, self._batch = self._batch, []
        sums: dict[str, MomentsSum] = {}
        for i, item in enumerate(batch):
            _add(sums, item.moments, item.id)
            record: dict[str, Any] = {"id": item.id, "shapes": item.shapes}
            if i == len(batch) - 1:
                record["moments"] = {name: own.total().to_json() for name, own in sums.items()}
            self._writer.write(record)


def add_records(shard_dirs: Sequence[Path], files: "StatsFiles") -> None:
    """Add all items to the files, in the order of the dataset.

    Raises:
        IncompleteRunError: A shard was changed since it was committed.
    """
    block = memoryview(bytearray(_BLOCK))
    for folder in shard_dirs:
        done = require_done(folder)
        content = bytearray()
        read_part(folder / RECORDS, done, block, content.extend)
        records = map(json.loads, content.splitlines())
        failed = read_jsonl(folder / FAILED) if done.n_failed else ()
        skipped = {record["position"] for record in failed}
        for position in range(done.start, done.stop):
            if position in skipped:
                files.skip(position)
            else:
                files.add(next(records))


class StatsFiles:
    """Makes the files of a split from its records; use it in a `with` block.

    At the end of the block all files appear in the folder; after an exception, none.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._shapes: dict[str, IO[str]] = {}
        self._sums: dict[str, MomentsSum] = {}
        self._skipped: list[str] = []

    def skip(self, position: int) -> None:
        """Add an item without a result: lengths are found by the number of the line."""
        self._skipped.append(f"{skipped_id(position)} 0\n")
        for file in self._shapes.values():
            file.write(self._skipped[-1])

    def add(self, record: Mapping[str, Any]) -> None:
        """Add the next item of the dataset."""
        for name, shape in record["shapes"].items():
            line = f"{record['id']} {','.join(map(str, shape))}\n"
            self._shape_file(name).write(line)
        moments = record.get("moments", {})
        _add(self._sums, {k: Moments.from_json(v) for k, v in moments.items()}, record["id"])

    def _shape_file(self, name: str) -> IO[str]:
        if name not in self._shapes:
            path = self._path(name, SHAPE)
            self._shapes[name] = self._stack.enter_context(open_atomic(path))
            self._shapes[name].writelines(self._skipped)
        return self._shapes[name]

    def _path(self, name: str, end: str) -> Path:
        return self._folder / f"{safe_name(name)}{end}"

    def __enter__(self) -> "StatsFiles":
        return self

    def __exit__(self, *exc_info: Any) -> None:
        if exc_info[0] is None:
            try:
                self._write_stats()
            except BaseException as error:
                self._stack.__exit__(type(error), error, error.__traceback__)
                raise
        self._stack.__exit__(*exc_info)
        if exc_info[0] is None:
            self._tell_foreign()

    def _write_stats(self) -> None:
        totals = {name: own.total() for name, own in self._sums.items()}
        empty = [name for name, total in totals.items() if not total.count]
        if empty:
            raise DataError(
                f"{empty[0]} has no frames in any item, so there is no mean. Check what computes "
                "it, and the lengths that collect_feats returns."
            )
        for name, total in totals.items():
            save_stats(self._path(name, STATS), total)
        write_text(self._folder / STATS_KEYS, "".join(f"{name}\n" for name in totals))

    @property
    def paths(self) -> dict[str, Path]:
        """The files by name, such as `speech_shape` and `feats_stats`."""
        shapes = {f"{name}{SHAPE}": self._path(name, SHAPE) for name in self._shapes}
        stats = {f"{name}_stats": self._path(name, STATS) for name in self._sums}
        return {**shapes, **stats}

    def _tell_foreign(self) -> None:
        ours = set(self.paths.values())
        others = [path for end in (SHAPE, STATS) for path in self._folder.glob(f"*{end}")]
        for path in sorted(set(others) - ours):
            logger.warning("%s is not of this run; remove it if it is of an earlier one", path)


def _add(sums: dict[str, MomentsSum], moments: Mapping[str, Moments], id: str) -> None:
    for name, own in moments.items():
        try:
            sums.setdefault(name, MomentsSum()).add(own)
        except DataError as error:
            raise DataError(f"{name}, at or shortly before item {id!r}: {error}") from None
