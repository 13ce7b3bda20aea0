"""The words of the `trainer` block: accelerators, strategies and precisions that Lightning has."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from espnet3.config.sources import set_in
from espnet3.errors import ConfigError, suggest

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

_USUAL_STRATEGIES = ("auto", "ddp", "ddp_find_unused_parameters_true", "fsdp", "deepspeed_stage_2")
_USUAL_PRECISIONS = ("32-true", "bf16-mixed", "16-mixed", "bf16-true", "64-true")


def check_names(block: Mapping[str, Any], loaded: "LoadedConfig | None" = None) -> None:
    """Refuse an accelerator, strategy or precision that Lightning does not know.

    A mapping must have a `_target_`; an object is left to Lightning.

    Raises:
        ConfigError: with the closest word, or those that are usual.
    """
    from espnet3.trainer.lightning_internals import precision_names

    _check_word(block, "accelerator", _accelerators(), loaded)
    _check_word(block, "strategy", _strategies(), loaded, usual=_USUAL_STRATEGIES)
    _check_word(block, "precision", precision_names(), loaded, usual=_USUAL_PRECISIONS)


def is_fsdp(block: Mapping[str, Any]) -> bool:
    """Tell whether the strategy shards the model with Lightning's `FSDPStrategy`."""
    strategy = block.get("strategy")
    if isinstance(strategy, Mapping):
        return str(strategy.get("_target_", "")).rpartition(".")[2] == "FSDPStrategy"
    return isinstance(strategy, str) and strategy.lower().startswith("fsdp")


def _accelerators() -> list[str]:
    from lightning.pytorch.accelerators import AcceleratorRegistry

    return ["auto", "gpu", *sorted(AcceleratorRegistry.available_accelerators())]


def _strategies() -> list[str]:
    from lightning.pytorch.strategies import StrategyRegistry

    return ["auto", *StrategyRegistry.available_strategies()]


def _check_word(
    block: Mapping[str, Any],
    name: str,
    known: Collection[str],
    loaded: "LoadedConfig | None",
    *,
    usual: Collection[str] = (),
) -> None:
    value = block.get(name)
    key = f"trainer.{name}"
    where = f"{key} is {value!r}{set_in(key, loaded)}"
    if isinstance(value, Mapping) and "_target_" not in value:
        raise ConfigError(
            f"{where}, a mapping without a class. Write {name}: WORD, or give the class: "
            f"{name}: {{_target_: lightning.pytorch.{_EXAMPLES[name]}}}"
        )
    if not isinstance(value, str | int) or (name == "strategy" and value == ""):
        return  # None is Lightning's default; what is an object already is Lightning's to judge
    word = str(value)
    if (word.lower() if name == "strategy" else word) in known:
        return
    listed = ", ".join(usual or known)
    raise ConfigError(
        f"{where}, which Lightning does not have.{suggest(word, known)} "
        f"{'Usual ones' if usual else 'It has'}: {listed}."
    )


_EXAMPLES = {
    "strategy": "strategies.DDPStrategy",
    "accelerator": "accelerators.CUDAAccelerator",
    "precision": "plugins.MixedPrecision",
}
