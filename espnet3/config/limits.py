"""Limits on the size of a config: aliases, nesting, interpolations.

A few hundred bytes of YAML can stand for gigabytes. All of this is counted before it is done.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from espnet3.config.sources import Source, dotted, join_key, self_and_parents
from espnet3.errors import ConfigError

MOST_LEVELS = 40
"""OmegaConf fails at about 80, with an error that tells nothing."""
_MOST_VALUES = 100_000
_MOST_CHARACTERS = 10_000_000
_MOST_STEPS = 25
"""From one interpolation to the next."""
_LARGEST_EXPANSION = 1_000_000
_REFERENCE = re.compile(
    r"\$\{\s*(?:oc\.(?:select|create|decode|dict\.values|dict\.keys)\s*:\s*)?(\.*[\w$-][\w$.\[\]-]*)"
)


def compose(text: str, name: object) -> yaml.Node | None:
    """Parse YAML into nodes, without following its aliases.

    Args:
        text: The YAML.
        name: Of its file, for the errors.

    Raises:
        ConfigError: It is nested too deeply, or has too many values, those of aliases counted.
        yaml.YAMLError: It is no YAML.
    """
    if len(text) > _MOST_CHARACTERS:
        raise ConfigError(
            f"{name} has {len(text):,} characters, but a config has {_MOST_CHARACTERS:,} at most.",
            fix="Put data into a file of its own, and name that.",
        )
    loader = _Composer(text, name)
    try:
        node: yaml.Node | None = loader.get_single_node()
        return node
    finally:
        loader.dispose()


class _Composer(yaml.SafeLoader):
    """Counts what the nodes stand for while they are made, so that none is followed twice."""

    def __init__(self, text: str, name: object) -> None:
        super().__init__(text)
        self._name = name
        self._level = 0
        self._known: dict[int, tuple[int, int]] = {}
        """Values and levels of each node, by its id; they live as long as the tree does."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        line = self.peek_event().start_mark.line + 1
        is_alias = self.check_event(yaml.AliasEvent)
        self._level += 1
        self._check_levels(self._level, line)
        node: yaml.Node | None = super().compose_node(parent, index)
        if node is not None and not is_alias:
            self._known[id(node)] = self._count(node)
        # A node that contains itself is not known yet, and is refused by the walk over the tree.
        n_values, n_levels = self._known.get(id(node), (1, 1))
        self._check_levels(self._level + n_levels - 1, line)
        if n_values > _MOST_VALUES:
            raise ConfigError(
                f"{self._name}:{line} stands for {n_values:,} values, those of its aliases (*name) "
                f"counted, but a config has {_MOST_VALUES:,} at most.",
                fix="Put data into a file of its own, and name that.",
            )
        self._level -= 1
        return node

    def _count(self, node: yaml.Node) -> tuple[int, int]:
        if isinstance(node, yaml.MappingNode):
            children = [child for pair in node.value for child in pair]
        else:
            children = node.value if isinstance(node, yaml.SequenceNode) else []
        counts = [self._known.get(id(child), (1, 1)) for child in children]
        return 1 + sum(n for n, _ in counts), 1 + max((levels for _, levels in counts), default=0)

    def _check_levels(self, n_levels: int, line: int) -> None:
        if n_levels > MOST_LEVELS:
            raise ConfigError(
                f"{self._name}:{line} is nested more than {MOST_LEVELS} levels deep, which no "
                "config needs. Is a bracket or an alias (*name) too many?"
            )


def check_values(values: Mapping[Any, Any], sources: Mapping[str, Source]) -> None:
    """Refuse merged values that are nested too deeply, hold a NUL, or refer to each other too much.

    Args:
        values: Plain containers; interpolations are text.
        sources: The place of each key.

    Raises:
        ConfigError: Naming the key and its place.
    """
    leaves: dict[str, str] = {}
    for key, n_levels, value in _walk(values):
        if n_levels > MOST_LEVELS:
            raise ConfigError(
                f"{key:.80}... in {_place(key, sources)} is nested more than {MOST_LEVELS} levels "
                "deep, which no config needs. Is a part of the key too many?"
            )
        if "\0" in key or (isinstance(value, str) and "\0" in value):
            raise ConfigError(
                f"{key!r:.80} in {_place(key, sources)} is {value!r:.80}, with a NUL character, "
                r"which no path and no text has.",
                fix=r"Delete the \0.",
            )
        if isinstance(value, str) and "${" in value:
            leaves[key] = value
    expansion = _Expansion(leaves, values, sources)
    for key in leaves:
        expansion.size(key, 0)


def _walk(values: Any) -> Iterator[tuple[str, int, Any]]:
    """Yield key, level and value of everything, without recursion."""
    left: list[tuple[str, int, Any]] = [("", 0, values)]
    while left:
        key, level, value = left.pop()
        if key:
            yield key, level, value
        if isinstance(value, Mapping):
            left += [(join_key(key, name), level + 1, child) for name, child in value.items()]
        elif isinstance(value, list):
            left += [(join_key(key, i), level + 1, child) for i, child in enumerate(value)]


class _Expansion:
    """Counts what interpolations stand for; those whose name is interpolated itself count as 1."""

    def __init__(
        self, texts: Mapping[str, str], values: Mapping[Any, Any], sources: Mapping[str, Source]
    ) -> None:
        self._texts = texts
        self._values = values
        self._sources = sources
        self._sizes: dict[str, int] = {}
        self._below: dict[str, list[str]] = {}
        for key in texts:
            for parent in self_and_parents(key):
                self._below.setdefault(parent, []).append(key)

    def size(self, key: str, n_steps: int) -> int:
        """Return the characters and values of a key, or of all that is below it."""
        if key in self._sizes:
            return self._sizes[key]
        if n_steps > _MOST_STEPS:
            raise ConfigError(
                f"{key} in {_place(key, self._sources)} is reached by more than {_MOST_STEPS} "
                "interpolations, one after the other.",
                fix="Write its value, or refer to it directly.",
            )
        self._sizes[key] = 0  # self-references are reported when they are resolved
        total = self._own(key, n_steps) if key in self._texts else self._parts(key, n_steps)
        if total > _LARGEST_EXPANSION:
            raise ConfigError(
                f"{key} in {_place(key, self._sources)} would become {total:,} characters and "
                f"values by its interpolations, but {_LARGEST_EXPANSION:,} is the most. Refer to "
                "fewer others, or write the value out."
            )
        self._sizes[key] = total
        return total

    def _own(self, key: str, n_steps: int) -> int:
        text = self._texts[key]
        names = (_absolute(name, key) for name in _REFERENCE.findall(text))
        return len(text) + sum(self.size(name, n_steps + 1) for name in names)

    def _parts(self, key: str, n_steps: int) -> int:
        below = [name for name in self._below.get(key, ()) if name != key]
        return 1 + sum(self.size(name, n_steps) for name in below)


def _absolute(name: str, key: str) -> str:
    """Return the key that `${.name}` or `${..name}` means in `key`; without dots, the name."""
    bare = name.lstrip(".")
    n_dots = len(name) - len(bare)
    parents = key.split(".")[: len(key.split(".")) - n_dots] if n_dots else []
    return dotted(".".join([*parents, bare]))


def _place(key: str, sources: Mapping[str, Source]) -> str:
    found = (str(sources[k]) for k in self_and_parents(key) if k in sources)
    return next(found, "an override")
