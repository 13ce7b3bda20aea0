"""Build optimizers and schedulers, and decide which settings a resumed training keeps.

Changes of the config that were accepted take effect; what else differs, such as the length of a
schedule, stays as the checkpoint has it, with a warning.
"""

import copy
import logging
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from torch import nn
from torch.optim import Optimizer

from espnet3.commands import same_command
from espnet3.config.instantiate import instantiate
from espnet3.config.targets import find_bad_argument, locate, signature_of
from espnet3.errors import ConfigError, suggest
from espnet3.io.atomic import StrPath
from espnet3.text import count, first_few
from espnet3.trainer.fine_tuning import first_parts, matches, plain_name
from espnet3.trainer.optimization.optimization_config import (
    LENGTHS,
    OptimizationConfig,
    OptimizerConfig,
    is_plateau,
)
from espnet3.trainer.optimization.optimizer_steps import Updater

logger = logging.getLogger(__name__)

Settings = Mapping[str, Mapping[str, float]]
"""By optimizer, values by the names that torch has for them."""
_MOST_NAMES = 8
_PROGRESS = ("best", "num_bad_epochs", "cooldown_counter", "last_epoch", "_last_lr", "_step_count")


@dataclass(frozen=True)
class TrainingLength:
    """Planned length of a training; infinite where nothing limits it."""

    n_batches: float
    """Of one epoch, on one rank."""
    n_epochs: float
    n_updates: float
    """The limit `trainer.max_steps`, of the optimizer that steps most often."""

    @classmethod
    def of(cls, trainer: Trainer) -> "TrainingLength":
        """Read it from a trainer, whose loader is set up for this."""
        # The number of batches is known only once the loader is set up.
        trainer.fit_loop.setup_data()
        n_epochs, n_steps = trainer.max_epochs, trainer.max_steps
        return cls(
            trainer.num_training_batches,
            math.inf if n_epochs is None or n_epochs < 0 else n_epochs,
            math.inf if n_steps < 0 else n_steps,
        )

    def n_steps(self, config: OptimizerConfig, all_configs: Mapping[str, OptimizerConfig]) -> float:
        """Return how often an optimizer will step, or a few times more, but not fewer."""
        per_epoch = _ceil(_ceil(self.n_batches / config.step_every_n_iters) / config.n_accumulated)
        clock = min(other.n_iters for other in all_configs.values())
        limit = _ceil(self.n_updates * clock / config.n_iters)
        return min(per_epoch * self.n_epochs if self.n_epochs else math.inf, limit)


def _ceil(value: float) -> float:
    return math.ceil(value) if math.isfinite(value) else value


def split_parameters(
    model: nn.Module, optimization: OptimizationConfig
) -> dict[str, list[nn.Parameter]]:
    """Return the trainable parameters of each optimizer, in the order of the model.

    Raises:
        ConfigError: a parameter belongs to no optimizer or to several, or a prefix names nothing.
    """
    trainable = {plain_name(n): p for n, p in model.named_parameters() if p.requires_grad}
    if not trainable:
        raise ConfigError(
            f"{type(model).__name__} has no trainable parameter. Leave some with "
            "requires_grad=True, or check that the layers are attributes of the model."
        )
    frozen = [plain_name(n) for n, p in model.named_parameters() if not p.requires_grad]
    _check_prefixes(trainable, frozen, optimization)
    owners = {name: _owners(name, optimization) for name in trainable}
    _check_orphans([n for n, o in owners.items() if not o], optimization)
    _check_shared({n: o for n, o in owners.items() if len(o) > 1})
    return {
        optimizer: [p for name, p in trainable.items() if owners[name] == [optimizer]]
        for optimizer in optimization.optimizers
    }


def _owners(name: str, optimization: OptimizationConfig) -> list[str]:
    return [
        optimizer
        for optimizer, config in optimization.optimizers.items()
        if (not config.params and len(optimization.optimizers) == 1)
        or any(matches(name, prefix) for prefix in config.params)
    ]


def _check_prefixes(
    names: Mapping[str, object], frozen: Sequence[str], optimization: OptimizationConfig
) -> None:
    modules = first_parts(names)
    for optimizer, config in optimization.optimizers.items():
        key = f"optimizers.{optimizer}.params"
        if not config.params and len(optimization.optimizers) > 1:
            raise ConfigError(
                f"{key} is not set, but with several optimizers each needs its parameters.",
                fix=f"Write: params: [...], from {first_few(modules, _MOST_NAMES)}",
            )
        for prefix in config.params:
            if any(matches(name, prefix) for name in names):
                continue
            if any(matches(name, prefix) for name in frozen):
                raise ConfigError(
                    f"{key} has {prefix!r}",
                    key=key,
                    problem="but all that begins so is frozen (see freeze), so that this "
                    "optimizer has nothing to do",
                    fix=f"Delete {prefix!r} there, or optimizers.{optimizer}; or take it out of "
                    "freeze.",
                )
            raise ConfigError(
                f"{key} has {prefix!r}",
                key=key,
                problem=f"but no trainable parameter begins so.{suggest(prefix, modules)} The "
                f"model has: {first_few(modules, _MOST_NAMES)}.",
            )


def _check_orphans(orphans: Sequence[str], optimization: OptimizationConfig) -> None:
    if not orphans:
        return
    optimizer, config = next(iter(optimization.optimizers.items()))
    line = ", ".join([*config.params, *first_parts(orphans)])
    raise ConfigError(
        f"{count(len(orphans), 'trainable parameter')} without an optimizer: "
        f"{first_few(orphans, _MOST_NAMES)}.",
        fix=f"Add them to one, such as optimizers.{optimizer}.params: [{line}], or freeze them in "
        "the model by requires_grad_(False).",
    )


def _check_shared(shared: Mapping[str, Sequence[str]]) -> None:
    if not shared:
        return
    name, owners = next(iter(shared.items()))
    raise ConfigError(
        f"{count(len(shared), 'parameter')} in several optimizers: "
        f"{first_few(shared, _MOST_NAMES)}. "
        f"{name!r} fits optimizers.{owners[0]}.params and optimizers.{owners[1]}.params: make the "
        "prefixes of one of them longer, so that each parameter fits one."
    )


def build_optimizer(
    name: str, optimization: OptimizationConfig, parameters: list[nn.Parameter]
) -> Optimizer:
    """Build one optimizer.

    Raises:
        ConfigError: its arguments do not fit.
    """
    node, key = optimization.optimizers[name].optimizer, optimization.optimizer_key(name)
    optimizer: Optimizer = _prepared(node, key, "params")(parameters)
    return optimizer


def build_scheduler(
    name: str, optimization: OptimizationConfig, optimizer: Optimizer, length: TrainingLength
) -> Any:
    """Build the scheduler of an optimizer.

    Where a scheduler needs the length of the training and the config has none, it is filled in.

    Raises:
        ConfigError: its arguments do not fit, or the length is needed and nothing limits it.
    """
    config = optimization.schedulers[name]
    all_configs = optimization.optimizers
    by_step = config.interval == "step"
    n_steps = length.n_steps(all_configs[name], all_configs) if by_step else length.n_epochs
    key = optimization.scheduler_key(name)
    return _Scheduler(optimizer, n_steps).build(config.scheduler, key)


@dataclass(frozen=True)
class _Scheduler:
    optimizer: Optimizer
    n_steps: float

    def build(self, node: Mapping[str, Any], key: str) -> Any:
        node = {**node, **self._length(node, key)}
        inner = node.pop("schedulers", None)
        if inner is None:
            return _prepared(node, key, "optimizer")(optimizer=self.optimizer)
        # SequentialLR and ChainedScheduler hold others, each of which wants the optimizer.
        built = [self.build(child, f"{key}.schedulers.{i}") for i, child in enumerate(inner)]
        outer = _prepared(node, key, "optimizer", "schedulers")
        return outer(optimizer=self.optimizer, schedulers=built)

    def _length(self, node: Mapping[str, Any], key: str) -> dict[str, int]:
        signature = signature_of(locate(node["_target_"]))
        wanted = [n for n in LENGTHS if signature and n in signature.parameters and n not in node]
        # OneCycleLR takes these two instead.
        if not wanted or {"epochs", "steps_per_epoch"} <= set(node):
            return {}
        if not math.isfinite(self.n_steps):
            raise ConfigError(
                f"{key} is {node['_target_']}",
                key=key,
                problem="which must know how long the training is",
                fix=f"Write: {wanted[0]}: 100000, or set trainer.max_epochs or trainer.max_steps.",
            )
        # OneCycleLR refuses a length of 0, and CosineAnnealingLR divides by it.
        return {wanted[0]: max(1, int(self.n_steps))}


def _prepared(node: Mapping[str, Any], key: str, *given: str) -> "partial[Any]":
    """Return the target with the arguments of the node, to be called with the `given` ones.

    Hydra would copy parameters and optimizers that go through it, so they are not among them.
    """
    signature = signature_of(locate(node["_target_"]))
    all_arguments = {**node, **dict.fromkeys(given)}
    bad = find_bad_argument(signature, all_arguments) if signature else None
    if bad is not None:
        raise ConfigError(
            f"{key} does not fit its target: {bad.reason}",
            key=f"{key}.{bad.name}" if bad.name else key,
            fix=lambda loaded: (
                f"{bad.hint_at(key, node, loaded)}\nSignature: {node['_target_']}{signature}"
            ),
        )
    # Containers of OmegaConf in the state of an optimizer would make checkpoints unreadable.
    options = {"_partial_": True, "_convert_": "all"}
    built: partial[Any] = instantiate({**node, **options}, key=key)
    return built


@dataclass(frozen=True)
class BuiltState:
    """Settings of an optimizer and its schedule as built, before a checkpoint was loaded."""

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
        # Step by step, since most schedules have no closed form.
        for _ in range(n_steps):
            schedule.step()


def _scale(group: Mapping[str, Any], new: Mapping[str, Any]) -> float:
    """Return by how much the first learning rate of a group changed, where it is known."""
    before = group.get("initial_lr")
    return float(new["lr"]) / float(before) if before else 1.0


def settings_of(updaters: Sequence[Updater]) -> Settings:
    """Return the settings that torch saves with the state and restores with it."""
    return {updater.name: _of_optimizer(updater) | _of_schedule(updater) for updater in updaters}


def _of_optimizer(updater: Updater) -> dict[str, float]:
    # There is only one group: the parameters are passed as one list.
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
            "A resumed training keeps its settings: %s. A schedule beyond its planned length "
            "may stay at its end, or rise again. For the new ones, start another training from "
            "these weights: %s",
            ", ".join(kept),
            same_command("exp_tag=NEW_NAME", f"init={{path: {path}}}"),
        )


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
            f"{len(updaters)} optimizers apart.",
            fix="Write: strategy: ddp",
        )


def _check_scaler(updaters: Sequence[Updater]) -> None:
    for updater in updaters:
        config, key = updater.config, f"optimizers.{updater.name}"
        if len(updaters) > 1 and config.n_accumulated > 1:
            raise ConfigError(
                f"{key} accumulates {config.n_accumulated} batches, but with precision 16-mixed "
                "another optimizer may change the scale of the gradients in between.",
                fix="Write: precision: bf16-mixed",
            )
        # torch sets it on fused optimizers, which unscale within their step.
        unscales = getattr(updater.optimizer, "_step_supports_amp_scaling", False)
        if unscales and config.gradient_clip_val:
            raise ConfigError(
                f"{key} has fused: true, which hides the gradients from clipping with precision "
                "16-mixed.",
                fix="Write: fused: false, or precision: bf16-mixed",
            )
