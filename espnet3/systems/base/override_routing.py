"""Which config an override of the command line is meant for."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig


_OF_TRAINING = ("resume", "accept_changes")
"""Of a training at the top; others have them in a block."""


def overrides_for(
    kind: str,
    overrides: Sequence[str],
    plain: Mapping[str, "LoadedConfig"],
    common: Collection[str] = (),
) -> list[str]:
    """Return the overrides that a config gets: not those of keys that only others have.

    `trainer.max_epochs=5` is for the config with a trainer, so that results of `infer` do not
    depend on it, and `model.encoder.n_layers=4` for that whose model has an encoder. A key that no
    config has is for all of them; where it is a mistake, each can say so.

    Args:
        kind: of the config.
        overrides: as they were typed.
        plain: the configs by kind, without overrides.
        common: top-level keys that mean the same in all configs.
    """
    return [text for text in overrides if kind in _kinds_of(text, plain, common)]


def _kinds_of(text: str, plain: Mapping[str, "LoadedConfig"], common: Collection[str]) -> list[str]:
    from espnet3.config.overrides import parse_override

    path = parse_override(text).path
    if path[0] in common:
        return list(plain)
    if path[0] in _OF_TRAINING and "training" in plain:
        return ["training"]
    depths = {kind: _depth(path, loaded) for kind, loaded in plain.items()}
    return [kind for kind, depth in depths.items() if depth == max(depths.values())]


def _depth(path: tuple[str, ...], loaded: "LoadedConfig") -> int:
    """Return how many steps of a path a config has."""
    steps = range(1, len(path) + 1)
    return max((n for n in steps if loaded.has(".".join(path[:n]))), default=0)
