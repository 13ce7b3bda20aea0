"""Adapt user-made loaders: torch's DataLoader, and any iterable of batches.

What a DataLoader says of its dataset, batches, order and workers is taken over into a loader of
ours, which splits batches over ranks and resumes mid-epoch. One that cannot be taken apart into
these, over a stream of samples for instance, is used as it is.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from espnet3.components.data.batching import world
from espnet3.components.data.collate import CollateFn
from espnet3.components.data.loader_config import LoaderConfig
from espnet3.components.data.random_numbers import global_rngs_kept
from espnet3.errors import ConfigError

logger = logging.getLogger(__name__)

_END = object()


@dataclass(frozen=True)
class TakenOver:
    """The parts of a DataLoader, for a loader of ours."""

    dataset: Any
    config: LoaderConfig
    collate_fn: CollateFn
    ignored: tuple[str, ...] = ()
    """What of it has no effect, each with the reason."""


def is_loader(value: Any) -> bool:
    """Tell a loader, which gives batches, from a dataset, which gives samples by position."""
    from torch.utils.data import DataLoader, IterableDataset

    if isinstance(value, DataLoader):
        return True
    is_stream = hasattr(value, "__iter__") and not hasattr(value, "__getitem__")
    return (is_stream or isinstance(value, IterableDataset)) and not isinstance(value, Mapping)


def take_over(loader: Any) -> TakenOver | None:
    """Return the parts of a DataLoader; None if it is of another kind, to be used as it is."""
    from torch.utils.data import DataLoader, IterableDataset

    # A subclass with an __iter__ of its own may give other batches than its parts would.
    is_plain = isinstance(loader, DataLoader) and type(loader).__iter__ is DataLoader.__iter__
    if not is_plain or isinstance(loader.dataset, IterableDataset):
        return None
    if loader.batch_sampler is None or not hasattr(loader.dataset, "__len__"):
        return None
    settings = _batches_of(loader)
    if settings is None:
        return None
    ignored = []
    if loader.generator is not None:
        ignored.append("generator (the order follows from the seed of the config)")
    config = LoaderConfig(**settings, **_workers_of(loader))
    return TakenOver(loader.dataset, config, loader.collate_fn, tuple(ignored))


def _batches_of(loader: Any) -> dict[str, Any] | None:
    from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

    batches = loader.batch_sampler
    if type(batches) is not BatchSampler:
        return {"batch_sampler": batches} if hasattr(batches, "__len__") else None
    settings = {"batch_size": batches.batch_size, "drop_last": batches.drop_last}
    order: Any = batches.sampler
    if type(order) is SequentialSampler:
        return {**settings, "shuffle": False}
    is_whole = type(order) is RandomSampler and not order.replacement
    # With num_samples it draws a part of the dataset, which plain shuffling would not.
    if is_whole and order.num_samples == len(loader.dataset):
        return {**settings, "shuffle": True}
    return {**settings, "sampler": order} if hasattr(order, "__len__") else None


def _workers_of(loader: Any) -> dict[str, Any]:
    # False is the default of torch, so it says nothing about what the user wants.
    settings: dict[str, Any] = {"pin_memory": loader.pin_memory or None}
    if loader.num_workers:
        context = loader.multiprocessing_context
        method = getattr(context, "get_start_method", lambda: context)()
        settings |= {
            "num_workers": loader.num_workers,
            "prefetch_factor": loader.prefetch_factor,
            "persistent_workers": loader.persistent_workers or None,
            "timeout": loader.timeout,
            "worker_init_fn": loader.worker_init_fn,
            "multiprocessing_context": method,
        }
    return settings


@dataclass
class ForeignLoader:
    """A loader of the user's own, as it is, with a position in the epoch.

    After a resume in mid-epoch the batches that were done are read again and left out. That is the
    same training if it gives the same batches in an epoch each time; it is asked for them with the
    global random generators seeded from the seed and the epoch.
    """

    loader: Any
    seed: int
    key: str = "train"
    epoch: int = 0
    batch_sampler: None = field(default=None, init=False)
    _n_given: int = field(default=0, init=False)
    _n_left_out: int = field(default=0, init=False)

    @property
    def sampler(self) -> "ForeignLoader":
        """The sampler whose `set_epoch` Lightning calls."""
        return self

    @property
    def dataset(self) -> Any:
        """That of the loader, if it has one."""
        return getattr(self.loader, "dataset", None)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, and set it wherever in the loader it is asked for."""
        if epoch != self.epoch:
            self._n_left_out = self._n_given = 0
        self.epoch = epoch
        for name in ("sampler", "batch_sampler", "dataset"):
            part = getattr(self.loader, name, None)
            if callable(set_epoch := getattr(part, "set_epoch", None)):
                set_epoch(epoch)

    def __len__(self) -> int:
        """Return the batches of an epoch.

        Raises:
            TypeError: it does not know how many there are.
        """
        return len(self.loader)

    @property
    def has_length(self) -> bool:
        """Tell whether it knows how many batches an epoch has."""
        try:
            return len(self.loader) >= 0
        except (TypeError, NotImplementedError, AttributeError):
            return False

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator that does nothing until it is asked for the first batch."""
        n_ranks, _ = world()
        if n_ranks > 1 and self.key == "train":
            raise ConfigError(shared_by_none(self.loader, self.key, n_ranks))
        return self._batches()

    def _batches(self) -> Iterator[Any]:
        n_left_out, self._n_left_out = self._n_left_out, 0
        self._n_given = 0
        # It ends before the first yield: the training draws from these generators between batches.
        with global_rngs_kept() as seed:
            seed(self.seed, self.epoch)
            source = iter(self.loader)
            batch = next(source, _END)
            while batch is not _END and self._n_given < n_left_out:
                self._n_given += 1
                batch = next(source, _END)
        while batch is not _END:
            self._n_given += 1
            yield batch
            batch = next(source, _END)

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the epoch."""
        # Lightning fetches a batch ahead if it cannot know which is the last.
        n_done = self._n_given if self.has_length else max(0, self._n_given - 1)
        return {"epoch": self.epoch, "n_done": n_done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume after the batches that were done."""
        if "n_done" not in state:
            logger.warning(
                "%s: the checkpoint was written with a loader of another kind, whose position says "
                "nothing here: the epoch starts over.", self.key,
            )  # fmt: skip
            return
        self.epoch, self._n_left_out = int(state["epoch"]), int(state["n_done"])
        if self._n_left_out:
            logger.info(
                "%s: the first %d batches of the epoch are read again and left out",
                self.key, self._n_left_out,
            )  # fmt: skip


def shared_by_none(loader: Any, key: str, n_ranks: int) -> str:
    """Return why a loader of the user's own cannot train on several ranks, and what can."""
    return (
        f"{key} is a {type(loader).__name__} whose batches cannot be dealt out, so that each of "
        f"{n_ranks} processes would train on all of them. Give a dataset with __len__ and "
        "__getitem__, or a DataLoader over one; or train in one process: trainer: {devices: 1}"
    )
