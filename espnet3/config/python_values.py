"""Configs that are written in Python: dicts and OmegaConf's, as the plain values of a file."""

import enum
import os
from collections.abc import Iterator, Mapping
from typing import Any

from espnet3.config.sources import join_key
from espnet3.errors import ConfigError

_SCALARS = (str, int, float, bool, type(None))
_GIVEN = {"model": "model=...", "dataset": "train=..., valid=...", "dataloader": "train=..."}
"""What goes to `train` as an object, by the block that would describe it."""


def as_plain(config: Mapping[Any, Any]) -> dict[Any, Any]:
    """Copy a dict or an OmegaConf config into plain containers; interpolations stay text.

    Paths become text, tuples lists, and numbers of NumPy those of Python.

    Raises:
        ConfigError: A value is an object, which no file could hold; naming its key.
    """
    plain: dict[Any, Any] = _plain(config, "", ())
    if "defaults" in plain:
        raise ConfigError(
            "defaults is set in a config given in Python, but names files beside a file. Load them "
            'in order: load_config(["conf/base.yaml", {...}])'
        )
    return plain


def _plain(value: Any, key: str, above: tuple[int, ...]) -> Any:
    if type(value) in _SCALARS:
        return value
    if id(value) in above:
        raise ConfigError(f"{key} contains itself. Write a config without circles.")
    if type(value).__module__.startswith("omegaconf."):
        return _of_omegaconf(value, key)
    inside = (*above, id(value))
    if isinstance(value, Mapping):
        return {_key(k, key): _plain(v, join_key(key, k), inside) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, join_key(key, i), inside) for i, item in enumerate(value)]
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        return value.item()
    if isinstance(value, str | int | float):  # of a class of one's own
        kind: Any = next(one for one in (int, float, str) if isinstance(value, one))
        return kind(value)
    raise ConfigError(_no_value(value, key))


def _of_omegaconf(value: Any, key: str) -> Any:
    from omegaconf import OmegaConf

    from espnet3.config.literal import escaped_values
    from espnet3.config.resolve import resolved

    if value._get_parent() is not None:  # a part of a config, whose ${...} refer to the whole
        return _plain(escaped_values(resolved(value, prefix=key)), key, ())
    return _plain(OmegaConf.to_container(value, enum_to_str=True), key, ())


def _key(key: Any, parent: str) -> Any:
    if isinstance(key, _SCALARS) and key is not None:
        return key
    raise ConfigError(f"{key!r} is a key of {parent or 'the config'}, but must be a text.")


def _no_value(value: Any, key: str) -> str:
    text = (
        f"{key} is {_called(value)}, but a config holds texts, numbers, True, False, None, lists "
        "and dicts. "
    )
    block = key.partition(".")[0]
    ways = list(_ways(value, block))
    return text + "; or ".join(ways)


def _ways(value: Any, block: str) -> Iterator[str]:
    kind = value if isinstance(value, type) else type(value)
    named = value if hasattr(value, "__qualname__") else kind
    path = f"{named.__module__}.{named.__qualname__}"
    if block in _GIVEN:
        yield f"Give the object to espnet3.trainer.train(config, {_GIVEN[block]})"
    if "<" not in path and not path.startswith(("__main__", "builtins", "numpy", "torch.Tensor")):
        yield f'Write how it is built: {{"_target_": "{path}"}}'
    elif block not in _GIVEN:
        yield 'Write how it is built: {"_target_": "package.module.Name"}'


def _called(value: Any) -> str:
    if hasattr(value, "__qualname__"):
        return f"{value.__qualname__}, {'a class' if isinstance(value, type) else 'a function'}"
    return f"an object of {type(value).__qualname__}"
