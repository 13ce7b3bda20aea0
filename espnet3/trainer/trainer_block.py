"""The `trainer` block as it is written: which names it may have.

Apart from the models of `config`: a misspelt key is reported before pydantic builds any of them,
which takes longer than all else.
"""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from espnet3.config.advice import raise_together, unknown_hint
from espnet3.config.sources import join_key, names_places
from espnet3.config.targets import signature_at
from espnet3.errors import ConfigError

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

KEY = "trainer"


def trainer_block(loaded: "LoadedConfig") -> dict[str, Any]:
    """Return the resolved `trainer` block as plain values.

    Raises:
        ConfigError: it is no mapping.
    """
    values = loaded.plain().get(KEY)
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise ConfigError(
            f"{KEY} is {values!r:.60}{loaded.set_in(KEY)}, but must be a mapping of Lightning's "
            "arguments.",
            fix="Write: trainer: {accelerator: auto, devices: 1, max_epochs: 10}",
        )
    return dict(values)


@names_places
def check_trainer_names(loaded: "LoadedConfig") -> None:
    """Refuse names in the block that are no arguments of Lightning's `Trainer`.

    Raises:
        ConfigError: naming the key, its place, and what to write.
    """
    raise_together(unknown_names(loaded))


def unknown_names(loaded: "LoadedConfig") -> list[ConfigError]:
    """Return an error for each name in the block that is no argument of Lightning's `Trainer`."""
    known, block = trainer_arguments(), trainer_block(loaded)
    unknown = {name: value for name, value in block.items() if name not in known}
    return [_unknown(join_key(KEY, name), value, known) for name, value in unknown.items()]


def _unknown(key: str, value: Any, known: Collection[str]) -> ConfigError:
    otherwise = "See the arguments of lightning.pytorch.Trainer."
    return ConfigError(
        key=key,
        problem="is no argument of the trainer",
        # A function, because only `names_places` knows the config that the hint depends on.
        fix=lambda loaded: unknown_hint(key, value, known, loaded) or otherwise,
    )


def trainer_arguments() -> frozenset[str]:
    """Return the names of the arguments of Lightning's `Trainer`."""
    # From the installed version: a list of our own would refuse what a newer Lightning adds.
    signature = signature_at("lightning.pytorch.Trainer")
    assert signature is not None  # it is written in Python
    return frozenset(signature.parameters)
