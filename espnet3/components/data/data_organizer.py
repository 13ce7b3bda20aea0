"""The `dataset` block: its entries, and the datasets of each split, built when asked for."""

import os
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pydantic import PositiveFloat

from espnet3.components.data.dataset import (
    CombinedDataset,
    Dataset,
    Transform,
    TransformedDataset,
)
from espnet3.components.data.dataset_module import DataSource
from espnet3.components.data.errors import create_command
from espnet3.components.data.functions import build_function, find_function
from espnet3.config.resolve import resolved
from espnet3.config.schema import FrozenConfig, validate
from espnet3.config.sources import names_places
from espnet3.config.targets import signature_of
from espnet3.errors import ConfigError, EspnetError

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

SPLITS = ("train", "valid", "test")

_KEY = "dataset"
_CLOSE = 0.8
_TARGET = f"{__name__}.DataOrganizer"


class DatasetEntry(FrozenConfig):
    """One dataset of a split."""

    name: str | None = None
    """What a test set is called, also as a folder; others need none."""
    data_src: str | None = None
    """`corpus/task`, a short name such as `kaldi`, a module, or nothing for the recipe's own."""
    data_src_args: dict[str, Any] | None = None
    """The arguments of the module's `Dataset`."""
    transform: Any = None
    """Applied to each sample of this dataset: an object with a `_target_`, or a dotted path."""
    weight: PositiveFloat = 1.0
    """How often each sample comes in an epoch of training: 2 is twice, 0.5 every other epoch."""


class DataOrganizer:
    """Puts the datasets of an experiment together, as the `dataset` block of a config says.

    An entry is a mapping with `name` (test sets only), `data_src` (see `DataSource`),
    `data_src_args` (arguments of the source's `Dataset`), `transform` (a function of a sample) and
    `weight` (training sets only: how often each sample comes in an epoch).
    Where the `Dataset` takes a `recipe_dir` that `data_src_args` do not set, it gets ours.

    Args:
        recipe_dir: The recipe's folder; None for the current one.
        train: Entries that are combined into one dataset.
        valid: Likewise.
        test: Entries, each with a name of its own.
        preprocessor: A function of a sample, applied to all datasets after their own transforms:
            an object, or the dotted path of one.

    Raises:
        ConfigError: An entry is wrong; the message starts with its key.

    Example:
        >>> organizer = DataOrganizer(
        ...     test=[{"name": "clean", "data_src": "kaldi", "data_src_args": {"path": "data/a"}}]
        ... )
        >>> list(organizer.test)  # builds nothing
        ['clean']
    """

    def __init__(
        self,
        recipe_dir: str | os.PathLike[str] | None = None,
        train: Any = None,
        valid: Any = None,
        test: Any = None,
        preprocessor: Any = None,
    ) -> None:
        self.recipe_dir = recipe_dir
        self._train = parse_entries(train, f"{_KEY}.train")
        self._valid = parse_entries(valid, f"{_KEY}.valid")
        entries = parse_entries(test, f"{_KEY}.test", named=True)
        self._preprocessor = _as_function(preprocessor, f"{_KEY}.preprocessor")
        self.test = _TestSets(self, entries)

    @cached_property
    def train(self) -> CombinedDataset | None:
        """The training set, built at the first access; None if the config has none."""
        return self._combine(self._train, f"{_KEY}.train")

    @cached_property
    def valid(self) -> CombinedDataset | None:
        """The validation set, built at the first access; None if the config has none."""
        return self._combine(self._valid, f"{_KEY}.valid")

    def build(self, entry: DatasetEntry, key: str) -> Dataset:
        """Build the dataset of one entry; it is not kept.

        Raises:
            ConfigError: Its source or arguments are wrong, or it has no items.
        """
        dataset = self._construct(entry, key)
        transform = _as_function(entry.transform, f"{key}.transform")
        if transform is None and self._preprocessor is None:
            return dataset
        return TransformedDataset(dataset, transform, self._preprocessor)

    def _combine(self, entries: tuple[DatasetEntry, ...], key: str) -> CombinedDataset | None:
        names = [f"{key}.{i}" for i in range(len(entries))]
        datasets = [self.build(entry, name) for entry, name in zip(entries, names, strict=True)]
        weights = [entry.weight for entry in entries]
        return CombinedDataset(datasets, weights, names) if datasets else None

    def _construct(self, entry: DatasetEntry, key: str) -> Dataset:
        source = DataSource(entry.data_src, self.recipe_dir, f"{key}.data_src")
        kind = source.load("Dataset")
        arguments = _with_recipe_dir(kind, entry.data_src_args or {}, self.recipe_dir)
        source.check_arguments(kind, arguments)
        try:
            dataset = kind(**arguments)
        except EspnetError as error:
            raise error.at(f"{key}.data_src_args") from error
        except Exception as error:
            error.add_note(
                f"Raised while building {key} ({source.name}). If its files are not made yet: "
                f"{create_command()}"
            )
            raise
        return _check_dataset(dataset, key, source.name)


class _TestSets(Mapping[str, Any]):
    """The test sets by name; each is built at its first lookup, and kept."""

    def __init__(self, organizer: DataOrganizer, entries: tuple[DatasetEntry, ...]) -> None:
        self._organizer = organizer
        self._entries = {str(entry.name): (i, entry) for i, entry in enumerate(entries)}
        self._built: dict[str, Dataset] = {}

    def __getitem__(self, name: str) -> Dataset:
        if name not in self._built:
            i, entry = self._entries[name]
            self._built[name] = self._organizer.build(entry, f"{_KEY}.test.{i}")
        return self._built[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<test sets: {', '.join(self._entries) or 'none'}>"


@names_places
def check_datasets(
    loaded: "LoadedConfig", splits: tuple[str, ...] = SPLITS, *, provided: bool = False
) -> None:
    """Check the entries of a config's `dataset` block, with file and line in the errors.

    The modules of the sources are imported; no dataset is built and no data is read.

    Args:
        loaded: The config.
        splits: Those to check.
        provided: A provider of the user builds the datasets: an entry that names no source, but a
            test set alone, or says more in keys of its own, is for it to read.

    Raises:
        ConfigError: An entry is wrong, names no source, has arguments that do not fit it, or names
            a function that does not exist.
    """
    block = resolved(loaded.config.get(_KEY), prefix=_KEY, loaded=loaded)
    # An organizer of the user's own may read other keys.
    if not isinstance(block, Mapping) or block.get("_target_", _TARGET) != _TARGET:
        return
    recipe_dir = block.get("recipe_dir") or loaded.config.get("recipe_dir")
    find_function(block.get("preprocessor"), key=f"{_KEY}.preprocessor")
    for split in splits:
        key = f"{_KEY}.{split}"
        for i, entry in enumerate(_entries_to_check(block.get(split), key, provided)):
            if entry is None:
                continue
            find_function(entry.transform, key=f"{key}.{i}.transform")
            source = DataSource(entry.data_src, recipe_dir, f"{key}.{i}.data_src")
            source.check_module()
            kind = source.load("Dataset")
            arguments = entry.data_src_args or {}
            source.check_arguments(kind, _with_recipe_dir(kind, arguments, recipe_dir))


def _entries_to_check(values: Any, key: str, provided: bool) -> Sequence[DatasetEntry | None]:
    """Parse the entries of a split; None stands for one that is left to a provider."""
    named = key.endswith(".test")
    if not provided:
        return parse_entries(values, key, named=named)
    if not isinstance(values, Sequence):
        return ()
    left = [_is_left_to_provider(value) for value in values]
    names = [{"name": v.get("name")} if own else v for v, own in zip(values, left, strict=True)]
    entries = parse_entries(names, key, named=named)
    return [None if own else entry for entry, own in zip(entries, left, strict=True)]


def _is_left_to_provider(entry: Any) -> bool:
    """Tell whether an entry says nothing of a source, not even misspelt."""
    ours = set(DatasetEntry.model_fields) - {"name"}
    return isinstance(entry, Mapping) and not any(
        get_close_matches(str(key), ours, n=1, cutoff=_CLOSE) for key in entry if key != "name"
    )


def _with_recipe_dir(kind: Any, arguments: Mapping[str, Any], recipe_dir: Any) -> dict[str, Any]:
    signature = signature_of(kind)
    wants = signature is not None and "recipe_dir" in signature.parameters
    return {**({"recipe_dir": recipe_dir} if wants else {}), **arguments}


def _as_function(value: Any, key: str) -> Transform | None:
    function: Transform | None = None if value is None else build_function(value, key=key)
    return function


def _check_dataset(dataset: Any, key: str, source: str) -> Dataset:
    missing = [name for name in ("__len__", "__getitem__") if not hasattr(dataset, name)]
    if missing:
        raise ConfigError(
            key,
            key=key,
            problem=f": the Dataset of {source} has no {missing[0]}",
            fix=f"Write it: def {missing[0]}(self{', index' if 'get' in missing[0] else ''}): ...",
        )
    if len(dataset) == 0:
        raise ConfigError(
            key=f"{key}.data_src_args",
            problem=f": the Dataset of {source} has no items",
            fix=f"Check these arguments; if its files are not made yet: {create_command()}",
        )
    found: Dataset = dataset
    return found


def parse_entries(values: Any, key: str, *, named: bool = False) -> tuple[DatasetEntry, ...]:
    """Check the entries of a split; None counts as an empty list.

    Args:
        values: A list of mappings.
        key: Dotted key of the list, such as `dataset.test`, for the errors.
        named: Each entry must have a name that no other has.

    Raises:
        ConfigError: A key is unknown, a value of the wrong type, a name missing or there twice, or
            a weight is set where nothing is trained.
    """
    plain = resolved(values, prefix=key)
    if plain is None:
        return ()
    if not isinstance(plain, list | tuple):
        split = key.rpartition(".")[2]
        raise ConfigError(
            f"{key} is a {type(plain).__name__}",
            key=key,
            problem="but must be a list of datasets",
            fix=f"Write: {split}: [{{name: NAME, data_src: SOURCE, data_src_args: {{...}}}}]",
        )
    entries = [validate(DatasetEntry, value, prefix=f"{key}.{i}") for i, value in enumerate(plain)]
    _refuse_weights(entries, key)
    if named:
        names = [(f"{key}.{i}.name", entry.name) for i, entry in enumerate(entries)]
        check_names(names)
    return tuple(entries)


def _refuse_weights(entries: list[DatasetEntry], key: str) -> None:
    """Raise if a set that is only measured would count some samples twice or not at all."""
    for i, entry in enumerate(entries):
        if entry.weight != 1 and key.rpartition(".")[2] != "train":
            raise ConfigError(
                key=f"{key}.{i}.weight",
                value=entry.weight,
                problem="but only datasets to train on have weights",
                fix="Remove the line: scores are of each sample once.",
            )


def check_name(key: str, name: Any) -> None:
    """Raise a `ConfigError` unless a test set, and so a folder, can have this name."""
    if not isinstance(name, str) or not name:
        raise ConfigError(
            f"{key} is not set",
            key=key,
            fix="A test set needs a name, which is also the folder of its results. Write: name: "
            "test_clean",
        )
    if "/" in name or name in (".", "..") or not name.isprintable():
        better = "_".join(name.replace("/", " ").split()).strip(".") or "test"
        raise ConfigError(
            key=key,
            value=name,
            problem="which cannot be the name of one folder",
            fix=f"Write: name: {better}",
        )


def check_names(names: Sequence[tuple[str, Any]]) -> None:
    """Check each name, and that no two are the same.

    Args:
        names: The dotted key of each name, such as `dataset.test.0.name`, and the name.

    Raises:
        ConfigError: A name is missing, there twice, or no name of a folder.
    """
    first: dict[str, str] = {}
    for key, name in names:
        check_name(key, name)
        if name in first:
            raise ConfigError(
                key=key,
                value=name,
                problem=f"which is the name of {first[name].removesuffix('.name')} as well",
                fix=f"Write another one: name: {name}_2",
            )
        first[name] = key
