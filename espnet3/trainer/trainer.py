"""Read the `trainer` block of a config, and hand it to Lightning."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
from lightning.fabric.plugins import CheckpointIO, ClusterEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException

from espnet3.config.sources import join_key, set_in
from espnet3.errors import ConfigError
from espnet3.trainer.checkpointing.checkpoint_io import AtomicCheckpointIO
from espnet3.trainer.config import KEY, blamed_argument, lightning_arguments, trainer_block
from espnet3.trainer.launching.cluster_environment import cluster_environment
from espnet3.trainer.reporting.loggers import build_loggers

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig


def build_trainer(
    loaded: "LoadedConfig",
    callbacks: Sequence[pl.Callback] = (),
    *,
    exp_dir: str = ".",
) -> pl.Trainer:
    """Build Lightning's trainer from the block, with our callbacks before those of the user.

    What the block does not say is Lightning's default, but for: files go to `exp_dir`, metrics to
    TensorBoard there, and checkpoints, summary and progress come from our callbacks.

    Args:
        loaded: the training config.
        callbacks: ours.
        exp_dir: of the experiment.

    Raises:
        ConfigError: Lightning does not take a value; or something cannot be built.
    """
    block = trainer_block(loaded)
    arguments = lightning_arguments(block, loaded)
    arguments["logger"] = build_loggers(block.get("logger"), exp_dir, loaded=loaded)
    users = _checked(_listed(arguments.get("callbacks")), loaded)
    arguments["callbacks"] = [*callbacks, *users]
    arguments["plugins"] = _with_ours(_listed(arguments.get("plugins")))
    has_bar = any(isinstance(callback, pl.callbacks.ProgressBar) for callback in users)
    ours = {
        "enable_progress_bar": has_bar,  # one of the user's own
        "enable_model_summary": False,
        "use_distributed_sampler": False,
    }
    defaults = {"default_root_dir": exp_dir, "enable_autolog_hparams": False}
    try:
        return pl.Trainer(**{**defaults, **arguments, **ours})
    except (ValueError, TypeError, ImportError, MisconfigurationException) as error:
        raise _refusal(block, error, loaded) from error


def _refusal(block: Mapping[str, Any], error: Exception, loaded: "LoadedConfig") -> ConfigError:
    name = blamed_argument(block, error)
    if name is None:
        return ConfigError(f"Lightning does not take the {KEY} block{set_in(KEY, loaded)}: {error}")
    key = join_key(KEY, name)
    return ConfigError(
        f"{key} is {block[name]!r:.80}{set_in(key, loaded)}, which Lightning does not take: {error}"
    )


def _checked(callbacks: list[Any], loaded: "LoadedConfig") -> list[pl.Callback]:
    for index, callback in enumerate(callbacks):
        if not isinstance(callback, pl.Callback):
            key = join_key(KEY, "callbacks", index)
            raise ConfigError(
                f"{key}{set_in(key, loaded)} is {_kind(callback)}, no callback of Lightning. "
                "Write: callbacks: "
                "[{_target_: lightning.pytorch.callbacks.EarlyStopping, monitor: valid/loss}]"
            )
    return callbacks


def _kind(value: Any) -> str:
    return repr(value) if isinstance(value, str | int | float) else f"a {type(value).__name__}"


def _with_ours(plugins: list[Any]) -> list[Any]:
    if not any(isinstance(plugin, CheckpointIO) for plugin in plugins):
        plugins = [*plugins, AtomicCheckpointIO()]
    if not any(isinstance(plugin, ClusterEnvironment) for plugin in plugins):
        plugins = [*plugins, cluster_environment()]
    return plugins


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]
