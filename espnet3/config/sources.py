"""Source of each key (file and line), and key paths such as `a.b.0.c`."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

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
