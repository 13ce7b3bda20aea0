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
        return _resolved_config(values, prefix, loaded)
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


def _resolved_config(config: Any, prefix: str, loaded: "LoadedConfig | None") -> Any:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from espnet3.config.unresolved import explain

    try:
        return OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(explain(error, config, prefix, loaded)) from error
    except RecursionError as error:
        raise ConfigError(
            f"{prefix or 'The config'} is nested too deeply, or its interpolations are. Write "
            "values instead of ${...}"
        ) from error
