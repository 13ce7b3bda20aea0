"""Build the datasets of a training config."""

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from espnet3.components.data.data_organizer import DataOrganizer
from espnet3.config.instantiate import instantiate
from espnet3.config.sources import set_in
from espnet3.errors import ConfigError, EspnetError
from espnet3.systems.base.given_parts import NOTHING_GIVEN, SPLITS, GivenParts

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

ORGANIZER = f"{DataOrganizer.__module__}.{DataOrganizer.__qualname__}"

_EXAMPLE = "train: [{data_src: kaldi, data_src_args: {path: data/train}}]"
_ENTRY = re.compile(r"^dataset\.(?:train|valid)\.\d+(?:\.\w+)*(?! \(set in)")


def build_organizer(loaded: "LoadedConfig") -> Any:
    """Build the `dataset` block, which is a `DataOrganizer` unless it has another `_target_`.

    Raises:
        ConfigError: there is no such block, or it is wrong.
    """
    block = loaded.plain().get("dataset")
    if not isinstance(block, Mapping):
        raise ConfigError(
            f"dataset is {block!r}{set_in('dataset', loaded)}, so there is nothing to train on. "
            f"Write: dataset: {{{_EXAMPLE}}}"
        )
    if block.get("_target_", ORGANIZER) == ORGANIZER:
        recipe_dir = loaded.config.get("recipe_dir")
        block = {"_target_": ORGANIZER, "recipe_dir": recipe_dir, **block}
    return instantiate(block, key="dataset", loaded=loaded)


def check_data(loaded: "LoadedConfig", given: GivenParts = NOTHING_GIVEN) -> None:
    """Check the `dataset` block, as far as it is used; nothing of it is built.

    Raises:
        ConfigError: it says nothing of training, or an entry is wrong.
    """
    from espnet3.components.data.data_organizer import check_datasets

    block = loaded.plain().get("dataset")
    if given.train is None:
        if not isinstance(block, Mapping):
            build_organizer(loaded)  # has the right words
        if has_split(loaded, "train") is False:
            raise ConfigError(_nothing(loaded))
    check_datasets(loaded, tuple(name for name in SPLITS if given.split(name) is None))


def has_split(loaded: "LoadedConfig", split: str, given: GivenParts = NOTHING_GIVEN) -> bool | None:
    """Tell whether there is data of a split; None where an organizer of one's own must know."""
    if given.split(split) is not None:
        return True
    block = loaded.plain().get("dataset")
    if block is None and given.train is not None:
        return False
    if not isinstance(block, Mapping) or block.get("_target_", ORGANIZER) != ORGANIZER:
        return None
    return bool(block.get(split))


def build_sets(loaded: "LoadedConfig", given: GivenParts = NOTHING_GIVEN) -> dict[str, Any]:
    """Build `train` and `valid`, or take what was given; None where there is none.

    A loader that was given may know its samples alone: its dataset is None as well.

    Raises:
        ConfigError: there is no training set, or it has no items.
        EspnetError: what an entry of `dataset` raises, with its file and line.
    """
    organizer = cache(lambda: build_organizer(loaded))
    sets = {name: _build_set(name, organizer, loaded, given) for name in SPLITS}
    if given.train is None and (sets["train"] is None or len(sets["train"]) == 0):
        raise ConfigError(_nothing(loaded))
    return sets


def _build_set(
    name: str, organizer: Callable[[], Any], loaded: "LoadedConfig", given: GivenParts
) -> Any:
    split = given.split(name)
    if split is not None:
        return split.dataset
    if has_split(loaded, name, given) is False and given.train is not None:
        return None
    try:
        return getattr(organizer(), name)
    except EspnetError as error:
        raise _placed(error, loaded) from error


def _placed(error: EspnetError, loaded: "LoadedConfig") -> EspnetError:
    """Return an error that begins with the key of an entry with the place of that key."""
    text = str(error)
    match = _ENTRY.search(text)
    if match is None:
        return error
    return type(error)(f"{match[0]}{set_in(match[0], loaded)}{text[match.end() :]}")


def _nothing(loaded: "LoadedConfig") -> str:
    return (
        f"dataset.train{set_in('dataset.train', loaded)} has nothing to train on. Write: "
        f"dataset: {{{_EXAMPLE}}}"
    )
