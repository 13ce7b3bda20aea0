"""Functions that a config names: a dotted path, or an object with a `_target_`."""

from collections.abc import Mapping
from typing import Any

from espnet3.config.instantiate import instantiate
from espnet3.config.resolve import resolved
from espnet3.config.targets import BadTarget, locate
from espnet3.errors import ConfigError


def build_function(node: Any, *, key: str) -> Any:
    """Return what a dotted path or a `_target_` stands for; of a class, an instance.

    Raises:
        ConfigError: There is no such thing, or it cannot be called.
    """
    found = find_function(node, key=key)
    if isinstance(node, str) and isinstance(found, type):
        found = instantiate({"_target_": node}, key=key)
    elif isinstance(resolved(node), Mapping):
        found = instantiate(node, key=key)
    if not callable(found):
        raise ConfigError(
            key=key,
            value=found,
            problem=f"of type {type(found).__name__}, which cannot be called",
            fix="Write the dotted path of a function, or a mapping with a _target_.",
        )
    return found


def find_function(node: Any, *, key: str) -> Any:
    """Import what a dotted path names; return what is no path as it is.

    Raises:
        ConfigError: The path leads nowhere.
    """
    if not isinstance(node, str):
        return node
    try:
        return locate(node)
    except BadTarget as bad:
        problem = str(bad).replace("_target_", key.rpartition(".")[2])
        raise ConfigError(key=key, value=node, problem=f"but {problem}") from bad
