"""How long the samples are, from the dataset or from what collect_stats wrote."""

import logging
import math
from array import array
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.components.data.dataset import durations_of
from espnet3.components.data.loader_config import LoaderConfig
from espnet3.components.data.stats import skipped_id
from espnet3.config.sources import join_key, set_in
from espnet3.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

    from espnet3.config.load import LoadedConfig

    Floats = np.ndarray[Any, np.dtype[np.float64]]
    Ints = np.ndarray[Any, np.dtype[np.int64]]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Shapes:
    """The shapes in a file of collect_stats: one line per sample, in the order of the dataset."""

    ends: tuple[str, str]
    """The ids of the first and the last sample."""
    n_frames: "Floats"
    """The first number."""
    n_bins: "Floats"
    """The product of all numbers."""

    def __len__(self) -> int:
        return len(self.n_frames)


@dataclass(frozen=True)
class LengthSource:
    """A dataset, and the settings that say where its lengths are found."""

    dataset: Any
    config: LoaderConfig
    key: str
    loaded: "LoadedConfig | None" = None
    given: Any = None
    """Seconds of each item, where the caller knows them."""

    def seconds(self, wanted_by: str) -> "Floats":
        """Return the seconds of each item.

        Raises:
            ConfigError: They are unknown; the message names the setting that wants them.
        """
        import numpy as np

        if self.given is not None:
            return np.asarray(self.given, dtype=np.float64)
        # With `skip`, what cannot be read is left out when its turn comes.
        known = durations_of(self.dataset, 0.0 if self.config.on_error == "skip" else None)
        if known is not None:
            return np.asarray(known, dtype=np.float64)
        if self.config.shape_file is not None and self.config.sample_rate is not None:
            return self._shapes[0].n_frames / self.config.sample_rate
        full = join_key(self.key, wanted_by)
        raise ConfigError(
            f"{full} is set{set_in(full, self.loaded)}, but the dataset does not know how long its "
            "samples are. Write a method in it: def durations(self): return [seconds of each item]"
            "; or run the stage collect_stats and write "
            "shape_file: ${stats_dir}/train/speech_shape and sample_rate: 16000; or go by count: "
            "batch_size: 16"
        )

    def bins(self) -> "Floats":
        """Return the size of each item: the product of its shape, or the sum of these."""
        total: Floats = self.bins_by_file().sum(axis=0)
        return total

    def bins_by_file(self) -> "Floats":
        """Return the size of each item in each shape_file, [files, items]: fields of a batch are
        padded each to its own longest."""
        import numpy as np

        return np.stack([shapes.n_bins for shapes in self._shapes])

    def without_empty(self, items: "Ints") -> "Ints":
        """Leave out what has the length 0 in a shape_file: collect_stats could not read it."""
        import numpy as np

        if self.config.shape_file is None:
            return items
        is_empty = np.any([shapes.n_frames == 0 for shapes in self._shapes], axis=0)
        kept: Ints = items[~is_empty[items]]
        if len(kept) < len(items):
            logger.info(
                "%s: %d of %d samples are left out: of length 0 in shape_file, which is what "
                "collect_stats writes for those that it skipped",
                self.key, len(items) - len(kept), len(items),
            )  # fmt: skip
        return kept

    @cached_property
    def _shapes(self) -> list[Shapes]:
        files = self.config.shape_file or ()
        found = [read_shapes(file) for file in ([files] if isinstance(files, str) else files)]
        key = join_key(self.key, "shape_file")
        for shapes in found:
            if len(shapes) != len(self.dataset):
                raise ConfigError(
                    f"{key}{set_in(key, self.loaded)} has {len(shapes)} lines, but the dataset "
                    f"has {len(self.dataset)} items. Run the stage collect_stats again."
                )
            self._check_ids(shapes, key)
        return found

    def _check_ids(self, shapes: Shapes, key: str) -> None:
        """Compare the ids at both ends; all of them would mean to read the whole dataset."""
        for position, id in zip((0, len(shapes) - 1), shapes.ends, strict=True):
            if id == skipped_id(position):
                continue
            found = name_in(self.dataset, position)
            if found is not None and found != id:
                raise ConfigError(
                    f"{key}{set_in(key, self.loaded)} has {id!r} on line {position + 1}, but that "
                    f"item of the dataset is {found!r}. Run the stage collect_stats again."
                )


def read_shapes(path: str) -> Shapes:
    """Read lines such as `utt1 163840` or `utt1 512,80`.

    Raises:
        ConfigError: The file is missing or empty, or a line is of another form.
    """
    import numpy as np

    if not Path(path).is_file():
        raise ConfigError(f"shape_file: {path} does not exist. Run the stage collect_stats first.")
    ends, frames, bins = ["", ""], array("d"), array("d")
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(map(str.rstrip, file), start=1):
            ends[1], _, shape = line.rpartition(" ")
            try:
                sizes = [int(size) for size in shape.split(",")]
            except ValueError:
                raise ConfigError(
                    f"{path}:{number} is {line!r:.80}, but must be an id and a shape, such as "
                    "utt1 512,80. Run the stage collect_stats again."
                ) from None
            ends[0] = ends[0] or ends[1]
            frames.append(sizes[0])
            bins.append(math.prod(sizes))
    return Shapes((ends[0], ends[1]), np.array(frames), np.array(bins))


def left_in(
    seconds: "Floats | None",
    config: LoaderConfig,
    n_items: int,
    key: str,
    loaded: "LoadedConfig | None" = None,
) -> "Ints":
    """Return the items between min_seconds and max_seconds, and say how many are left out.

    Raises:
        ConfigError: None is left.
    """
    import numpy as np

    if seconds is None:
        return np.arange(n_items)
    shortest, longest = config.min_seconds or 0.0, config.max_seconds or float("inf")
    is_short, is_long = seconds < shortest, seconds > longest
    items = np.flatnonzero(~(is_short | is_long))
    if len(items) == n_items:
        return items
    counts = [
        f"{np.sum(is_bad)} {word} than {name} {limit:g} ({seconds[is_bad].sum() / 3600:.2f} h)"
        for is_bad, word, name, limit in (
            (is_short, "shorter", "min_seconds", shortest),
            (is_long, "longer", "max_seconds", longest),
        )
        if is_bad.any()
    ]
    said = f"{n_items - len(items)} of {n_items} samples are left out: {' and '.join(counts)}"
    if not len(items):
        raise ConfigError(
            f"{key}{set_in(key, loaded)}: {said}; none is left. Durations are in seconds; correct "
            "these."
        )
    logger.info("%s: %s", key, said)
    return items


def name_in(dataset: Any, index: int) -> str | None:
    """Return the `utt_id` of a sample, or None if it has none or cannot be read."""
    try:
        sample = dataset[index]
    except Exception:
        return None  # told when the sample is needed
    name = sample.get("utt_id") if hasattr(sample, "get") else None
    return None if name is None else str(name)


def place_of(dataset: Any, index: int) -> str:
    """Return how an error calls an item."""
    own = getattr(dataset, "place_of", None)
    return str(own(index)) if callable(own) else f"item {index} of the dataset"
