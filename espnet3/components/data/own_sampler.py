"""Samplers of the user's own, which give the order of samples or whole batches."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from espnet3.components.data.dealing import Limit
from espnet3.components.data.sample_seed import global_rngs_kept
from espnet3.components.data.selection import tickets_of
from espnet3.config.instantiate import instantiate
from espnet3.config.resolve import resolved
from espnet3.config.sources import set_in
from espnet3.config.targets import BadTarget, locate, signature_of
from espnet3.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

    from espnet3.config.load import LoadedConfig

    Ints = np.ndarray[Any, np.dtype[np.int64]]


class OwnBatches:
    """The batches that a sampler gives.

    It is asked for those of all ranks, on each of them, with the global random generators seeded
    from the seed and the epoch, so that all ranks get the same answer.

    Args:
        sampler: Yields indices, or lists of them if `batch_size` is None; its `set_epoch(epoch)`
            is called if it has one.
        n_items: Indices are below this number.
        seed: Of the experiment.
        batch_size: Samples of a batch.
        drop_last: With a `batch_size`, leave out what does not fill a batch.
        key: Of the sampler in the config.
    """

    def __init__(
        self,
        sampler: Any,
        *,
        n_items: int,
        seed: int,
        batch_size: int | None = None,
        drop_last: bool = False,
        key: str = "dataloader.train.batch_sampler",
    ) -> None:
        self.sampler = sampler
        self.n_items = n_items
        self.seed = seed
        self.batch_size = batch_size
        # Whatever a sampler of batches goes by: none of them gets more than it had.
        self.limit = Limit(batch_size or 1)
        self.drop_last = drop_last
        self.key = key
        n_replicas = getattr(sampler, "num_replicas", 1)
        if n_replicas != 1:
            raise ConfigError(
                f"{key}, a {type(sampler).__name__}, deals to {n_replicas} ranks itself, but "
                "samplers are dealt out by us. Let it give the batches of all: num_replicas: 1"
            )

    def batches(self, epoch: int) -> list["Ints"]:
        """Return the batches of all ranks.

        Raises:
            ConfigError: The sampler gives none, or what is no index.
        """
        import numpy as np

        if callable(set_epoch := getattr(self.sampler, "set_epoch", None)):
            set_epoch(epoch)
        with global_rngs_kept() as seed:
            seed(self.seed, epoch)
            given = list(self.sampler)
        lists = given if self.batch_size is None else list(self._cut(given))
        batches = [self._checked(batch) for batch in lists]
        if not batches:
            raise ConfigError(f"{self.key}, a {type(self.sampler).__name__}, gives no batches.")
        tickets = tickets_of(np.concatenate(batches), self.n_items)
        return np.split(tickets, np.cumsum([len(batch) for batch in batches])[:-1])

    def _cut(self, indices: list[Any]) -> Iterator[list[Any]]:
        size = self.batch_size or len(indices)
        for start in range(0, len(indices), size):
            batch = indices[start : start + size]
            if len(batch) == size or not self.drop_last:
                yield batch

    def _checked(self, batch: Any) -> "Ints":
        import numpy as np

        try:
            array = np.asarray(batch)
        except (TypeError, ValueError):
            array = np.empty(0)
        if array.ndim != 1 or not array.size or array.dtype.kind not in "iu":
            wanted = "a list of indices" if self.batch_size is None else "an index"
            raise ConfigError(
                f"{self.key}, a {type(self.sampler).__name__}, gave {batch!r:.80} instead of "
                f"{wanted}. Write one that yields lists as a batch_sampler, one that yields single "
                "indices as a sampler with a batch_size."
            )
        if array.min() < 0 or array.max() >= self.n_items:
            raise ConfigError(
                f"{self.key}, a {type(self.sampler).__name__}, gave the indices {batch!r:.80}, but "
                f"the dataset has {self.n_items} items, counted from 0."
            )
        return array.astype(np.int64)


def build_sampler(
    node: Any,
    offered: Mapping[str, Any],
    *,
    key: str,
    loaded: "LoadedConfig | None" = None,
) -> Any:
    """Build a sampler from its `_target_`, or return one that was built already.

    Args:
        node: The block of the config.
        offered: Arguments that it gets if its signature has them and the block does not set them.
        key: Dotted key of the block.
        loaded: Where the block comes from.

    Raises:
        ConfigError: There is no such target, or its arguments do not fit.
    """
    plain = resolved(node, prefix=key, loaded=loaded)
    if not isinstance(plain, Mapping):
        if hasattr(node, "__iter__") and not isinstance(node, str):
            return node
        raise ConfigError(
            f"{key} is {node!r:.80}{set_in(key, loaded)}, which gives no indices. Write a mapping "
            "with the _target_ of your class: {_target_: src.sampler.MySampler}"
        )
    known = _argument_names(plain.get("_target_"))
    more = {name: value for name, value in offered.items() if name in known and name not in plain}
    return instantiate(node, key=key, loaded=loaded, **more)


def _argument_names(target: Any) -> set[str]:
    try:
        signature = signature_of(locate(target) if isinstance(target, str) else target)
    except BadTarget:
        return set()  # instantiate() tells what is wrong
    return set(signature.parameters) if signature else set()
