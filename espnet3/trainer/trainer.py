"""Read the `trainer` block of a config, and hand it to Lightning."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.plugins import CheckpointIO, ClusterEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException

from espnet3.config.load import ConfigSource, LoadedConfig, as_loaded, load_config
from espnet3.config.sources import join_key, set_in
from espnet3.errors import ConfigError
from espnet3.trainer.checkpointing.checkpoint_io import AtomicCheckpointIO
from espnet3.trainer.config import (
    KEY,
    OPTIMIZATION,
    blamed_argument,
    check_trainer,
    lightning_arguments,
    trainer_arguments,
    trainer_block,
)
from espnet3.trainer.launching.cluster_environment import cluster_environment
from espnet3.trainer.reporting.loggers import build_loggers

logger = logging.getLogger(__name__)

__all__ = ["build_trainer", "trainer_for"]


def build_trainer(
    config: ConfigSource | Sequence[ConfigSource],
    callbacks: Sequence[pl.Callback] = (),
    *,
    exp_dir: str | None = None,
) -> pl.Trainer:
    """Build Lightning's trainer from the block, with our callbacks before those of the user.

    What the block does not say is Lightning's default, but for: files go to `exp_dir`, metrics to
    TensorBoard there, and checkpoints, summary and progress come from our callbacks.

    To train as the `train` stage does, with resume and averages, see `espnet3.trainer.train`.

    Args:
        config: the training config, or its `trainer` block alone: a dict, an OmegaConf config, a
            YAML file or several, or what `load_config` returned.
        callbacks: ours.
        exp_dir: of the experiment; None for that of the config, or else the current folder.

    Raises:
        ConfigError: Lightning does not take a value; or something cannot be built.

    Example:
        >>> build_trainer({"trainer": {"accelerator": "cpu", "max_epochs": 3}}).max_epochs
        3
    """
    loaded = _whole(as_loaded(config))
    block = trainer_block(loaded)
    left = {name: block[name] for name in OPTIMIZATION if block.get(name) is not None}
    for name in (n for n, v in left.items() if (n, v) != ("accumulate_grad_batches", 1)):
        logger.warning(
            "%s is %r%s, which this trainer leaves to the module that espnet3.trainer.train puts "
            "around a model: a LightningModule of your own must do it itself.",
            join_key(KEY, name), block[name], set_in(join_key(KEY, name), loaded),
        )  # fmt: skip
    folder = str(exp_dir or loaded.config.get("exp_dir") or ".")
    return trainer_for(loaded, callbacks, exp_dir=folder)


def trainer_for(
    loaded: LoadedConfig, callbacks: Sequence[pl.Callback] = (), *, exp_dir: str
) -> pl.Trainer:
    """Build the trainer for our own module, which accumulates and clips gradients itself."""
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
        check_trainer(loaded)  # has better words, for a misspelt name among others
        raise _refusal(block, error, loaded) from error


def _whole(loaded: LoadedConfig) -> LoadedConfig:
    """Return a config in which a block that was given without the rest is below its key."""
    keys = set(map(str, loaded.config))
    if KEY in keys or not keys & trainer_arguments():
        return loaded
    unknown = keys - trainer_arguments()
    if unknown and loaded.files:
        return loaded  # a file of other blocks, of which one is called like an argument
    return load_config({KEY: loaded.config})


def _refusal(block: Mapping[str, Any], error: Exception, loaded: LoadedConfig) -> ConfigError:
    name = blamed_argument(block, error)
    if name is None:
        return ConfigError(f"Lightning does not take the {KEY} block{set_in(KEY, loaded)}: {error}")
    key = join_key(KEY, name)
    return ConfigError(
        f"{key} is {block[name]!r:.80}{set_in(key, loaded)}, which Lightning does not take: {error}"
    )


def _checked(callbacks: list[Any], loaded: LoadedConfig) -> list[pl.Callback]:
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
