"""The `dataloader` block: how samples become batches."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from espnet3.components.data.collate import CollateFn, PadCollate
from espnet3.config.instantiate import build_function, find_function
from espnet3.config.schema import FrozenConfig, validate
from espnet3.config.sources import join_key
from espnet3.errors import ConfigError

DEFAULT_MAX_PADDING = 0.08

_COLLATE = "dataloader.collate_fn"

_SIZES = ("batch_size", "batch_seconds", "batch_bins")
# What only makes sense for training is not taken over by a `valid` that is not written.
_OF_TRAINING = ("shuffle", "drop_last", "sampler", "batch_sampler", "min_seconds", "max_seconds")


class LoaderConfig(FrozenConfig):
    """The batches of one split. Sizes are those of one rank's batch, unless batch_is_global."""

    batch_size: PositiveInt | None = None
    """Samples of a batch; a limit where batch_seconds or batch_bins is set as well."""
    batch_seconds: PositiveFloat | None = None
    """Seconds of audio of a batch, padding included."""
    batch_bins: PositiveInt | None = None
    """Numbers in a batch by the shapes of shape_file, padding included."""
    shape_file: str | tuple[str, ...] | None = None
    """What collect_stats wrote, such as stats/train/speech_shape; of several the sum counts."""
    sample_rate: PositiveInt | None = None
    """Makes seconds of the first number of shape_file, where a dataset does not know durations."""
    batch_is_global: bool = False
    """Sizes are those of the batch of all ranks together, who share its samples: so many steps, and
    the same batches, on any number of devices."""
    max_padding: float | None = Field(default=None, gt=0, lt=1)
    """Most of a batch that may be padding; 0.08 if unset. With batch_size alone, unset means any,
    in random batches."""
    shuffle: bool | None = None
    """Unset: true for training, false for validation."""
    drop_last: bool = False
    """Leave out what does not fill a batch on each rank; otherwise the last batches are smaller."""
    min_seconds: NonNegativeFloat | None = None
    """Leave shorter samples out."""
    max_seconds: PositiveFloat | None = None
    """Leave longer samples out."""
    on_error: Literal["raise", "skip"] = "raise"
    """What to do when a sample cannot be read: stop, or log it and continue without it."""
    max_errors: NonNegativeInt | None = 100
    """With `on_error: skip`, stop after so many of a process; null for any number."""
    buffer_shards: NonNegativeInt = 16
    """Shards of a corpus in shards that are read and shuffled together; 0 reads at random."""
    sampler: Any = None
    """Your own order, by _target_: yields indices; set_epoch(epoch) is called if it has one."""
    batch_sampler: Any = None
    """Your own batches, by _target_: yields lists of indices of all ranks; we deal them out."""
    num_workers: NonNegativeInt = 0
    """Processes that read samples, for each rank; 0 reads in the training process itself."""
    prefetch_factor: PositiveInt | None = None
    """Batches that each of them reads in advance; unset: 2."""
    persistent_workers: bool | None = None
    """Keep them from epoch to epoch; unset: true."""
    pin_memory: bool | None = None
    """Put batches where a GPU can fetch them quickly; unset: where there is one."""
    timeout: NonNegativeFloat = 0
    """Seconds to wait for a batch of a worker; 0 for ever."""
    multiprocessing_context: Literal["fork", "spawn", "forkserver"] | None = None
    """How workers are started; unset: as torch does."""
    worker_init_fn: Any = None
    """Called with the worker's number when it starts: a dotted path, or by _target_."""


class DataLoaderConfig(FrozenConfig):
    """The `dataloader` block."""

    collate_fn: Any = None
    """Makes a batch of a list of samples: a dotted path, or by _target_; unset: PadCollate."""
    train: LoaderConfig | None = None
    """Batches of the training set."""
    valid: LoaderConfig | None = None
    """Batches of the validation set; unset: of the same size as those of training."""

    @classmethod
    def from_config(cls, values: Any) -> "DataLoaderConfig":
        """Check a block, and what its settings have to do with each other.

        Raises:
            ConfigError: A key is unknown, a value is wrong, or two do not go together.
        """
        config = validate(cls, values, prefix="dataloader")
        for split in ("train", "valid"):
            own = getattr(config, split)
            if own is not None:
                check_loader(own, f"dataloader.{split}")
        return config

    def for_split(self, split: str) -> LoaderConfig:
        """Return the settings of `train` or `valid`, which takes after `train` if it is not set."""
        if split == "train":
            return self.train or LoaderConfig()
        if self.valid is not None:
            return self.valid
        train = self.train or LoaderConfig()
        unset = {name: LoaderConfig.model_fields[name].default for name in _OF_TRAINING}
        return train.model_copy(update={**unset, "shape_file": _of_valid(train.shape_file)})


def _of_valid(shape_file: Any) -> Any:
    """Return `stats/valid/x` for `stats/train/x`, as collect_stats names both."""
    if shape_file is None:
        return None
    if not isinstance(shape_file, str):
        return tuple(_of_valid(file) for file in shape_file)
    path = Path(shape_file)
    is_train = path.parent.name == "train"
    return str(path.parent.with_name("valid") / path.name) if is_train else shape_file


def check_loader(config: LoaderConfig, key: str = "dataloader.train") -> None:
    """Refuse settings that do not go together.

    Raises:
        ConfigError: The message has the line to write.
    """

    def refuse(name: str, problem: str) -> None:
        full = join_key(key, name)
        raise ConfigError(f"{full} is set", key=full, problem=problem)

    sizes = [name for name in _SIZES if getattr(config, name) is not None]
    if config.batch_sampler is not None:
        others = [*sizes, *(["sampler"] if config.sampler is not None else [])]
        if others:
            refuse(others[0], f"but batch_sampler makes the batches. Remove {', '.join(others)}.")
    elif not sizes:
        raise ConfigError(
            key=key,
            problem="does not say how large a batch is",
            fix="Write batch_size: 16 (samples) or batch_seconds: 120 (of audio, with padding).",
        )
    elif config.sampler is not None and sizes != ["batch_size"]:
        refuse("sampler", "which gives the order, so batches go by count. Write: batch_size: 16")
    if "batch_bins" in sizes and "batch_seconds" in sizes:
        refuse("batch_bins", "and so is batch_seconds. Remove one of them.")
    if "batch_bins" in sizes and config.shape_file is None:
        refuse(
            "batch_bins",
            "but no shape_file. Run the stage collect_stats, and write: "
            "shape_file: ${stats_dir}/train/speech_shape",
        )
    if config.shape_file is not None and config.sample_rate is None and "batch_bins" not in sizes:
        refuse("shape_file", "which needs batch_bins: 4000000, or sample_rate: 16000 for seconds.")
    _check_workers(config, refuse)


def _check_workers(config: LoaderConfig, refuse: Any) -> None:
    if config.num_workers:
        return
    for name in ("prefetch_factor", "timeout", "multiprocessing_context", "worker_init_fn"):
        if getattr(config, name):
            refuse(name, "but there are no workers to use it. Write num_workers: 2, or remove it.")
    if config.persistent_workers:
        refuse("persistent_workers", "but there are none. Write num_workers: 2, or remove it.")


def build_collate(node: Any) -> CollateFn:
    """Return the function that a config names, or our own if it names none.

    Raises:
        ConfigError: There is no such function, or what was built is none.
    """
    return PadCollate() if node is None else build_function(node, key=_COLLATE)


def check_collate(node: Any) -> None:
    """Refuse a dotted path that leads nowhere; what a `_target_` names is built later.

    Raises:
        ConfigError: There is no such function.
    """
    find_function(node, key=_COLLATE)
