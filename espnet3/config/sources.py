"""Layers of a config, and which file and line set each of their keys.

Imports nothing of OmegaConf until layers are merged: workers import this for its errors.
"""

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from espnet3.errors import ConfigError, EspnetError
from espnet3.text import first_line

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Source:
    """The place that set a key: a line of a file, or an override."""

    file: str
    """Path as the user gave it, or `command line: key=value`."""
    line: int | None = None
    """Counted from 1; None for an override."""

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


def join_key(prefix: str, *parts: object) -> str:
    """Join dotted key parts, leaving out an empty prefix."""
    return ".".join([prefix, *map(str, parts)] if prefix else map(str, parts))


def dotted(key: str) -> str:
    """Spell the list index of OmegaConf, `a[0].b`, as `a.0.b`."""
    spelled = re.sub(r"\[(\w+)\]", r".\1", key)
    return spelled.removeprefix(".") if key.startswith("[") else spelled


def self_and_parents(key: str) -> Iterator[str]:
    """Yield `a.b.c`, then `a.b`, then `a`."""
    while key:
        yield key
        key = key.rpartition(".")[0]


def find_source(key: str, sources: Mapping[str, Source]) -> Source | None:
    """Return the place that set `key` or else its nearest parent."""
    return next((sources[k] for k in self_and_parents(dotted(key)) if k in sources), None)


def absolute_key(full_key: str, prefix: str, loaded: "LoadedConfig | None" = None) -> str:
    """Put `prefix` before a key that OmegaConf reports, unless it already counts from the root."""
    key = dotted(full_key)
    from_root = key == prefix or key.startswith(f"{prefix}.")
    if from_root or (loaded is not None and key in loaded.sources):
        return key
    return join_key(prefix, key) if key else prefix


def set_in(key: str, loaded: "LoadedConfig | None") -> str:
    """Return `' (set in conf/a.yaml:3)'`, or an empty string where that is not known."""
    return loaded.set_in(key) if loaded else ""


# The config of the stage that runs, for code below the border that gets only values of it.
CURRENT: ContextVar["LoadedConfig | None"] = ContextVar("CURRENT", default=None)


def place_of(key: str) -> str:
    """Return `' (set in FILE:LINE)'` for a warning, or for the second key that an error names."""
    loaded = CURRENT.get()
    return loaded.set_in(key) if loaded is not None else ""


def add_place(error: BaseException) -> None:
    """Add file and line to an error about a key, once; also for reports below the border."""
    loaded = CURRENT.get()
    if loaded is None:
        return
    if isinstance(error, EspnetError):
        error.locate(loaded)
    # Popped, so that a border further out does not add the place again.
    elif (key := error.__dict__.pop("config_key", "")) and (source := loaded.find_source(key)):
        error.add_note(f"{key} is set in {source}.")


def names_places(
    function: Callable[Concatenate["LoadedConfig", P], T],
) -> Callable[Concatenate["LoadedConfig", P], T]:
    """Let errors about keys of the config that a function gets first name file and line.

    This is the border: what is called from here on gets values, not the config.
    """

    @wraps(function)
    def with_places(loaded: "LoadedConfig", /, *args: P.args, **kwargs: P.kwargs) -> T:
        with loaded.naming_places():
            return function(loaded, *args, **kwargs)

    return with_places


@dataclass(frozen=True)
class Layer:
    """Values of one file, override or default, and the place of each of their keys."""

    values: dict[Any, Any] = field(default_factory=dict)
    """Plain containers; interpolations are text."""
    sources: dict[str, Source] = field(default_factory=dict)
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
    from omegaconf.errors import OmegaConfBaseException

    # On copies: layers of one config are merged into several.
    lower, upper = copied_containers(base.values), copied_containers(top.values)
    _drop_clashes(lower, upper)
    merge_values = _merge_by_omegaconf if _meet_references(lower, upper) else merge_plain
    try:
        merged = merge_values(lower, upper)
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
    # A list that replaces a longer one must not leave the places of its former items.
    present = set(keys_in(merged))
    both = {**base.sources, **kept}
    return Layer(merged, {key: source for key, source in both.items() if key in present})


def merge_plain(base: Any, top: Any) -> Any:
    """Merge as OmegaConf does, but in a tenth of its time, which all commands wait for.

    Both are plain containers that belong to the caller, where no interpolation meets a container.
    """
    for key, value in top.items():
        if key in base and isinstance(value, str) and value == "???":
            continue
        both = isinstance(value, dict) and isinstance(base.get(key), dict)
        base[key] = merge_plain(base[key], value) if both else value
    return base


def _meet_references(base: Any, top: Any) -> bool:
    """Tell whether an interpolation and a container stand under one key, which OmegaConf knows."""
    for key in base.keys() & top.keys():
        pair = base[key], top[key]
        are_containers = [isinstance(value, dict | list) for value in pair]
        if all(are_containers):
            if isinstance(pair[0], dict) and isinstance(pair[1], dict) and _meet_references(*pair):
                return True
        elif any(are_containers) and any(isinstance(v, str) and "${" in v for v in pair):
            return True
    return False


def _merge_by_omegaconf(base: Any, top: Any) -> Any:
    from omegaconf import OmegaConf

    return OmegaConf.to_container(OmegaConf.merge(base, top))


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


def copied_containers(values: Any) -> Any:
    """Copy dicts and lists, and nothing that is in them."""
    if isinstance(values, dict):
        return {key: copied_containers(value) for key, value in values.items()}
    return [copied_containers(item) for item in values] if isinstance(values, list) else values


def copied(values: Mapping[Any, Any]) -> dict[Any, Any]:
    """Copy a mapping or config into plain containers; interpolations stay text."""
    from omegaconf import DictConfig, OmegaConf

    # Reading a DictConfig through dict() would resolve its interpolations.
    config = values if isinstance(values, DictConfig) else OmegaConf.create(dict(values))
    plain: dict[Any, Any] = OmegaConf.to_container(config)  # type: ignore[assignment]
    return plain


def value_at(values: Any, key: str, default: Any = None) -> Any:
    """Return what plain containers hold at a dotted key."""
    for part in key.split("."):
        if isinstance(values, Mapping):
            values = next((v for k, v in values.items() if str(k) == part), default)
        elif isinstance(values, list | tuple) and part.isdigit() and int(part) < len(values):
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
            # Anything merges over None.
            base[key] = None


# `expdir`, as `exp_dir` is called elsewhere: an alias, with a line that says so. A config that has
# both has a variable of its own, which is left alone.
ALIAS, NAME = "expdir", "exp_dir"
# An even number of backslashes before it: an odd one makes it text.
_ALIAS_REFERENCE = re.compile(r"(?<!\\)((?:\\\\)*\$\{\s*(?:oc\.select\s*:\s*)?)expdir(?=\s*[,}])")


def rename_keys(layers: Sequence[Layer]) -> list[Layer]:
    """Return layers in which `expdir` is `exp_dir`, unless one of them has that as well."""
    if any(NAME in layer.values for layer in layers):
        return list(layers)
    return [_with_key_renamed(layer) for layer in layers]


def _with_key_renamed(layer: Layer) -> Layer:
    value = layer.values.get(ALIAS)
    if value is None or f"${{{NAME}}}" in str(value):  # `expdir: ${exp_dir}` is an alias already
        return layer
    warn_of_alias(str(layer.sources.get(ALIAS, "a config")))
    values = {NAME if key == ALIAS else key: inner for key, inner in layer.values.items()}
    sources = {NAME if key == ALIAS else key: place for key, place in layer.sources.items()}
    return Layer(values, sources)


def rename_references(layer: Layer) -> Layer:
    """Return a layer in which `${expdir}` is `${exp_dir}`, unless there is a key of that name."""
    if ALIAS in layer.values:
        return layer
    for key in keys_in(layer.values):
        text = value_at(layer.values, key)
        if key != NAME and isinstance(text, str) and _ALIAS_REFERENCE.search(text):
            place = layer.sources.get(key)
            _warn_of_reference(key, str(place or "a config"))
    values = {
        key: value if key == NAME else _renamed(value)  # which would refer to itself
        for key, value in layer.values.items()
    }
    return Layer(values, layer.sources)


def _renamed(values: Any) -> Any:
    if isinstance(values, dict):
        return {key: _renamed(value) for key, value in values.items()}
    if isinstance(values, list):
        return [_renamed(value) for value in values]
    return _ALIAS_REFERENCE.sub(r"\1exp_dir", values) if isinstance(values, str) else values


@cache
def warn_of_alias(place: str) -> None:
    """Say it once: a config is loaded several times in a run."""
    logger.warning("expdir (set in %s) is read as exp_dir, which is its name here", place)


@cache
def _warn_of_reference(key: str, place: str) -> None:
    logger.info(
        "%s (set in %s) refers to ${expdir}, which is read as ${exp_dir}, its name here", key, place
    )
