"""Choose how the batches of a split are made, from its settings and the lengths of its samples."""

import logging
import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.components.data.batch_sampler import OwnBatches, build_sampler
from espnet3.components.data.batching import (
    BatchPlan,
    CountBatches,
    DatasetPart,
    LengthBatches,
    Order,
    shard_order,
)
from espnet3.components.data.dataset import (
    CombinedDataset,
    durations_of,
    locality_of,
    name_in,
    place_of,
)
from espnet3.components.data.loader_config import DEFAULT_MAX_PADDING, LoaderConfig, check_loader
from espnet3.components.data.stats import skipped_id
from espnet3.config.fingerprint import digest
from espnet3.config.resolve import resolved
from espnet3.config.sources import join_key
from espnet3.errors import ConfigError

if TYPE_CHECKING:
    from espnet3.components.data.dataset import Floats, Ints

logger = logging.getLogger(__name__)

# What the batches of an epoch depend on.
_SETTINGS = (
    "batch_size", "batch_seconds", "batch_bins", "max_padding", "drop_last", "min_seconds",
    "max_seconds", "buffer_shards",
)  # fmt: skip


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
            f"{full} is set",
            key=full,
            problem="but the dataset does not know how long its samples are",
            fix="Write a method in it: def durations(self): return [seconds of each item]; or run "
            "the stage collect_stats and write shape_file: ${stats_dir}/train/speech_shape and "
            "sample_rate: 16000; or go by count: batch_size: 16",
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
        key = join_key(self.key, "shape_file")
        found = [read_shapes(file, key) for file in ([files] if isinstance(files, str) else files)]
        for shapes in found:
            if len(shapes) != len(self.dataset):
                raise ConfigError(
                    key=key,
                    problem=f"has {len(shapes)} lines, but the dataset has {len(self.dataset)} "
                    "items",
                    fix="Run the stage collect_stats again.",
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
                    key=key,
                    problem=f"has {id!r} on line {position + 1}, but that item of the dataset is "
                    f"{found!r}",
                    fix="Run the stage collect_stats again.",
                )


@dataclass(frozen=True)
class LoaderPlan:
    """The batches of a split, and what they were made from."""

    batches: BatchPlan
    inputs: dict[str, Any]
    """What they depend on, as plain values."""
    seconds: "Floats | None"
    """Of each item, if they were needed."""


def make_plan(source: LengthSource, *, seed: int, split: str) -> LoaderPlan:
    """Check the settings and the data, and choose.

    Raises:
        ConfigError: They do not fit each other.
    """
    config, key = source.config, source.key
    check_loader(config, key)
    n_items = 0 if source.dataset is None else len(source.dataset)
    if not n_items:
        raise ConfigError(
            key=f"dataset.{split}",
            problem=f"has no samples, so there is nothing for {key} to make batches of",
            fix=f"Add a dataset: {split}: [{{data_src: SOURCE, data_src_args: {{...}}}}]",
        )
    seconds = _seconds(source)
    items = source.without_empty(left_in(seconds, config, n_items, key))
    shuffle = split == "train" if config.shuffle is None else config.shuffle
    parts = _parts(source.dataset, items, key)
    inputs = {
        "n_items": n_items,
        "seed": seed,
        "shuffle": shuffle,
        "seconds": None if seconds is None else digest({"seconds": seconds}),
        "weights": [part.weight for part in parts],
        **{name: getattr(config, name) for name in _SETTINGS},
        # Only where it is set: checkpoints of before there was such a key do not have it.
        **({"batch_is_global": True} if config.batch_is_global else {}),
    }
    # Negative seeds are no seeds for NumPy.
    maker = _Maker(source, seed & (2**63 - 1), shuffle, parts)
    batches, more = maker.own() or maker.by_length(seconds) or maker.by_count()
    return LoaderPlan(batches, {**inputs, **more}, seconds)


@dataclass(frozen=True)
class _Maker:
    """Makes batches in one of three ways, or returns None if the settings want another one."""

    source: LengthSource
    seed: int
    shuffle: bool
    parts: list[DatasetPart]

    @property
    def config(self) -> LoaderConfig:
        return self.source.config

    def own(self) -> tuple[BatchPlan, dict[str, Any]] | None:
        config, source = self.config, self.source
        name = "sampler" if config.sampler is not None else "batch_sampler"
        node = getattr(config, name)
        if node is None:
            return None
        key = join_key(source.key, name)
        self._refuse_with_own(key)
        dataset = source.dataset
        offered = {"dataset": dataset, "data_source": dataset, "seed": self.seed}
        batches = OwnBatches(
            build_sampler(node, offered, key=key),
            n_items=len(dataset),
            seed=self.seed,
            batch_size=config.batch_size,
            drop_last=config.drop_last,
            key=key,
        )
        plain = resolved(node)
        kind = plain if isinstance(plain, Mapping) else type(node).__qualname__
        return batches, {name: digest({name: kind})}

    def by_length(self, seconds: "Floats | None") -> tuple[BatchPlan, dict[str, Any]] | None:
        import numpy as np

        config = self.config
        if config.batch_bins is not None:
            lengths, name = self.source.bins_by_file(), "batch_bins"
            budget = float(config.batch_bins)
        elif config.batch_seconds is not None and seconds is not None:
            lengths, budget, name = seconds, config.batch_seconds, "batch_seconds"
        elif config.max_padding is not None and seconds is not None:
            lengths, budget, name = seconds, float("inf"), "batch_size"
        else:
            return None
        _check_budget(self, np.atleast_2d(lengths).sum(axis=0), budget, name)
        batches = LengthBatches(
            self.parts,
            lengths,
            budget=budget,
            max_items=config.batch_size,
            max_padding=config.max_padding or DEFAULT_MAX_PADDING,
            seed=self.seed if self.shuffle else None,
            order=self._order(),
        )
        logger.info(
            "%s: %d samples in %d batches an epoch, from %d buckets of similar length",
            self.source.key, round(sum(p.weight * len(p.items) for p in self.parts)),
            len(batches.sizes), len(batches.buckets),
        )  # fmt: skip
        # As one row of all fields, which is what positions in an epoch were stored with.
        return batches, {"lengths": digest({"lengths": batches.lengths})}

    def by_count(self) -> tuple[BatchPlan, dict[str, Any]]:
        batches = CountBatches(
            self.parts,
            self.config.batch_size or 1,
            n_items=len(self.source.dataset),
            seed=self.seed if self.shuffle else None,
            drop_last=self.config.drop_last,
            order=self._order(),
        )
        return batches, {}

    def _order(self) -> Order | None:
        """Return how to read a corpus in shards: a few of them at a time."""
        if not self.shuffle or not self.config.buffer_shards:
            return None
        locality = locality_of(self.source.dataset)
        if locality is None:
            return None
        n_shards = self.config.buffer_shards
        return lambda epoch: shard_order(
            locality, seed=self.seed, epoch=epoch, buffer_shards=n_shards
        )

    def _refuse_with_own(self, key: str) -> None:
        if self.config.min_seconds or self.config.max_seconds:
            raise ConfigError(
                f"{key} is set",
                key=key,
                problem="which chooses the samples, so min_seconds and max_seconds do nothing",
                fix="Remove them.",
            )
        if any(part.weight != 1 for part in self.parts):
            logger.warning("%s chooses the samples: the weights of datasets are ignored", key)


def _seconds(source: LengthSource) -> "Floats | None":
    """Return the durations if a setting needs them: it may take long to find them."""
    config = source.config
    wanted = ["batch_seconds", "max_seconds", "min_seconds"]
    if config.batch_bins is None and config.batch_sampler is None:
        wanted.append("max_padding")
    wanted_by = next((name for name in wanted if getattr(config, name) is not None), None)
    if wanted_by is None and source.given is None:
        return None
    return source.seconds(wanted_by or "batch_size")


def _parts(dataset: Any, items: "Ints", key: str) -> list[DatasetPart]:
    if not isinstance(dataset, CombinedDataset):
        return [DatasetPart(items)]
    parts = []
    for indices, weight, name in zip(dataset.ranges(), dataset.weights, dataset.names, strict=True):
        own = items[(items >= indices.start) & (items < indices.stop)]
        if len(own) and round(weight * len(own)) == 0:
            raise ConfigError(
                key=f"{name}.weight",
                value=weight,
                problem=f"which gives {key} none of its {len(own)} samples",
                fix=f"Write at least weight: {1 / len(own):.2g}",
            )
        parts.append(DatasetPart(own, weight))
    return [part for part in parts if len(part.items)]


def _check_budget(maker: _Maker, lengths: "Floats", budget: float, name: str) -> None:
    import numpy as np

    items = np.concatenate([part.items for part in maker.parts])
    over = items[lengths[items] > budget * (1 + 1e-9)]
    if not len(over):
        return
    source = maker.source
    longest = int(over[np.argmax(lengths[over])])
    size = float(lengths[longest])
    utt_id = name_in(source.dataset, longest)
    called = (
        f"{utt_id} ({place_of(source.dataset, longest)})"
        if utt_id
        else place_of(source.dataset, longest)
    )
    unit = " s" if name == "batch_seconds" else " numbers"
    full = join_key(source.key, name)
    room = int(np.ceil(size))
    ways = f"{name}: {room}"
    if name == "batch_seconds":
        ways += f", or leave samples longer than this out: max_seconds: {budget:g}"
    raise ConfigError(
        f"{full} is {budget:g}",
        key=full,
        problem=f"but {len(over)} of {len(items)} samples are longer. The longest is {called} with "
        f"{size:.7g}{unit}",
        fix=f"Make room for it: {ways}",
    )


def read_shapes(path: str, key: str = "shape_file") -> Shapes:
    """Read lines such as `utt1 163840` or `utt1 512,80` of the file that a key names.

    Raises:
        ConfigError: The file is missing or empty, or a line is of another form.
    """
    import numpy as np

    if not Path(path).is_file():
        raise ConfigError(
            key=key,
            value=path,
            problem="which does not exist",
            fix="Run the stage collect_stats first.",
        )
    # Packed, since a list of floats takes four times as much for millions of lines.
    ends, frames, bins = ["", ""], array("d"), array("d")
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(map(str.rstrip, file), start=1):
            ends[1], _, shape = line.rpartition(" ")
            try:
                sizes = [int(size) for size in shape.split(",")]
            except ValueError:
                raise ConfigError(
                    f"{path}:{number} is {line!r:.80}, but must be an id and a shape, such as "
                    "utt1 512,80.",
                    fix="Run the stage collect_stats again.",
                ) from None
            ends[0] = ends[0] or ends[1]
            frames.append(sizes[0])
            bins.append(math.prod(sizes))
    return Shapes((ends[0], ends[1]), np.array(frames), np.array(bins))


def left_in(seconds: "Floats | None", config: LoaderConfig, n_items: int, key: str) -> "Ints":
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
            key=key,
            problem=f": {said}; none is left",
            fix="Durations are in seconds; correct these.",
        )
    logger.info("%s: %s", key, said)
    return items
