"""Configs that `load_config` alone has read, in a notebook: what a recipe's defaults say is added.

`run.py` loads the configs of a recipe together, with the defaults below them. A config that comes
without knows no `exp_dir`, which every stage writes to or reads from.
"""

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from espnet3.systems.base.context import DEFAULTS
from espnet3.systems.base.stages import KINDS

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

logger = logging.getLogger(__name__)

_OF_TRAINING = ("recipe_dir", "data_dir", "exp_tag", "exp_dir", "stats_dir")
"""Folders of the first config that hold in the others, where these do not name their own."""
_INFERENCE_DIR = "inference_dir"


def completed(loaded: "LoadedConfig", kind: str = "training") -> "LoadedConfig":
    """Return a config with the defaults of recipes for what it does not set.

    The folder of an experiment is `exp/<name of the first file>` below the current folder, and
    `exp/training` for a config without a file; a log line says so.

    Args:
        loaded: is left as it is.
        kind: of config, as in `KINDS`; names what has no file.
    """
    return _with(loaded, {}, kind)


def complete_all(
    given: Mapping[str, "LoadedConfig | None"],
) -> dict[str, "LoadedConfig | None"]:
    """Return the configs of a system, by kind, with the folders of the first in all of them."""
    configs: dict[str, LoadedConfig | None] = {}
    shared: dict[str, Any] = {}
    for kind in KINDS:
        loaded = given.get(kind)
        if loaded is not None:
            loaded = _with(loaded, shared, kind)
            names = [*(() if shared else _OF_TRAINING), *([_INFERENCE_DIR] * (kind == "inference"))]
            shared |= {name: _value(loaded, name) for name in names}
        configs[kind] = loaded
    return configs


def _with(loaded: "LoadedConfig", shared: Mapping[str, Any], kind: str) -> "LoadedConfig":
    below = {**DEFAULTS, **{key: value for key, value in shared.items() if value is not None}}
    if all(key in loaded.config for key in below):
        return loaded
    from espnet3.config.load import load_config

    if loaded.names.self_name is None:
        below = {**below, **{k: v for k, v in _unnamed(kind).items() if k not in shared}}
    found = load_config(loaded, below=below)
    if kind == "training" and "exp_dir" not in loaded.config and "exp_tag" not in loaded.config:
        logger.info(
            "exp_dir is not set: all is written to %s. For another folder, write exp_tag: NAME or "
            "exp_dir: FOLDER", os.path.abspath(str(_value(found, "exp_dir"))),
        )  # fmt: skip
    return found


def _unnamed(kind: str) -> dict[str, str]:
    return {"exp_tag": kind, _INFERENCE_DIR: f"${{exp_dir}}/{kind}"}


def _value(loaded: "LoadedConfig", key: str) -> Any:
    """Return a value as text that means the same below another config."""
    from espnet3.config.resolvers import escaped_values
    from espnet3.systems.base.context import context_value

    return escaped_values(context_value(loaded, key))
