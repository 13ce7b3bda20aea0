"""Which config an override of the command line is meant for."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

_OF_THEIR_OWN = "model"
"""The block that training and inference both have, and in which they say different things."""


def overrides_for(
    kind: str, overrides: Sequence[str], plain: Mapping[str, "LoadedConfig"]
) -> list[str]:
    """Return the overrides that a config gets: all, but for keys of another config's `model`.

    `model.encoder.n_layers=4` is for the config whose model has an encoder. A key that both models
    lack is for both, and one of them will name it as unknown.

    Args:
        kind: of the config.
        overrides: as they were typed.
        plain: the configs by kind, without overrides.
    """
    return [text for text in overrides if kind in _kinds_of(text, plain)]


def _kinds_of(text: str, plain: Mapping[str, "LoadedConfig"]) -> list[str]:
    from espnet3.config.overrides import parse_override

    path = parse_override(text).path
    if path[0] != _OF_THEIR_OWN or len(path) == 1:
        return list(plain)
    depths = {kind: _depth(path, loaded) for kind, loaded in plain.items()}
    return [kind for kind, depth in depths.items() if depth == max(depths.values())]


def _depth(path: tuple[str, ...], loaded: "LoadedConfig") -> int:
    """Return how many steps of a path a config has."""
    steps = range(1, len(path) + 1)
    return max((n for n in steps if loaded.has(".".join(path[:n]))), default=0)
