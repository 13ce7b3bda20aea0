"""Plain copies of configs, with interpolations resolved."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from espnet3.config.sources import join_key
from espnet3.errors import ConfigError

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig


def resolved(values: Any, *, prefix: str = "", loaded: "LoadedConfig | None" = None) -> Any:
    """Copy dicts, lists and configs into plain containers; `values` itself is left alone.

    Interpolations are resolved in OmegaConf's containers only: in a plain dict `${HOME}` is text,
    such as a line of a shell script. What is `???` stays so.

    Raises:
        ConfigError: An interpolation leads nowhere.
    """
    if type(values).__module__.startswith("omegaconf."):
        if loaded is None:
            return resolve_config(values, prefix)
        if values is loaded.config:
            return loaded.plain()
        whole, path = loaded.constant_values(), _path_below(values, loaded.config)
        if whole is None or path is None:
            return resolve_config(values, prefix, loaded)
        return _at(whole, path)
    if isinstance(values, Mapping):
        return {
            key: resolved(value, prefix=join_key(prefix, key), loaded=loaded)
            for key, value in values.items()
        }
    if type(values) in (list, tuple):
        items = enumerate(values)
        return type(values)(
            resolved(item, prefix=join_key(prefix, i), loaded=loaded) for i, item in items
        )
    return values


def copied_containers(values: Any) -> Any:
    """Copy dicts and lists, and nothing that is in them."""
    if isinstance(values, dict):
        return {key: copied_containers(value) for key, value in values.items()}
    return [copied_containers(item) for item in values] if isinstance(values, list) else values


def _path_below(node: Any, root: Any) -> list[Any] | None:
    """Return the keys that lead from a config to one of its blocks; None if it is none of them."""
    path: list[Any] = []
    while node is not root:
        if node is None:
            return None
        path.insert(0, node._key())
        node = node._get_parent()
    return path


def _at(values: Any, path: list[Any]) -> Any:
    for key in path:
        values = values[key]
    return copied_containers(values)


def resolve_config(config: Any, prefix: str = "", loaded: "LoadedConfig | None" = None) -> Any:
    """Return the plain containers of a config of OmegaConf, resolved now.

    Raises:
        ConfigError: An interpolation leads nowhere.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from espnet3.config.resolvers import explain

    try:
        return OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(explain(error, config, prefix, loaded)) from error
    except RecursionError as error:
        raise ConfigError(
            f"{prefix or 'The config'} is nested too deeply, or its interpolations are.",
            fix="Write values instead of ${...}",
        ) from error
