"""Find keys that are misspelt or stand in the wrong block.

A recipe may add top-level keys of its own, so an unknown one is refused only where it was surely
meant otherwise: nothing refers to it, and it is close to a known one, or a block has it.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import yaml

from espnet3.config.advice import yaml_line
from espnet3.config.redact import redact
from espnet3.config.sources import join_key
from espnet3.errors import ConfigError, closest

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

_REFERENCE = re.compile(r"\$\{\s*(?:oc\.(?:select|dict\.keys|dict\.values)\s*:\s*)?\.*([\w$-]+)")
_CLOSE = 0.8
_LONGEST_LINE = 100


def check_keys(loaded: "LoadedConfig", known: Collection[str], *, homes: Mapping[str, str]) -> None:
    """Refuse top-level keys that are misspelt or belong into a block.

    Args:
        loaded: The config of a recipe.
        known: The top-level keys that are read.
        homes: The block that a key belongs under, such as `{"n_workers": "parallel"}`; the block
            may be a dotted key.

    Raises:
        ConfigError: With the line to write for each such key.
    """
    values = redact(loaded.config)
    own = {*references(loaded), *known}
    problems = list[str]()
    for key in (key for key in values if str(key) not in own):
        close = closest(str(key), sorted(known), cutoff=_CLOSE)
        if str(key) in homes:
            problems.append(_misplaced(loaded, str(key), values[key], homes[str(key)]))
        elif close:
            problems.append(_misspelt(loaded, str(key), values[key], close))
    raise_any(problems)


def check_block(loaded: "LoadedConfig", block: str, homes: Mapping[str, str]) -> None:
    """Refuse keys in a block that belong under another, such as `n_workers` in `trainer`.

    Args:
        loaded: The config of a recipe.
        block: A top-level key; there is nothing to refuse where it is not set or no mapping.
        homes: As for `check_keys`.

    Raises:
        ConfigError: With the line to write for each such key.
    """
    from omegaconf import OmegaConf

    node = OmegaConf.select(loaded.config, block, throw_on_resolution_failure=False)
    values = redact(node) if isinstance(node, Mapping) else {}
    raise_any(
        [
            _misplaced(loaded, join_key(block, key), value, homes[key])
            for key, value in values.items()
            if homes.get(key, block) != block
        ]
    )


def references(loaded: "LoadedConfig") -> dict[str, set[str]]:
    """Return the top-level keys that interpolations refer to, each with those that do so."""
    from omegaconf import OmegaConf

    values: Any = OmegaConf.to_container(loaded.config)
    found: dict[str, set[str]] = {}
    for key, value in values.items():
        for name in _references(value):
            found.setdefault(name, set()).add(str(key))
    return found


def _references(values: Any) -> Iterator[str]:
    """Yield the first part of each key that an interpolation refers to."""
    if isinstance(values, str):
        yield from _REFERENCE.findall(values)
    elif isinstance(values, dict | list):
        for child in values.values() if isinstance(values, dict) else values:
            yield from _references(child)


def _misplaced(loaded: "LoadedConfig", key: str, value: Any, home: str) -> str:
    path = [*home.split("."), key.rpartition(".")[2]]
    line = _flow_line(path, value)
    if "\n" in line or len(line) > _LONGEST_LINE:
        line = _flow_line(path, ...)
    return f"{key} in {loaded.source_of(key)} belongs under {home}. Write: {line}"


def _flow_line(path: list[str], value: Any) -> str:
    """Return `parallel: {n_workers: 4}` for the path to a value."""
    try:
        text = yaml.safe_dump([value], default_flow_style=True, width=10_000).strip()[1:-1]
    except yaml.YAMLError:  # no plain value
        text = "..."
    return ": {".join(path) + f": {text}" + "}" * (len(path) - 1)


def _misspelt(loaded: "LoadedConfig", key: str, value: Any, right: str) -> str:
    line = yaml_line(right, value)
    return (
        f"{key} in {loaded.source_of(key)} is not a known key. Did you mean {right!r}? "
        f"Write: {line if len(line) <= _LONGEST_LINE else f'{right}: ...'}"
    )


def raise_any(problems: Sequence[str]) -> None:
    """Raise one error with all problems, if there are any.

    Raises:
        ConfigError: with a line for each.
    """
    if len(problems) == 1:
        raise ConfigError(problems[0])
    if problems:
        raise ConfigError(f"{len(problems)} problems:\n" + "\n".join(f"- {p}" for p in problems))
