"""The entries of `dataset.train`, `.valid` and `.test`, checked before anything is built."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

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
        ConfigError: A key is unknown, a value of the wrong type, a name missing or there twice.
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
    if named:
        _check_names(entries, key, loaded)
    return tuple(entries)


def _check_names(entries: Sequence[DatasetEntry], key: str, loaded: "LoadedConfig | None") -> None:
    first: dict[str, int] = {}
    for i, entry in enumerate(entries):
        where = set_in(f"{key}.{i}.name", loaded)
        if not entry.name:
            raise ConfigError(
                f"{key}.{i}.name is not set{where}. A test set needs a name, which is also the "
                "folder of its results. Write: name: test_clean"
            )
        if "/" in entry.name or entry.name in (".", "..") or not entry.name.isprintable():
            better = "_".join(entry.name.replace("/", " ").split()).strip(".") or "test"
            raise ConfigError(
                f"{key}.{i}.name is {entry.name!r}{where}, which cannot be the name of one folder. "
                f"Write: name: {better}"
            )
        if entry.name in first:
            raise ConfigError(
                f"{key}.{i}.name is {entry.name!r}{where}, which is the name of "
                f"{key}.{first[entry.name]} as well. Write another one: name: {entry.name}_2"
            )
        first[entry.name] = i
