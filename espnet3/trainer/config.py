"""The `trainer` block: what is Lightning's, what is ours, and what is misspelt."""

import inspect
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from espnet3.config.problems import yaml_line
from espnet3.config.resolve import resolved
from espnet3.config.sources import join_key, set_in
from espnet3.errors import ConfigError

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

KEY = "trainer"

OPTIMIZATION = ("accumulate_grad_batches", "gradient_clip_val", "gradient_clip_algorithm")
"""Arguments that our module carries out, for one optimizer and for several alike."""

_BUILT = ("callbacks", "plugins", "profiler", "strategy", "accelerator")
"""Arguments that may hold a `_target_`, or a list of such; loggers have rules of their own."""

_OURS = {
    "use_distributed_sampler": (False, "our loaders spread the samples over the ranks themselves"),
    "barebones": (False, "it leaves out logging and checkpoints, on which resuming relies"),
}
"""Arguments with one value only, and why."""


def trainer_block(loaded: "LoadedConfig") -> dict[str, Any]:
    """Return the resolved `trainer` block as plain values.

    Raises:
        ConfigError: it is no mapping.
    """
    values = resolved(loaded.config, loaded=loaded).get(KEY)
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise ConfigError(
            f"{KEY} is {values!r:.60}{set_in(KEY, loaded)}, but must be a mapping of Lightning's "
            "arguments. Write: trainer: {accelerator: auto, devices: 1, max_epochs: 10}"
        )
    return dict(values)


def check_trainer(loaded: "LoadedConfig") -> dict[str, Any]:
    """Check the names and the plain values of the block; no data or model is needed.

    Returns:
        The block.

    Raises:
        ConfigError: naming the key, its place, and what to write.
    """
    block = trainer_block(loaded)
    known = trainer_arguments()
    for name, value in block.items():
        key = join_key(KEY, name)
        if name not in known:
            raise ConfigError(_unknown(key, value, known, loaded))
        if name in _OURS and value != _OURS[name][0]:
            raise ConfigError(
                f"{key} is {value!r}{set_in(key, loaded)}, but {_OURS[name][1]}. Delete the line."
            )
    return block


def _unknown(key: str, value: Any, known: Collection[str], loaded: "LoadedConfig") -> str:
    text = f"{key}{set_in(key, loaded)} is no argument of the trainer."
    close = get_close_matches(key.removeprefix(f"{KEY}."), known, n=1, cutoff=0.6)
    if not close:
        return f"{text} See the arguments of lightning.pytorch.Trainer."
    return f"{text} Did you mean {close[0]!r}? Write: {yaml_line(close[0], value)}"


def has_goal(block: Mapping[str, Any]) -> bool:
    """Tell whether the block says when the training ends; Lightning's default is 1,000 epochs."""
    return any(block.get(name) for name in ("max_epochs", "max_steps", "max_time", "fast_dev_run"))


def trainer_arguments() -> frozenset[str]:
    """Return the names of the arguments of Lightning's `Trainer`."""
    from lightning.pytorch import Trainer

    return frozenset(inspect.signature(Trainer.__init__).parameters) - {"self"}


def lightning_arguments(block: Mapping[str, Any], loaded: "LoadedConfig | None") -> dict[str, Any]:
    """Return what goes to Lightning: objects built, our own arguments left out.

    Raises:
        ConfigError: a `_target_` cannot be built.
    """
    from espnet3.config.instantiate import instantiate

    arguments = {k: v for k, v in block.items() if k not in (*OPTIMIZATION, *_OURS)}
    for name in _BUILT:
        value = arguments.get(name)
        if isinstance(value, Mapping | list):
            arguments[name] = instantiate(value, key=join_key(KEY, name), loaded=loaded)
    return arguments
