"""`expdir`, as `exp_dir` is called elsewhere: an alias, with a line that says so.

A config that has both has a variable of its own, which is left alone.
"""

import logging
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from espnet3.config.merge import Layer, keys_in, value_at
from espnet3.config.overrides import Override

logger = logging.getLogger(__name__)

ALIAS, NAME = "expdir", "exp_dir"
# An even number of backslashes before it: an odd one makes it text.
_REFERENCE = re.compile(r"(?<!\\)((?:\\\\)*\$\{\s*(?:oc\.select\s*:\s*)?)expdir(?=\s*[,}])")


def rename_keys(layers: Sequence[Layer]) -> list[Layer]:
    """Return layers in which `expdir` is `exp_dir`, unless one of them has that as well."""
    if any(NAME in layer.values for layer in layers):
        return list(layers)
    return [_with_key_renamed(layer) for layer in layers]


def _with_key_renamed(layer: Layer) -> Layer:
    value = layer.values.get(ALIAS)
    if value is None or f"${{{NAME}}}" in str(value):  # `expdir: ${exp_dir}` is an alias already
        return layer
    _tell_key(str(layer.sources.get(ALIAS, "a config")))
    values = {NAME if key == ALIAS else key: inner for key, inner in layer.values.items()}
    sources = {NAME if key == ALIAS else key: place for key, place in layer.sources.items()}
    return Layer(values, sources)


def rename_override(override: Override, merged: Layer) -> Override:
    """Return an override of `exp_dir` for one of `expdir`, unless that is a key of the config."""
    if override.path != (ALIAS,) or ALIAS in merged.values:
        return override
    _tell_key(str(override.source))
    return Override(override.text, (NAME,), override.value)


def rename_references(layer: Layer) -> Layer:
    """Return a layer in which `${expdir}` is `${exp_dir}`, unless there is a key of that name."""
    if ALIAS in layer.values:
        return layer
    for key in keys_in(layer.values):
        text = value_at(layer.values, key)
        if key != NAME and isinstance(text, str) and _REFERENCE.search(text):
            place = layer.sources.get(key)
            _tell_reference(key, str(place or "a config"))
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
    return _REFERENCE.sub(r"\1exp_dir", values) if isinstance(values, str) else values


@cache
def _tell_key(place: str) -> None:
    """Say it once: a config is loaded several times in a run."""
    logger.warning("expdir (set in %s) is read as exp_dir, which is its name here", place)


@cache
def _tell_reference(key: str, place: str) -> None:
    logger.info(
        "%s (set in %s) refers to ${expdir}, which is read as ${exp_dir}, its name here", key, place
    )
