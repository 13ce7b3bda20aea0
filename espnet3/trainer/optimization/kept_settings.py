"""Settings of optimizers and schedules that a checkpoint keeps, whatever the config says by now."""

import logging
from collections.abc import Mapping, Sequence

from espnet3.io.atomic import StrPath
from espnet3.trainer.optimization.optimizers import LENGTHS
from espnet3.trainer.optimization.updater import Updater

logger = logging.getLogger(__name__)

Settings = Mapping[str, Mapping[str, float]]
"""By optimizer, values by the names that torch has for them."""


def settings_of(updaters: Sequence[Updater]) -> Settings:
    """Return the settings that torch saves with the state and restores with it."""
    return {updater.name: _of_optimizer(updater) | _of_schedule(updater) for updater in updaters}


def _of_optimizer(updater: Updater) -> dict[str, float]:
    group = updater.optimizer.param_groups[0]
    # A schedule changes `lr`, and most of them note the first one; other values may be its as well.
    lr = group.get("initial_lr", None if updater.scheduler is not None else group["lr"])
    values = {"lr": lr, "weight_decay": group.get("weight_decay")}
    return {name: float(value) for name, value in values.items() if value is not None}


def _of_schedule(updater: Updater) -> dict[str, float]:
    values = {name: getattr(updater.scheduler, name, None) for name in LENGTHS}
    return {name: value for name, value in values.items() if isinstance(value, int | float)}


def warn_of_kept(built: Settings, updaters: Sequence[Updater], path: StrPath) -> None:
    """Say which settings of the config have no effect, as the checkpoint has others.

    Args:
        built: the settings before the checkpoint was loaded.
        updaters: with their state of now.
        path: of the checkpoint.
    """
    kept = [
        f"{name} of {optimizer} ({value:g} in the checkpoint, {built[optimizer][name]:g} here)"
        for optimizer, values in settings_of(updaters).items()
        for name, value in values.items()
        if name in built[optimizer] and value != built[optimizer][name]
    ]
    if kept:
        logger.warning(
            "A training that goes on keeps its settings: %s. A schedule beyond its planned length "
            "may stay at its end, or rise again. For the new ones, start another training from "
            "these weights: exp_tag=NEW_NAME 'init={path: %s}'",
            ", ".join(kept),
            path,
        )
