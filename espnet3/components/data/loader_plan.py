"""Choose how the batches of a split are made, from its settings and its data."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from espnet3.components.data.batching import BatchPlan, CountBatches, LengthBatches, Order
from espnet3.components.data.dataset import CombinedDataset
from espnet3.components.data.lengths import LengthSource, left_in, name_in, place_of
from espnet3.components.data.loader_config import DEFAULT_MAX_PADDING, LoaderConfig, check_loader
from espnet3.components.data.own_sampler import OwnBatches, build_sampler
from espnet3.components.data.selection import Part
from espnet3.config.fingerprint import digest
from espnet3.config.resolve import resolved
from espnet3.config.sources import join_key, set_in
from espnet3.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

    Floats = np.ndarray[Any, np.dtype[np.float64]]
    Ints = np.ndarray[Any, np.dtype[np.int64]]

logger = logging.getLogger(__name__)

# What the batches of an epoch depend on.
_SETTINGS = (
    "batch_size", "batch_seconds", "batch_bins", "max_padding", "drop_last", "min_seconds",
    "max_seconds", "buffer_shards",
)  # fmt: skip


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
    check_loader(config, key, source.loaded)
    n_items = 0 if source.dataset is None else len(source.dataset)
    if not n_items:
        raise ConfigError(
            f"dataset.{split} has no samples, so there is nothing for {key} to make batches of. "
            f"Add a dataset: {split}: [{{data_src: SOURCE, data_src_args: {{...}}}}]"
        )
    seconds = _seconds(source)
    items = source.without_empty(left_in(seconds, config, n_items, key, source.loaded))
    shuffle = split == "train" if config.shuffle is None else config.shuffle
    parts = _parts(source.dataset, items, key)
    inputs = {
        "n_items": n_items,
        "seed": seed,
        "shuffle": shuffle,
        "seconds": None if seconds is None else digest({"seconds": seconds}),
        "weights": [part.weight for part in parts],
        **{name: getattr(config, name) for name in _SETTINGS},
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
    parts: list[Part]

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
            build_sampler(node, offered, key=key, loaded=source.loaded),
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
        from espnet3.components.data.shard_shuffle import locality_of, shard_order

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
                f"{key} is set{set_in(key, self.source.loaded)}, which chooses the samples, so "
                "min_seconds and max_seconds do nothing. Remove them."
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


def _parts(dataset: Any, items: "Ints", key: str) -> list[Part]:
    if not isinstance(dataset, CombinedDataset):
        return [Part(items)]
    parts = []
    for indices, weight, name in zip(dataset.ranges(), dataset.weights, dataset.names, strict=True):
        own = items[(items >= indices.start) & (items < indices.stop)]
        if len(own) and round(weight * len(own)) == 0:
            raise ConfigError(
                f"{name}.weight is {weight:g}, which gives {key} none of its {len(own)} samples. "
                f"Write at least weight: {1 / len(own):.2g}"
            )
        parts.append(Part(own, weight))
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
        f"{full} is {budget:g}{set_in(full, source.loaded)}, but {len(over)} of {len(items)} "
        f"samples are longer. The longest is {called} with {size:.7g}{unit}. Make room for it: "
        f"{ways}"
    )
