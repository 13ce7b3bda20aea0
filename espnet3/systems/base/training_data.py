"""Build the datasets of a training config, and compare the fields of those that are combined.

Of each dataset one sample is read, the first. Differences further on are reported by the batch.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

from espnet3.components.data.collate import PadCollate
from espnet3.components.data.data_organizer import DataOrganizer, check_datasets
from espnet3.components.data.dataset import TransformedDataset
from espnet3.config.instantiate import instantiate
from espnet3.config.sources import names_places, place_of
from espnet3.errors import ConfigError
from espnet3.systems.base.given_parts import NOTHING_GIVEN, SPLITS, GivenParts
from espnet3.text import first_few
from espnet3.trainer.launching.process_rank import process_rank

if TYPE_CHECKING:
    from espnet3.components.data.loader_config import DataLoaderConfig
    from espnet3.config.load import LoadedConfig

logger = logging.getLogger(__name__)

ORGANIZER = f"{DataOrganizer.__module__}.{DataOrganizer.__qualname__}"

_EXAMPLE = "train: [{data_src: kaldi, data_src_args: {path: data/train}}]"
_COLLATE = f"{PadCollate.__module__}.{PadCollate.__qualname__}"
_SHOWN = 3


@names_places
def check_data(loaded: "LoadedConfig", given: GivenParts = NOTHING_GIVEN) -> None:
    """Check the `dataset` block, as far as it is used; nothing of it is built.

    Raises:
        ConfigError: it says nothing of training, or an entry is wrong.
    """
    block = loaded.plain().get("dataset")
    is_empty = not isinstance(block, Mapping) or has_split(block, "train") is False
    if given.train is None and is_empty:
        _refuse_empty(block)
    check_datasets(loaded, tuple(name for name in SPLITS if given.split(name) is None))


def has_split(block: Any, split: str, given: GivenParts = NOTHING_GIVEN) -> bool | None:
    """Tell whether there is data of a split; None where an organizer of one's own must know.

    Args:
        block: `dataset` of the config.
        split: `train` or `valid`.
        given: data that comes as objects.
    """
    if given.split(split) is not None:
        return True
    if block is None and given.train is not None:
        return False
    if not isinstance(block, Mapping) or block.get("_target_", ORGANIZER) != ORGANIZER:
        return None
    return bool(block.get(split))


def build_sets(values: Mapping[str, Any], given: GivenParts = NOTHING_GIVEN) -> dict[str, Any]:
    """Build `train` and `valid` of a config, or take what was given; None where there is none.

    A loader that was given may know its samples alone: its dataset is None as well.

    Raises:
        ConfigError: there is no training set, or it has no items.
        EspnetError: what an entry of `dataset` raises.
    """
    block = values.get("dataset")
    # Built at most once, and not at all where both splits were given.
    organizer = cache(lambda: _build_organizer(block, values.get("recipe_dir")))

    def build(name: str) -> Any:
        if (split := given.split(name)) is not None:
            return split.dataset
        if has_split(block, name, given) is False and given.train is not None:
            return None
        return getattr(organizer(), name)

    sets = {name: build(name) for name in SPLITS}
    if given.train is None and (sets["train"] is None or len(sets["train"]) == 0):
        _refuse_empty(block)
    return sets


def _build_organizer(block: Any, recipe_dir: Any) -> Any:
    """Build the `dataset` block, which is a `DataOrganizer` unless it has another `_target_`."""
    if not isinstance(block, Mapping):
        _refuse_empty(block)
    if block.get("_target_", ORGANIZER) == ORGANIZER:
        block = {"_target_": ORGANIZER, "recipe_dir": recipe_dir, **block}
    return instantiate(block, key="dataset")


def _refuse_empty(block: Any) -> NoReturn:
    fix = f"Write: dataset: {{{_EXAMPLE}}}"
    if not isinstance(block, Mapping):
        problem = "so there is nothing to train on"
        raise ConfigError(key="dataset", value=block, problem=problem, fix=fix)
    raise ConfigError(key="dataset.train", problem="has nothing to train on", fix=fix)


def check_fields(sets: Mapping[str, Any], loader: "DataLoaderConfig", *, is_new: bool) -> None:
    """Refuse, or warn of, datasets whose samples do not have the same fields.

    Args:
        sets: `train` and `valid`, as they were built; None for one that is not.
        loader: how batches are made.
        is_new: nothing is trained yet. A training that has got this far may continue.

    Raises:
        ConfigError: our own function cannot make a batch of them.
    """
    block = loader.collate_fn
    target = block.get("_target_") if isinstance(block, Mapping) else block
    is_ours = target in (None, _COLLATE)
    given = dict(block) if isinstance(block, Mapping) else {}
    dropped = set(given.get("drop") or ()) if is_ours else set[str]()
    for split, dataset in sets.items():
        found = _first_samples(dataset)  # nothing of a set that is None
        odd = _odd_fields(found, dropped)
        if not odd:
            continue
        text = _described(split, odd)
        if is_ours and is_new and not found.problem and loader.for_split(split).batch_size != 1:
            leaving = {"_target_": _COLLATE, **given, "drop": sorted({*dropped, *odd})}
            raise ConfigError(f"{text} A batch of both cannot be made. {_advice(leaving)}")
        _warn(f"{text}{found.problem}")


def warn_of_fields(split: str, dataset: Any) -> None:
    """Warn of fields that only some of the datasets of a split have."""
    found = _first_samples(dataset)
    if odd := _odd_fields(found, set()):
        _warn(f"{_described(split, odd)}{found.problem}")


@dataclass(frozen=True)
class _Found:
    """The fields of the first sample of each dataset, by name."""

    fields: Mapping[str, Sequence[str]]
    problem: str = ""
    """Why these are the fields before the transforms."""


def _first_samples(dataset: Any) -> _Found:
    parts, names = getattr(dataset, "datasets", None), getattr(dataset, "names", None)
    if not parts or not names or len(parts) < 2:
        return _Found({})
    named = dict(zip(names, parts, strict=True))
    # With transforms first, as they may add or drop fields.
    try:
        return _Found({name: _fields_of_first(part) for name, part in named.items()})
    except Exception as error:  # such as a transform that misses a field
        problem = f" A sample cannot be made: {str(error) or type(error).__name__}"
    found = {}
    for name, part in named.items():
        try:
            found[name] = _fields_of_first(_without_transforms(part))
        except Exception:
            continue  # reported, or skipped, when it is read
    return _Found(found, problem)


def _without_transforms(dataset: Any) -> Any:
    while isinstance(dataset, TransformedDataset):
        dataset = dataset.dataset
    return dataset


def _fields_of_first(dataset: Any) -> list[str]:
    sample = dataset[0]
    return [str(key) for key in sample] if isinstance(sample, Mapping) else []


def _odd_fields(found: _Found, dropped: set[str]) -> dict[str, tuple[list[str], list[str]]]:
    """Return the datasets that have a field, and those that have not, by field."""
    known = {name: fields for name, fields in found.fields.items() if fields}
    every = dict.fromkeys(field for fields in known.values() for field in fields)
    odd = {}
    for field in every:
        has = [name for name, fields in known.items() if field in fields]
        if len(has) < len(known) and field not in dropped:
            odd[field] = (has, [name for name in known if name not in has])
    return odd


def _described(split: str, odd: Mapping[str, tuple[Sequence[str], Sequence[str]]]) -> str:
    groups: dict[tuple[str, str], list[str]] = {}
    for field, (has, lacks) in odd.items():
        groups.setdefault((_listed(has), _listed(lacks)), []).append(field)
    parts = [f"{has} has {', '.join(f)}, and {no} has not" for (has, no), f in groups.items()]
    return f"The datasets of dataset.{split} have different fields: {'; '.join(parts)}."


def _listed(names: Sequence[str]) -> str:
    return first_few((f"{name}{place_of(name)}" for name in names), _SHOWN)


def _advice(collate: Mapping[str, Any]) -> str:
    import yaml

    # On one line, since it is to be pasted into a shell.
    flow = yaml.safe_dump(dict(collate), default_flow_style=True, width=10_000, sort_keys=False)
    return (
        "Give all samples the same fields, in the datasets or with a transform, or leave these "
        f"out: 'dataloader.collate_fn={flow.strip()}'"
    )


@cache
def _warn(text: str) -> None:
    """Say it once: the check, the stage and its statistics look at the same data."""
    if process_rank().is_first:
        logger.warning("%s", text)
