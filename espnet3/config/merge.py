"""Merge layers of values, the later one winning, and keep track of what set each key."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from espnet3.config.sources import Source, join_key
from espnet3.errors import ConfigError
from espnet3.text import first_line

Sources = dict[str, Source]


@dataclass(frozen=True)
class Layer:
    """Values of one file, override or default, and the place of each of their keys."""

    values: dict[Any, Any] = field(default_factory=dict)
    """Plain containers; interpolations are text."""
    sources: Sources = field(default_factory=dict)
    """By dotted key, list items included."""

    @classmethod
    def of(cls, values: Mapping[str, Any], source: Source) -> "Layer":
        """Place plain values that all come from one source."""
        return cls(dict(values), dict.fromkeys(keys_in(values), source))

    def moved_below(self, parts: tuple[str, ...], source: Source) -> "Layer":
        """Return the layer with all its keys moved below `parts`, which `source` sets."""
        prefix = ".".join(parts)
        parents = [".".join(parts[: i + 1]) for i in range(len(parts))]
        values: Any = self.values
        for part in reversed(parts):
            values = {part: values}
        moved = {join_key(prefix, key): place for key, place in self.sources.items()}
        return Layer(values, {**dict.fromkeys(parents, source), **moved})


def merge(base: Layer, top: Layer) -> Layer:
    """Merge mappings into mappings; everything else replaces, but a later `???` does not.

    Raises:
        ConfigError: A list meets an interpolated mapping, or the reverse.
    """
    lower, upper = copied(base.values), copied(top.values)
    _drop_clashes(lower, upper)
    try:
        merged: Any = OmegaConf.to_container(OmegaConf.merge(lower, upper))
    except OmegaConfBaseException as error:
        first = next(iter(top.sources.values()), "an override")
        raise ConfigError(
            f"The values from {first} on do not merge into what was set before: "
            f"{first_line(error)}.",
            fix="Do not mix a list and a mapping under one key.",
        ) from error
    kept = {
        key: source
        for key, source in top.sources.items()
        if key not in base.sources or value_at(upper, key) != "???"  # a merge skips it
    }
    present = set(keys_in(merged))
    both = {**base.sources, **kept}
    return Layer(merged, {key: source for key, source in both.items() if key in present})


def keys_in(values: Any, prefix: str = "") -> Iterator[str]:
    """Yield the dotted key of everything in plain containers, parents first."""
    children: Any = ()
    if isinstance(values, dict):
        children = values.items()
    elif isinstance(values, list):
        children = enumerate(values)
    for name, child in children:
        key = join_key(prefix, name)
        yield key
        yield from keys_in(child, key)


def copied(values: Mapping[Any, Any]) -> dict[Any, Any]:
    """Copy a mapping or config into plain containers; interpolations stay text."""
    # Reading a DictConfig through dict() would resolve its interpolations.
    config = values if isinstance(values, DictConfig) else OmegaConf.create(dict(values))
    plain: dict[Any, Any] = OmegaConf.to_container(config)  # type: ignore[assignment]
    return plain


def value_at(values: Any, key: str, default: Any = None) -> Any:
    """Return what plain containers hold at a dotted key."""
    for part in key.split("."):
        if isinstance(values, dict):
            values = next((v for k, v in values.items() if str(k) == part), default)
        elif isinstance(values, list) and part.isdigit() and int(part) < len(values):
            values = values[int(part)]
        else:
            return default
    return values


def _drop_clashes(base: Any, top: Any) -> None:
    """Make way for a list over a mapping and the reverse, which OmegaConf refuses to merge."""
    for key in base.keys() & top.keys():
        pair = base[key], top[key]
        if all(isinstance(value, dict) for value in pair):
            _drop_clashes(*pair)
        elif all(isinstance(value, dict | list) for value in pair):
            base[key] = None
