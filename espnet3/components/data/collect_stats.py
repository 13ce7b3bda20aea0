"""Statistics of a dataset: shapes, mean and variance of its features, by any number of workers."""

import inspect
import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from espnet3.components.data.errors import DataError
from espnet3.components.data.random_numbers import fixed_random
from espnet3.components.data.stats import (
    SHAPE,
    STATS,
    STATS_KEYS,
    Moments,
    MomentsSum,
    save_stats,
    skipped_id,
)
from espnet3.errors import EspnetError, IncompleteRunError, ProviderError
from espnet3.io.atomic import JsonlWriter, open_atomic, write_text
from espnet3.io.scp import check_id, safe_name
from espnet3.io.tables import read_jsonl
from espnet3.parallel.base_runner import BaseRunner
from espnet3.shards.layout import FAILED, run_folder_of
from espnet3.shards.merge import read_failures, read_part, require_done

logger = logging.getLogger(__name__)

DEFAULT_BATCH_SIZE = 16
RECORDS = "items.jsonl"
_BLOCK = 1 << 18
_LENGTHS = "_lengths"
_FORM = '{"feats": tensor of [batch, time, dim], "feats_lengths": tensor of [batch]}'


@dataclass(frozen=True)
class ItemStats:
    """Statistics of one item."""

    index: int
    """Its position in the dataset."""
    id: str
    """Its `utt_id`, or else its position."""
    shapes: dict[str, tuple[int, ...]]
    """Of each array of the sample and of each feature; without padding."""
    moments: dict[str, Moments]
    """Of the features."""


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


class StatsRunner(BaseRunner):
    """Takes the statistics of the items of a dataset, `runner(range(len(dataset)))`.

    The provider builds `dataset`, `model` and `collate_fn`. With a model, statistics are of what
    its `collect_feats(**batch)` returns; if it is None, of the arrays of the samples. In
    `output_dir` there are then, in the order of the dataset:

    - `<name>_shape`: a line `<utt_id> <length>[,<dim>]` per item, for each array of the samples and
      each feature; an item that was skipped has the line `item<position> 0`;
    - `<name>_stats.npz`: count, sum, sum_square, mean and var of each feature over all frames;
    - `stats_keys`: the names of the features that have statistics.

    They are the same to the last bit whatever the number of workers or shards: moments are taken
    per item, merged in batches that depend on the positions of items alone, and these in the order
    of the dataset. What is random in a dataset or model is seeded by the item.

    Args:
        provider: builds what `forward` takes.
        batch_size: items of a batch, in the order of the dataset.
        **settings: those of `BaseRunner`.
    """

    can_detach = False  # the stage needs what it returns

    def __init__(
        self, provider: Any, batch_size: int = DEFAULT_BATCH_SIZE, **settings: Any
    ) -> None:
        super().__init__(provider, batch_size, **settings)

    def settings(self) -> dict[str, Any]:
        """Return the size of a batch, for the writers."""
        return {"batch_size": self.batch_size}

    # Hooks get what their signatures name, which no type checker can know.
    @staticmethod
    def forward(  # type: ignore[override]
        idx: list[int], dataset: Any, model: Any = None, collate_fn: Any = None
    ) -> list[ItemStats]:
        """Take the statistics of each item of a batch."""
        with fixed_random() as seed:
            samples = []
            for index in idx:
                seed(index)
                samples.append(_read(dataset, index))
            if model is None:
                return stats_of_samples(idx, samples)
            seed(idx[0])
            with _no_gradients():
                return stats_of_features(idx, samples, model, collate_fn)

    @staticmethod
    def open_writers(shard_dir: Path, batch_size: int) -> StatsWriter:  # type: ignore[override]
        """Open the file of a shard."""
        return StatsWriter(shard_dir, batch_size)

    @staticmethod
    def write_record(writers: StatsWriter, result: ItemStats) -> None:  # type: ignore[override]
        """Write one item."""
        writers.write(result)

    @staticmethod
    def close_writers(writers: StatsWriter) -> None:  # type: ignore[override]
        """Write the last batch and close the file."""
        writers.close()

    def merge(self, shard_dirs: Sequence[Path]) -> dict[str, Path]:
        """Write the files of the whole dataset, and return them by name.

        Raises:
            IncompleteRunError: no item has a result.
        """
        assert self.output_dir is not None
        _check_some(shard_dirs)
        with StatsFiles(self.output_dir) as files:
            add_records(shard_dirs, files)
        return files.paths


def _read(dataset: Any, index: int) -> Any:
    """Return a sample; of a batch that fails, the error names the item."""
    try:
        return dataset[index]
    except Exception as error:
        place_of = getattr(dataset, "place_of", None)
        place = place_of(index) if callable(place_of) else f"item {index}"
        if isinstance(error, EspnetError):
            raise type(error)(f"{place}: {error}") from error.__cause__
        error.add_note(f"Raised while reading {place}.")
        raise


def _no_gradients() -> AbstractContextManager[Any]:
    torch = sys.modules.get("torch")
    return nullcontext() if torch is None else torch.no_grad()


def _check_some(shard_dirs: Sequence[Path]) -> None:
    if any(require_done(folder).n_written for folder in shard_dirs):
        return
    root = run_folder_of(shard_dirs[0])
    raise IncompleteRunError(
        f"All items in {root} failed, so there are no statistics. The first error: "
        f"{read_failures(root)[0]['error']} To see all: espnet3 failed {quote(str(root))}"
    )


def stats_of_samples(indices: Sequence[int], samples: Sequence[Any]) -> list[ItemStats]:
    """Take the statistics of the samples' own arrays: shapes of all, moments of real numbers."""
    found = []
    for index, sample in zip(indices, samples, strict=True):
        arrays = arrays_of(sample)
        real = {name: array for name, array in arrays.items() if array.dtype.kind == "f"}
        found.append(_item_stats(index, sample, arrays, real))
    return found


def stats_of_features(
    indices: Sequence[int],
    samples: Sequence[Any],
    model: Any,
    collate_fn: Callable[[list[Any]], Any],
) -> list[ItemStats]:
    """Take the statistics of what `model.collect_feats(**batch)` returns, and the samples' shapes.

    Raises:
        ProviderError: It returns something else than features of the items of the batch.
    """
    device = _device_of(model)
    batch = collate_fn(list(samples))
    # The collate functions of ESPnet2 return the ids as well.
    fields = batch[1] if isinstance(batch, tuple) and len(batch) == 2 else batch
    features = model.collect_feats(**_accepted(model.collect_feats, _on_device(fields, device)))
    per_item = _split(features, len(samples), type(model).__qualname__)
    return [
        _item_stats(index, sample, arrays_of(sample), own)
        for index, sample, own in zip(indices, samples, per_item, strict=True)
    ]


def arrays_of(sample: Any) -> dict[str, NDArray[Any]]:
    """Return the fields of a sample that have a length: arrays, tensors and lists of numbers.

    Raises:
        DataError: The sample is no mapping.
    """
    if not isinstance(sample, Mapping):
        raise DataError(
            f"A sample is {sample!r:.80}, of type {type(sample).__name__}. Return a dict, such as "
            '{"utt_id": "a", "speech": array}.'
        )
    found = {str(name): _as_array(value) for name, value in sample.items()}
    return {name: array for name, array in found.items() if array is not None and array.ndim}


def _item_stats(
    index: int,
    sample: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
    features: Mapping[str, NDArray[Any]],
) -> ItemStats:
    id = sample.get("utt_id", str(index))
    check_id(id)
    moments = {name: _moments(name, array, id) for name, array in features.items()}
    shapes = {name: array.shape for name, array in {**arrays, **features}.items()}
    return ItemStats(index, id, shapes, moments)


def _moments(name: str, array: NDArray[Any], id: str) -> Moments:
    is_finite = np.isfinite(array)
    if not is_finite.all():
        where = np.argwhere(~is_finite)[0].tolist()
        raise DataError(
            f"{name} of {id!r} is {array[tuple(where)]} at {where}, so there is no mean.",
            fix="Mend the "
            "item or what computes it, or leave such items out: collect_stats.on_error=skip",
        )
    return Moments.of(array)


def _as_array(value: Any) -> NDArray[Any] | None:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        # numpy knows no bfloat16.
        tensor = value.detach().cpu()
        tensor = tensor.float() if tensor.dtype is torch.bfloat16 else tensor
        array: NDArray[Any] = tensor.numpy()
        return array
    if isinstance(value, list | tuple):
        numbers = all(isinstance(item, int | float | np.number) for item in value)
        # An empty list is most likely one of tokens.
        return np.asarray(value, dtype=None if value else np.int64) if numbers else None
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return value
    return None


def _split(features: Any, n_items: int, model: str) -> list[dict[str, NDArray[Any]]]:
    """Return the features of each item, without padding."""
    if not isinstance(features, Mapping) or not features:
        raise ProviderError(
            f"{model}.collect_feats returned {type(features).__name__}. Return {_FORM}."
        )
    arrays = {str(name): _as_array(value) for name, value in features.items()}
    for name, array in arrays.items():
        if array is None or not array.ndim or len(array) != n_items:
            found = "no array" if array is None else f"of the shape {list(array.shape)}"
            raise ProviderError(
                f"{model}.collect_feats got a batch of {n_items} items, and {name!r} of what it "
                f"returned is {found}. Return {_FORM}."
            )
    items: list[dict[str, NDArray[Any]]] = [{} for _ in range(n_items)]
    for name, array in arrays.items():
        if array is None or (name.endswith(_LENGTHS) and name.removesuffix(_LENGTHS) in arrays):
            continue
        lengths = arrays.get(name + _LENGTHS)
        for i, own in enumerate(items):
            # Without a length, the whole of it is one vector.
            own[name] = array[i][None] if lengths is None else _cut(array[i], lengths[i], name)
    return items


def _cut(array: NDArray[Any], length: Any, name: str) -> NDArray[Any]:
    if not 0 <= int(length) <= len(array):
        raise ProviderError(
            f"collect_feats returned {name}{_LENGTHS} with {int(length)} for features of "
            f"{len(array)} frames. Return the number of frames of each item, without padding."
        )
    return array[: int(length)]


def _accepted(function: Callable[..., Any], batch: Any) -> dict[str, Any]:
    """Return the fields of a batch that a function takes."""
    if not isinstance(batch, Mapping):
        raise ProviderError(
            f"dataloader.collate_fn returned {type(batch).__name__}. Return the batch as a dict of "
            "what the model takes, or (ids, that dict)."
        )
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return dict(batch)
    names = {p.name for p in parameters}
    return {name: value for name, value in batch.items() if name in names}


def _device_of(model: Any) -> Any:
    tensors = [*getattr(model, "parameters", tuple)(), *getattr(model, "buffers", tuple)()]
    return tensors[0].device if tensors else None


def _on_device(batch: Any, device: Any) -> Any:
    if device is None or device.type == "cpu" or not isinstance(batch, Mapping):
        return batch
    return {k: v.to(device) if hasattr(v, "to") else v for k, v in batch.items()}


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
            # Lines count positions, and items may have been skipped before this name first came up.
            self._shapes[name].writelines(self._skipped)
        return self._shapes[name]

    def _path(self, name: str, end: str) -> Path:
        return self._folder / f"{safe_name(name)}{end}"

    def __enter__(self) -> "StatsFiles":
        return self

    def __exit__(self, *exc_info: Any) -> None:
        if exc_info[0] is None:
            try:
                # First, because it may fail, and then no file of shapes may appear either.
                self._write_stats()
            except BaseException as error:
                self._stack.__exit__(type(error), error, error.__traceback__)
                raise
        self._stack.__exit__(*exc_info)
        if exc_info[0] is None:
            self._warn_of_foreign()

    def _write_stats(self) -> None:
        totals = {name: own.total() for name, own in self._sums.items()}
        empty = [name for name, total in totals.items() if not total.count]
        if empty:
            raise DataError(
                f"{empty[0]} has no frames in any item, so there is no mean.",
                fix="Check what computes it, and the lengths that collect_feats returns.",
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

    def _warn_of_foreign(self) -> None:
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
