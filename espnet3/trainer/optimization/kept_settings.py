"""Settings of optimizers and schedules that a checkpoint keeps, and which of them give way.

Changes of the config that were accepted take effect; what else differs, such as the length of a
schedule that was told once, stays as the checkpoint has it, and is said.
"""

import copy
import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from espnet3.io.atomic import StrPath
from espnet3.trainer.optimization.optimization_config import is_plateau
from espnet3.trainer.optimization.optimizers import LENGTHS
from espnet3.trainer.optimization.updater import Updater

logger = logging.getLogger(__name__)

Settings = Mapping[str, Mapping[str, float]]
"""By optimizer, values by the names that torch has for them."""


@dataclass(frozen=True)
class BuiltState:
    """What an optimizer and its schedule were built with, before a checkpoint was loaded."""

    groups: list[dict[str, Any]]
    schedule: dict[str, Any] | None

    @classmethod
    def of(cls, updater: Updater) -> "BuiltState":
        """Copy it."""
        groups = [
            {name: copy.deepcopy(value) for name, value in group.items() if name != "params"}
            for group in updater.optimizer.param_groups
        ]
        schedule = updater.scheduler
        return cls(groups, None if schedule is None else copy.deepcopy(schedule.state_dict()))


def apply_changed(
    built: Mapping[str, BuiltState], updaters: Sequence[Updater], changed: Sequence[str]
) -> None:
    """Give the settings of the config to optimizers and schedules of which some were changed.

    A schedule is where it would be if it had been the new one from the first step.

    Args:
        built: by optimizer, before the checkpoint was loaded.
        updaters: with the state of the checkpoint.
        changed: keys of the config, such as `optimizer.lr`.
    """
    for updater in updaters:
        own = ("optimizer", "scheduler", f"optimizers.{updater.name}.optimizer",
               f"schedulers.{updater.name}")  # fmt: skip
        if any(key == name or key.startswith(f"{name}.") for key in changed for name in own):
            _apply(built[updater.name], updater)


def _apply(built: BuiltState, updater: Updater) -> None:
    schedule, groups = updater.scheduler, updater.optimizer.param_groups
    follows_metric = schedule is not None and is_plateau(schedule)
    scales = [_scale(group, new) if follows_metric else 1.0
              for group, new in zip(groups, built.groups, strict=True)]  # fmt: skip
    kept = [group["lr"] for group in groups]
    for group, new in zip(groups, built.groups, strict=True):
        group.update(copy.deepcopy(new))
    if schedule is None or built.schedule is None:
        return
    if follows_metric:
        # Which steps down it took depends on the metrics of then: these stay.
        progress = {name: getattr(schedule, name) for name in _PROGRESS if hasattr(schedule, name)}
        schedule.load_state_dict({**copy.deepcopy(built.schedule), **progress})
        for group, lr, scale in zip(groups, kept, scales, strict=True):
            group["lr"] = lr * scale
        return
    n_steps = schedule.last_epoch
    schedule.load_state_dict(copy.deepcopy(built.schedule))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that no optimizer steps in between
        for _ in range(n_steps):
            schedule.step()


_PROGRESS = ("best", "num_bad_epochs", "cooldown_counter", "last_epoch", "_last_lr", "_step_count")


def _scale(group: Mapping[str, Any], new: Mapping[str, Any]) -> float:
    """Return by how much the first learning rate of a group changed, where it is known."""
    before = group.get("initial_lr")
    return float(new["lr"]) / float(before) if before else 1.0


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
