"""The `defaults` list of a file: other files that are merged before or after it."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espnet3.config.files import find_neighbours, read_file
from espnet3.config.limits import MOST_LEVELS
from espnet3.config.merge import Layer
from espnet3.config.resolvers import RunNames, bind
from espnet3.config.sources import Source
from espnet3.config.trust import checked_path, current_trust
from espnet3.errors import ConfigError

_KEY = "defaults"
_SELF = "_self_"
_SUFFIXES = (".yaml", ".yml")
_MOST_FILES = 500
_FORMS = "An entry is a file (- base), a file of a folder (- model: small), - _self_, or - null."


def read_layers(path: Path, names: RunNames) -> list[tuple[Path, Layer]]:
    """Read a file and all that its `defaults` pull in, in the order of merging.

    Raises:
        ConfigError: A file is missing or malformed, an entry is no name, or a file pulls in itself.
    """
    return _Reader(names).read(path, ())


@dataclass(frozen=True)
class _Entry:
    """One name in a `defaults` list."""

    name: str
    below: tuple[str, ...]
    """The key that gets the values of the file, part by part; empty for the root."""
    source: Source

    def path_beside(self, file: Path) -> Path:
        """Return the file that is meant.

        Raises:
            ConfigError: There is none.
        """
        base = file.parent.joinpath(*self.below, self.name)
        names = [base] if base.suffix in _SUFFIXES else [Path(f"{base}{s}") for s in _SUFFIXES]
        found = next((name for name in names if name.is_file()), None)
        if found is None:
            raise ConfigError(
                f"{_KEY} in {self.source} names {self.name!r}, but {names[0]} does not exist."
                f"{find_neighbours(names[0])}"
            )
        return found


class _Reader:
    """Reads a file and all that it pulls in.

    Args:
        names: What the resolvers without an argument stand for.
    """

    def __init__(self, names: RunNames) -> None:
        self._names = names
        self._n_files = 0

    def read(self, path: Path, chain: tuple[Path, ...]) -> list[tuple[Path, Layer]]:
        """Return the layers of a file that the files of `chain` pulled in, the first one first."""
        layer = read_file(checked_path(path))
        if (trust := current_trust()) is not None:
            trust.check_file(layer.values, path)
        listed = layer.values.pop(_KEY, None)
        sources = {
            k: s for k, s in layer.sources.items() if k != _KEY and not k.startswith(f"{_KEY}.")
        }
        own = path, Layer(bind(layer.values, self._names, path.parent), sources)
        layers = list[tuple[Path, Layer]]()
        entries = list(_entries(listed, layer.sources))
        for entry in entries:
            layers += [own] if entry is None else self._pulled_in(entry, path, chain)
        return layers if None in entries else [*layers, own]

    def _pulled_in(
        self, entry: _Entry, path: Path, chain: tuple[Path, ...]
    ) -> list[tuple[Path, Layer]]:
        pulled_in = entry.path_beside(path)
        chain = (*chain, path)
        if os.path.realpath(pulled_in) in map(os.path.realpath, chain):
            raise ConfigError(
                f"{_KEY} in {entry.source} names {entry.name!r}, which goes in a circle: "
                f"{' -> '.join(map(str, (*chain, pulled_in)))}. Delete this entry."
            )
        self._n_files += 1
        if len(chain) > MOST_LEVELS or self._n_files > _MOST_FILES:
            raise ConfigError(
                f"{_KEY} in {entry.source} names {entry.name!r}, by which {chain[0]} pulls in more "
                f"than {_MOST_FILES} files, or through more than {MOST_LEVELS} others. Name fewer "
                "files, or put them into one."
            )
        layers = self.read(pulled_in, chain)
        if not entry.below:
            return layers
        return [(file, layer.moved_below(entry.below, entry.source)) for file, layer in layers]


def _entries(listed: Any, sources: dict[str, Source]) -> Iterator[_Entry | None]:
    """Yield the entries in order; None stands for the file itself."""
    if listed is not None and not isinstance(listed, list):
        raise ConfigError(
            f"{_KEY} in {sources[_KEY]} is {listed!r:.80}, but must be a list. {_FORMS}"
        )
    if (listed or []).count(_SELF) > 1:
        raise ConfigError(f"{_KEY} in {sources[_KEY]} has {_SELF} twice. Delete one of the two.")
    for i, item in enumerate(listed or []):
        source = sources[f"{_KEY}.{i}"]
        if item == _SELF:
            yield None
        elif isinstance(item, dict) and len(item) == 1:
            [(key, name)] = item.items()
            if name is not None:
                yield _Entry(_name(name, source), _below(str(key), source), source)
        elif item is not None:
            yield _Entry(_name(item, source), (), source)


def _below(key: str, source: Source) -> tuple[str, ...]:
    parts = tuple(key.split("/"))
    if len(parts) > MOST_LEVELS:
        raise ConfigError(
            f"{_KEY} in {source} has {key:.80}..., which is nested more than {MOST_LEVELS} levels "
            f"deep. {_FORMS}"
        )
    return parts


def _name(value: Any, source: Source) -> str:
    if not isinstance(value, str) or not value or "${" in value:
        raise ConfigError(f"{_KEY} in {source} has {value!r:.80}, which is no file name. {_FORMS}")
    return value
