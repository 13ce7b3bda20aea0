"""Refuse strategies and precisions that would train wrongly with the optimizers of the config."""

from collections.abc import Sequence

from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy

from espnet3.errors import ConfigError
from espnet3.trainer.optimization.updater import Updater


def check_combination(trainer: Trainer, updaters: Sequence[Updater]) -> None:
    """Check the strategy and the precision of a trainer against its optimizers.

    Raises:
        ConfigError: they do not go together.
    """
    _check_strategy(trainer, updaters)
    if getattr(trainer.precision_plugin, "scaler", None) is not None:
        _check_scaler(updaters)


def _check_strategy(trainer: Trainer, updaters: Sequence[Updater]) -> None:
    strategy = trainer.strategy
    if isinstance(strategy, DeepSpeedStrategy | ModelParallelStrategy):
        raise ConfigError(
            f"trainer.strategy is {type(strategy).__name__}, which wants backward passes, steps or "
            "the model to be written for it. For models larger than a GPU, write: strategy: fsdp"
        )
    if isinstance(strategy, FSDPStrategy) and len(updaters) > 1:
        raise ConfigError(
            "trainer.strategy is fsdp, which does not keep the parameters of the "
            f"{len(updaters)} optimizers apart. Write: strategy: ddp"
        )


def _check_scaler(updaters: Sequence[Updater]) -> None:
    for updater in updaters:
        config, key = updater.config, f"optimizers.{updater.name}"
        if len(updaters) > 1 and config.n_accumulated > 1:
            raise ConfigError(
                f"{key} accumulates {config.n_accumulated} batches, but with precision 16-mixed "
                "another optimizer may change the scale of the gradients in between. "
                "Write: precision: bf16-mixed"
            )
        unscales = getattr(updater.optimizer, "_step_supports_amp_scaling", False)
        if unscales and config.gradient_clip_val:
            raise ConfigError(
                f"{key} has fused: true, which hides the gradients from clipping with precision "
                "16-mixed. Write: fused: false, or precision: bf16-mixed"
            )
