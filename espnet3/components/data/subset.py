"""Some items of a dataset, by a field such as their speaker: the keys `only` and `leave_out`."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.components.data.dataset import (
    Dataset,
    as_position,
    durations_of,
    fields_of,
    fingerprint_of,
    has_fields,
    locality_of,
    sample_of,
    uses_rng,
)
from espnet3.config.fingerprint import digest
from espnet3.errors import ConfigError, suggest
from espnet3.text import first_few

if TYPE_CHECKING:
    import numpy as np

Values = Mapping[str, Sequence[Any] | str]
"""The values of each field: a list, or a file with one in each line."""


class Subset:
    """The items whose fields have certain values, in their order.

    Args:
        dataset: Where they come from; fields are read without audio where it has `fields`.
        only: Items that have one of the values of each field are kept.
        leave_out: Then those that have one of the values of any field are dropped.
        recipe_dir: Where a file of values is looked for.

    Raises:
        ConfigError: A field or file is not there, or a value has no items.
    """

    def __init__(
        self,
        dataset: Dataset,
        only: Values | None = None,
        leave_out: Values | None = None,
        recipe_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        self.dataset = dataset
        wanted = {name: _values(name, given, recipe_dir) for name, given in (only or {}).items()}
        unwanted = {n: _values(n, given, recipe_dir) for n, given in (leave_out or {}).items()}
        items = [fields_of(dataset, i) for i in range(len(dataset))]
        for key, named in (("only", wanted), ("leave_out", unwanted)):
            for name, values in named.items():
                _check_known(f"{key}.{name}", name, values, items)
        self._positions = [
            i
            for i, fields in enumerate(items)
            if all(str(fields.get(name)) in values for name, values in wanted.items())
            and not any(str(fields.get(name)) in values for name, values in unwanted.items())
        ]

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self._position(index)]

    def _position(self, index: int) -> int:
        return self._positions[as_position(index, len(self))]

    def sample_with(self, index: int, rng: "np.random.Generator") -> Any:
        """Return a sample whose random choices are drawn from `rng`."""
        return sample_of(self.dataset, self._position(index), rng)

    def uses_rng(self) -> bool:
        """Tell whether `sample_with` makes any random choices."""
        return uses_rng(self.dataset)

    def has_fields(self) -> bool:
        """Tell whether there are samples without audio."""
        return has_fields(self.dataset)

    def fields(self, index: int) -> Any:
        """Return a sample, without its audio where the dataset can leave it out."""
        return fields_of(self.dataset, self._position(index))

    def durations(self, unreadable: float | None = None) -> Any:
        """Return the seconds of each item that is kept; None if the dataset does not know."""
        known = durations_of(self.dataset, unreadable)
        return None if known is None else known[self._positions]

    def locality(self) -> Any:
        """Return the shard of each item that is kept."""
        import numpy as np

        known = locality_of(self.dataset)
        return np.zeros(len(self), np.int64) if known is None else known[self._positions]

    def fingerprint(self) -> str:
        """Return a digest of the dataset's own and of what is kept."""
        return digest({"dataset": fingerprint_of(self.dataset), "kept": self._positions})

    def audio_files(self, most: int) -> list[str]:
        """Return the files of at most so many items, evenly spaced; none where they are inside."""
        step = max(1, -(-len(self) // most))
        return [file for i in range(0, len(self), step) if (file := self.audio_file(i))]

    def audio_file(self, index: int) -> str:
        """Return the file of an item; empty where it is inside another."""
        find = getattr(self.dataset, "audio_file", None)
        return str(find(self._position(index))) if callable(find) else ""


def _values(
    name: str, given: Sequence[Any] | str, recipe_dir: str | os.PathLike[str] | None
) -> set[str]:
    """Return the values as texts: YAML reads a speaker called 07 as a number."""
    if not isinstance(given, str):
        return {str(value) for value in given}
    places = [Path(given), Path(recipe_dir or ".", given)]
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        raise ConfigError(
            f"{name} is {given!r}, but there is no such file.",
            fix=f"Write the values themselves, {name}: [a, b], or a file with one in each line.",
        )
    return {line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()}


def _check_known(key: str, name: str, values: set[str], items: Sequence[Any]) -> None:
    known = {str(fields[name]) for fields in items if name in fields}
    if not known:
        has = list(items[0]) if items else []
        raise ConfigError(
            f"{key} is set, but the items have no field {name!r}.{suggest(name, has)} They have: "
            f"{', '.join(map(str, has))}."
        )
    strange = sorted(values - known)
    if strange:
        raise ConfigError(
            f"{key} has {first_few(strange, 3)}, which no item has.{suggest(strange[0], known)} "
            f"Known: {first_few(sorted(known), 10)}.",
            fix="Numbers that begin with 0 need quotes in YAML: ['07']",
        )
