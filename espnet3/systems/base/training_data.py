"""What a training config says of data: its datasets, built from the `dataset` block."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from espnet3.components.data.data_organizer import DataOrganizer
from espnet3.config.instantiate import instantiate
from espnet3.config.resolve import resolved
from espnet3.config.sources import set_in
from espnet3.errors import ConfigError

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

ORGANIZER = f"{DataOrganizer.__module__}.{DataOrganizer.__qualname__}"

_EXAMPLE = "train: [{data_src: kaldi, data_src_args: {path: data/train}}]"


def build_organizer(loaded: "LoadedConfig") -> Any:
    """Build the `dataset` block, which is a `DataOrganizer` unless it has another `_target_`.

    Raises:
        ConfigError: there is no such block, or it is wrong.
    """
    block = resolved(loaded.config, loaded=loaded).get("dataset")
    if not isinstance(block, Mapping):
        raise ConfigError(
            f"dataset is {block!r}{set_in('dataset', loaded)}, so there is nothing to train on. "
            f"Write: dataset: {{{_EXAMPLE}}}"
        )
    if block.get("_target_", ORGANIZER) == ORGANIZER:
        recipe_dir = loaded.config.get("recipe_dir")
        block = {"_target_": ORGANIZER, "recipe_dir": recipe_dir, **block}
    return instantiate(block, key="dataset", loaded=loaded)


def training_set(organizer: Any, loaded: "LoadedConfig") -> Any:
    """Return the training set.

    Raises:
        ConfigError: there is none, or it has no items.
    """
    dataset = organizer.train
    if dataset is None or len(dataset) == 0:
        raise ConfigError(
            f"dataset.train{set_in('dataset.train', loaded)} has nothing to train on. Write: "
            f"dataset: {{{_EXAMPLE}}}"
        )
    return dataset
