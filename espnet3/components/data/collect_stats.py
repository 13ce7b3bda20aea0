"""Shapes, mean and variance of the features of a dataset, by as many workers as one likes."""

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from shlex import quote
from typing import Any

from espnet3.components.data.sample_seed import fixed_random
from espnet3.components.data.stats_features import ItemStats, stats_of_features, stats_of_samples
from espnet3.components.data.stats_records import StatsFiles, StatsWriter, add_records
from espnet3.errors import EspnetError, IncompleteRunError
from espnet3.parallel.base_runner import BaseRunner
from espnet3.shards.merge import require_done
from espnet3.shards.status import read_failures

DEFAULT_BATCH_SIZE = 16


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

    can_detach = False  # the stage goes on with what it returns

    def __init__(
        self, provider: Any, batch_size: int = DEFAULT_BATCH_SIZE, **settings: Any
    ) -> None:
        super().__init__(provider, batch_size, **settings)

    def settings(self) -> dict[str, Any]:
        """Hand the size of a batch to the writers."""
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
    """Return a sample; of a batch that fails, an error tells the item."""
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
    root = shard_dirs[0].parent
    raise IncompleteRunError(
        f"All items in {root} failed, so there are no statistics. The first error: "
        f"{read_failures(root)[0]['error']} To see all: espnet3 failed {quote(str(root))}"
    )
