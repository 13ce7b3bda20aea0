"""Build Lightning's `Trainer` from the `trainer` block, and keep its chatter out of the log."""

import logging
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.plugins import CheckpointIO, ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from typing_extensions import override

from espnet3.config.load import ConfigSource, LoadedConfig, as_loaded, load_config
from espnet3.config.sources import join_key
from espnet3.errors import ConfigError
from espnet3.io.atomic import StrPath
from espnet3.trainer.checkpointing.checkpoint_io import (
    read_checkpoint,
    remove_path,
    write_checkpoint,
)
from espnet3.trainer.config import (
    OPTIMIZATION,
    blamed_argument,
    check_trainer,
    lightning_arguments,
)
from espnet3.trainer.launching.process_rank import process_rank
from espnet3.trainer.lightning_internals import use_lean_loop
from espnet3.trainer.reporting.loggers import build_loggers
from espnet3.trainer.trainer_block import KEY, trainer_arguments, trainer_block

logger = logging.getLogger(__name__)

__all__ = ["build_trainer", "trainer_for"]
_LOGGERS = ("lightning", "lightning.pytorch", "lightning.fabric")
_NOISE = re.compile(
    r"💡|litlogger|litmodels|lightning\.ai"
    r"|(GPU|TPU|HPU) available"
    r"|Using .*Automatic Mixed Precision|Using default `ModelCheckpoint`"
    r"|Initializing distributed|distributed_backend="
    r"|LOCAL_RANK: \d+ - CUDA_VISIBLE_DEVICES"
    r"|Loading `train_dataloader` to estimate"
    r"|Restoring states from|Restored all states from"
    r"|`weights_only` was not set"
    r"|`Trainer\.fit` stopped: `max_"
    r"|`Trainer\(limit_.*was configured so"
)
_WARNINGS = (
    r".*Checkpoint directory .* exists and is not empty",  # of every resumed run
    r".*The number of training batches .* is smaller than the logging interval",
    r".*You defined a `validation_step` but have no `val_dataloader`",
    r".*litlogger",
    r".*Found \d+ module\(s\) in eval mode at the start of training",  # see Frozen
    r".*The `srun` command is available on your system but is not used",  # see launch_check
    r".*isinstance\(treespec, LeafSpec\)",
    r".*`?torch\.jit\.script",
)


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
            join_key(KEY, name), block[name], loaded.set_in(join_key(KEY, name)),
        )  # fmt: skip
    folder = str(exp_dir or loaded.config.get("exp_dir") or ".")
    with loaded.naming_places():
        try:
            return trainer_for(block, callbacks, exp_dir=folder)
        except ConfigError:
            check_trainer(loaded)  # has better words, for a misspelt name among others
            raise


def trainer_for(
    block: Mapping[str, Any], callbacks: Sequence[pl.Callback] = (), *, exp_dir: str
) -> pl.Trainer:
    """Build the trainer for our own module, which accumulates and clips gradients itself."""
    arguments = lightning_arguments(block)
    arguments["logger"] = build_loggers(block.get("logger"), exp_dir)
    users = _checked(_listed(arguments.get("callbacks")))
    arguments["callbacks"] = [*callbacks, *users]
    arguments["plugins"] = _with_ours(_listed(arguments.get("plugins")))
    has_bar = any(isinstance(callback, pl.callbacks.ProgressBar) for callback in users)
    ours = {
        "enable_progress_bar": has_bar,  # one of the user's own
        "enable_model_summary": False,  # our progress lines have it
        "use_distributed_sampler": False,  # our loaders spread the samples over the ranks
    }
    defaults = {"default_root_dir": exp_dir, "enable_autolog_hparams": False}
    try:
        # In this order, the block wins over defaults, but not over what our callbacks replace.
        trainer = pl.Trainer(**{**defaults, **arguments, **ours})
    except (ValueError, TypeError, ImportError, MisconfigurationException) as error:
        raise _refusal(block, error) from error
    use_lean_loop(trainer)
    return trainer


def _whole(loaded: LoadedConfig) -> LoadedConfig:
    """Return a config in which a block that was given without the rest is below its key."""
    keys = set(map(str, loaded.config))
    if KEY in keys or not keys & trainer_arguments():
        return loaded
    unknown = keys - trainer_arguments()
    if unknown and loaded.files:
        return loaded  # a file of other blocks, of which one is called like an argument
    return load_config({KEY: loaded.config})


def _refusal(block: Mapping[str, Any], error: Exception) -> ConfigError:
    name = blamed_argument(block, error)
    if name is None:
        head = f"Lightning does not take the {KEY} block"
        return ConfigError(head, key=KEY, problem=f": {error}")
    return ConfigError(
        f"{KEY}.{name} is {block[name]!r:.80}",
        key=f"{KEY}.{name}",
        problem=f"which Lightning does not take: {error}",
    )


def _checked(callbacks: list[Any]) -> list[pl.Callback]:
    for index, callback in enumerate(callbacks):
        if not isinstance(callback, pl.Callback):
            raise ConfigError(
                key=f"{KEY}.callbacks.{index}",
                problem=f"is {_kind(callback)}, no callback of Lightning",
                fix="Write: callbacks: "
                "[{_target_: lightning.pytorch.callbacks.EarlyStopping, monitor: valid/loss}]",
            )
    return callbacks


def _kind(value: Any) -> str:
    return repr(value) if isinstance(value, str | int | float) else f"a {type(value).__name__}"


def _with_ours(plugins: list[Any]) -> list[Any]:
    # The user's own wins: Lightning refuses a second plugin of a kind.
    if not any(isinstance(plugin, CheckpointIO) for plugin in plugins):
        plugins = [*plugins, AtomicCheckpointIO()]
    if not any(isinstance(plugin, ClusterEnvironment) for plugin in plugins):
        plugins = [*plugins, cluster_environment()]
    return plugins


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


class AtomicCheckpointIO(CheckpointIO):
    """Lightning's plugin for saving and loading checkpoint files.

    Strategies that write a folder (sharded FSDP) do not come through here; Lightning does that.
    """

    @override
    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: StrPath, storage_options: Any = None
    ) -> None:
        """Write the file; until it is whole, the old one stays. See `write_checkpoint`."""
        if storage_options is not None:
            raise TypeError("AtomicCheckpointIO has no storage_options; leave them out.")
        write_checkpoint(checkpoint, path)

    @override
    def load_checkpoint(
        self, path: StrPath, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read the file to the CPU, always with `weights_only=True`. See `read_checkpoint`."""
        return read_checkpoint(path)

    @override
    def remove_checkpoint(self, path: StrPath) -> None:
        """Remove a file or a folder; one that is gone already is fine."""
        remove_path(path)


def cluster_environment(environ: Mapping[str, str] = os.environ) -> ClusterEnvironment:
    """Return the environment to hand to Lightning's trainer as a plugin.

    Lightning would choose one itself, but takes a batch script for a process of srun, and the
    processes of srun in an `salloc` shell for ones without a launcher. And its own handling of
    Slurm's signal, which writes a checkpoint of another name, is left out.
    """
    rank = process_rank(environ)
    if rank.launcher == "torchrun":
        return TorchElasticEnvironment()
    if rank.launcher == "srun" and rank.world_size > 1:
        return SLURMEnvironment(auto_requeue=False)
    return LightningEnvironment()


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Leave out Lightning's noise inside the block, and let the rest of it reach the log file.

    Warnings and errors are kept, and so is what callbacks and profilers report. It must be open
    while the `Trainer` is built and while it runs.
    """
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        for message in _WARNINGS:
            warnings.filterwarnings("ignore", message=message)
        for logger in _all_loggers():
            logger.addFilter(_is_wanted)
            stack.callback(logger.removeFilter, _is_wanted)
        # In a notebook without logging set up, Lightning's own handlers are all there is.
        if logging.getLogger().handlers:
            # The parent prints to the terminal as well, though its children hand nothing to it.
            for name in ("lightning", *_LOGGERS):
                _hand_to_root(logging.getLogger(name), stack)
        yield


def _is_wanted(record: logging.LogRecord) -> bool:
    return record.levelno > logging.INFO or _NOISE.search(record.getMessage()) is None


def _all_loggers() -> list[logging.Logger]:
    # A filter holds for its own logger only, not for those below it.
    known = sorted(logging.root.manager.loggerDict)
    return [logging.getLogger(name) for name in known if name.startswith(_LOGGERS)]


def _hand_to_root(logger: logging.Logger, stack: ExitStack) -> None:
    """Send what Lightning logs to the handlers of the program, such as that of `train.log`."""

    def restore(handlers: list[logging.Handler], propagate: bool) -> None:
        logger.handlers, logger.propagate = handlers, propagate

    stack.callback(restore, logger.handlers, logger.propagate)
    logger.handlers, logger.propagate = [], True
