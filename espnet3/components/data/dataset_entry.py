"""Entries of `dataset.train`, `.valid` and `.test`, and the names of test sets, checked first."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import PositiveFloat

from espnet3.config.resolve import resolved
from espnet3.config.schema import FrozenConfig, validate
from espnet3.config.sources import set_in
from espnet3.errors import ConfigError

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig


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


def parse_entries(
    values: Any, key: str, *, named: bool = False, loaded: "LoadedConfig | None" = None
) -> tuple[DatasetEntry, ...]:
    """Check the entries of a split; None counts as an empty list.

    Args:
        values: A list of mappings.
        key: Dotted key of the list, such as `dataset.test`, for the errors.
        named: Each entry must have a name that no other has.
        loaded: Where the values come from, so that the errors name file and line.

    Raises:
        ConfigError: A key is unknown, a value of the wrong type, a name missing or there twice, or
            a weight is set where nothing is trained.
    """
    plain = resolved(values, prefix=key, loaded=loaded)
    if plain is None:
        return ()
    if not isinstance(plain, list | tuple):
        split = key.rpartition(".")[2]
        raise ConfigError(
            f"{key} is a {type(plain).__name__}{set_in(key, loaded)}, but must be a list of "
            f"datasets. Write: {split}: [{{name: NAME, data_src: SOURCE, data_src_args: {{...}}}}]"
        )
    entries = [
        validate(DatasetEntry, value, prefix=f"{key}.{i}", loaded=loaded)
        for i, value in enumerate(plain)
    ]
    _refuse_weights(entries, key, loaded)
    if named:
        names = [(f"{key}.{i}.name", entry.name) for i, entry in enumerate(entries)]
        check_names(names)
    return tuple(entries)


def _refuse_weights(entries: list[DatasetEntry], key: str, loaded: "LoadedConfig | None") -> None:
    """Raise if a set that is only measured would count some samples twice or not at all."""
    for i, entry in enumerate(entries):
        if entry.weight != 1 and key.rpartition(".")[2] != "train":
            full = f"{key}.{i}.weight"
            raise ConfigError(
                f"{full} is {entry.weight:g}{set_in(full, loaded)}, but only datasets to train on "
                "have weights: scores are of each sample once. Remove the line."
            )


def check_name(key: str, name: Any) -> None:
    """Raise a `ConfigError` unless a test set, and so a folder, can have this name."""
    if not isinstance(name, str) or not name:
        raise ConfigError(
            key=key,
            problem="is not set",
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
