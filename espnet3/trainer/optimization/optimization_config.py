"""The keys `optimizer`, `scheduler`, `optimizers` and `schedulers` of a training config.

Reading them checks the keys against each other; `check_optimizers` also tries the arguments of the
targets, before there is a model.
"""

import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    field_validator,
)

from espnet3.config.load import LoadedConfig, as_loaded
from espnet3.config.schema import FrozenConfig, validate
from espnet3.config.sources import join_key, place_of
from espnet3.config.targets import RESERVED, BadTarget, locate, signature_at
from espnet3.errors import ConfigError, suggest
from espnet3.trainer.config import check_call, those_of

logger = logging.getLogger(__name__)

_EXAMPLES = {
    "optimizer": "{_target_: torch.optim.AdamW, lr: 0.001}",
    "scheduler": "{_target_: espnet3.components.schedulers.WarmupLR, warmup_steps: 10000}",
}
_SETS_RATE = ("OneCycleLR", "CyclicLR")

LENGTHS = ("total_steps", "T_max", "num_training_steps")
"""Arguments of schedulers that mean "how long the training is"."""
# What the training adds when it builds a scheduler.
_ADDED = ("optimizer", "schedulers", *LENGTHS)
SINGLE = "optimizer"
"""Name of the optimizer where there is only one, without a name of its own."""
ClipAlgorithm = Literal["norm", "value"]


def _targeted(node: Any, kind: str) -> Any:
    if not isinstance(node, Mapping):
        raise ValueError(f"must be a mapping with a _target_. Write: {kind}: {_EXAMPLES[kind]}")
    if not isinstance(node.get("_target_"), str):
        raise ValueError(f"it needs a _target_. Write: {_EXAMPLES[kind]}")
    return node


OptimizerNode = Annotated[dict[str, Any], BeforeValidator(partial(_targeted, kind="optimizer"))]
SchedulerNode = Annotated[dict[str, Any], BeforeValidator(partial(_targeted, kind="scheduler"))]


class OptimizerConfig(FrozenConfig):
    """One optimizer: what it updates, and when."""

    optimizer: OptimizerNode
    """`_target_` and arguments, without the parameters."""
    params: tuple[str, ...] = ()
    """Which parameters are its own: prefixes of their names, `*` allowed; none means all."""
    accum_grad_steps: PositiveInt | None = None
    """Batches that make one update; else `trainer.accumulate_grad_batches`, or 1."""
    step_every_n_iters: PositiveInt = 1
    """Its loss is computed on every n-th batch only."""
    gradient_clip_val: NonNegativeFloat | None = None
    """Limit for the gradients, 0 for none; else `trainer.gradient_clip_val`."""
    gradient_clip_algorithm: ClipAlgorithm | None = None
    """`norm` of all gradients together, or each `value`; else that of `trainer`, or norm."""

    @field_validator("params", mode="before")
    @classmethod
    def _one_or_several(cls, params: Any) -> Any:
        return (params,) if isinstance(params, str) else params

    @property
    def n_accumulated(self) -> int:
        """Batches per update."""
        return self.accum_grad_steps or 1

    @property
    def n_iters(self) -> int:
        """Iterations per update."""
        return self.n_accumulated * self.step_every_n_iters


class SchedulerConfig(FrozenConfig):
    """Learning-rate schedule of one optimizer."""

    scheduler: SchedulerNode
    """`_target_` and arguments, without the optimizer."""
    interval: Literal["step", "epoch"] = "step"
    """Whether it advances after each update of its optimizer or after each epoch."""
    monitor: str | None = None
    """The metric that `ReduceLROnPlateau` looks at, such as `valid/loss`."""


class OptimizationKeys(FrozenConfig):
    """The top-level keys."""

    optimizer: OptimizerNode | None = None
    """`_target_` and arguments of the one optimizer, without the parameters."""
    scheduler: SchedulerNode | None = None
    """`_target_` and arguments of its learning-rate schedule, without the optimizer."""
    scheduler_interval: Literal["step", "epoch"] | None = None
    """Whether the schedule advances after each update or after each epoch; unset: step."""
    scheduler_monitor: str | None = None
    """The metric that `ReduceLROnPlateau` looks at, such as `valid/loss`."""
    optimizers: dict[str, OptimizerConfig] = Field(default_factory=dict)
    """Several optimizers by name, in place of `optimizer`."""
    schedulers: dict[str, SchedulerConfig] = Field(default_factory=dict)
    """Their schedules, by the same names."""
    max_nonfinite_batches: NonNegativeInt = 20
    """As many batches in a row may have a loss or gradient that is not finite."""


class _TrainerKeys(FrozenConfig):
    """Those of the `trainer` block that our module carries out, not Lightning."""

    accumulate_grad_batches: PositiveInt | None = None
    gradient_clip_val: NonNegativeFloat | None = None
    gradient_clip_algorithm: ClipAlgorithm | None = None


def load_optimization_keys(loaded: LoadedConfig) -> OptimizationKeys:
    """Read the keys, whatever their targets are.

    Raises:
        ConfigError: one error that lists every problem.
    """
    return validate(OptimizationKeys, those_of(OptimizationKeys, loaded.plain()), loaded=loaded)


@dataclass(frozen=True)
class OptimizationConfig:
    """All optimizers and their schedulers, in the order of updates."""

    optimizers: Mapping[str, OptimizerConfig]
    schedulers: Mapping[str, SchedulerConfig] = field(default_factory=dict)
    max_nonfinite_batches: int = 20
    """As many batches in a row may have a loss or gradient that is not finite."""

    @classmethod
    def from_config(cls, config: LoadedConfig | Mapping[str, Any]) -> "OptimizationConfig":
        """Read a training config; its other keys are left to their owners.

        Raises:
            ConfigError: a key is misspelt or contradicts another, a `_target_` does not exist or is
                an optimizer that we cannot drive, or there is no optimizer at all.
        """
        loaded = as_loaded(config)
        values = loaded.plain()
        keys = load_optimization_keys(loaded)
        trainer = those_of(_TrainerKeys, values.get("trainer") or {})
        defaults = validate(_TrainerKeys, trainer, prefix="trainer", loaded=loaded)
        with loaded.naming_places():
            return cls._of(keys, defaults)

    @classmethod
    def _of(cls, keys: OptimizationKeys, defaults: _TrainerKeys) -> "OptimizationConfig":
        _check_forms(keys)
        optimizers = keys.optimizers
        if keys.optimizer is not None:
            optimizers = {SINGLE: OptimizerConfig(optimizer=keys.optimizer)}
        result = cls(
            {name: _with_defaults(config, defaults) for name, config in optimizers.items()},
            _all_schedulers(keys),
            keys.max_nonfinite_batches,
        )
        result._check_targets()
        return result

    def optimizer_key(self, name: str) -> str:
        """Return the dotted key of an optimizer's node."""
        return SINGLE if name == SINGLE and self._is_plain else f"optimizers.{name}.optimizer"

    def scheduler_key(self, name: str) -> str:
        """Return the dotted key of a scheduler's node."""
        return "scheduler" if name == SINGLE and self._is_plain else f"schedulers.{name}.scheduler"

    def monitor_key(self, name: str) -> str:
        """Return the dotted key of the metric that a scheduler looks at."""
        is_single = self.scheduler_key(name) == "scheduler"
        return "scheduler_monitor" if is_single else f"schedulers.{name}.monitor"

    @property
    def _is_plain(self) -> bool:
        return list(self.optimizers) == [SINGLE]

    def _check_targets(self) -> None:
        for name, optimizer in self.optimizers.items():
            key = self.optimizer_key(name)
            target = _located(optimizer.optimizer, key)
            if _needs_closure(target):
                raise ConfigError(
                    f"{key} is {optimizer.optimizer['_target_']}",
                    key=key,
                    problem="which runs the model several times per step. That is not supported, "
                    "as gradients could be neither accumulated nor checked",
                    fix="Write: _target_: torch.optim.AdamW",
                )
        for name, scheduler in self.schedulers.items():
            self._check_monitor(name, scheduler)

    def _check_monitor(self, name: str, scheduler: SchedulerConfig) -> None:
        key, monitor_key = self.scheduler_key(name), self.monitor_key(name)
        target = _located(scheduler.scheduler, key)
        line = f"{monitor_key.rpartition('.')[2]}: valid/loss"
        if is_plateau(target) and scheduler.monitor is None:
            raise ConfigError(
                f"{key} is ReduceLROnPlateau",
                key=key,
                problem=f"but {monitor_key} does not say which metric it looks at",
                fix=f"Write: {line}",
            )
        if not is_plateau(target) and scheduler.monitor is not None:
            raise ConfigError(
                key=monitor_key,
                value=scheduler.monitor,
                problem=f"but {scheduler.scheduler['_target_']} looks at no metric",
                fix="Delete the line, or use _target_: torch.optim.lr_scheduler.ReduceLROnPlateau",
            )


def check_optimizers(
    optimization: OptimizationConfig, is_typed: Callable[[str], bool] = lambda key: False
) -> None:
    """Check the arguments of what the keys name.

    Args:
        optimization: the keys.
        is_typed: returns whether a key was given on the command line.

    Raises:
        ConfigError: naming the key and what to write.
    """
    for name, optimizer in optimization.optimizers.items():
        key = optimization.optimizer_key(name)
        check_call(optimizer.optimizer, key, added=["params"])
        _try_optimizer(optimizer.optimizer, key)
    for name, scheduler in optimization.schedulers.items():
        key = optimization.scheduler_key(name)
        _check_scheduler(scheduler.scheduler, key)
        if not is_typed(join_key(key, "max_lr")):  # else what is meant was said
            _warn_of_rate(name, optimization)


def _check_scheduler(node: Any, key: str) -> None:
    if not isinstance(node, Mapping) or "_target_" not in node:
        raise ConfigError(
            f"{key} is {node!r:.80}",
            key=key,
            problem="but must be a mapping with a _target_",
            fix=f"Write: {_EXAMPLES['scheduler']}",
        )
    for index, child in enumerate(node.get("schedulers") or ()):
        _check_scheduler(child, f"{key}.schedulers.{index}")
    signature = signature_at(node["_target_"])
    added = [name for name in _ADDED if signature and name in signature.parameters]
    check_call(node, key, added=added)


def _warn_of_rate(name: str, optimization: OptimizationConfig) -> None:
    """Warn of a rate that some schedulers replace: a sweep over it would train equal models."""
    node = optimization.schedulers[name].scheduler
    rate, highest = optimization.optimizers[name].optimizer.get("lr"), node.get("max_lr")
    if str(node["_target_"]).rpartition(".")[2] not in _SETS_RATE or rate in (None, highest):
        return
    key = join_key(optimization.optimizer_key(name), "lr")
    logger.warning(
        "%s is %s%s and has no effect: %s goes by its max_lr, which is %s. Write as well: %s=%s",
        key, rate, place_of(key), node["_target_"], highest,
        join_key(optimization.scheduler_key(name), "max_lr"), rate,
    )  # fmt: skip


def _try_optimizer(node: Mapping[str, Any], key: str) -> None:
    """Let an optimizer of torch judge its values; others may want a model of their own kind."""
    import torch

    if not node["_target_"].startswith("torch.optim.") or not _is_plain(node):
        return
    arguments = {name: value for name, value in node.items() if name not in RESERVED}
    try:
        locate(node["_target_"])([torch.nn.Parameter(torch.zeros(2, 2))], **arguments)
    except (ValueError, TypeError) as error:
        # torch's messages quote the value, but seldom name the argument.
        blamed = next((n for n, v in arguments.items() if str(v) in str(error)), "")
        key = join_key(key, blamed) if blamed else key
        raise ConfigError(
            key=key,
            problem=f"is not taken by {node['_target_']}: {error}",
            fix=f"Write, for example: optimizer: {_EXAMPLES['optimizer']}",
        ) from error


def is_plateau(target: Any) -> bool:
    """Tell whether a class or object is a scheduler that wants a metric."""
    from torch.optim.lr_scheduler import ReduceLROnPlateau

    kind = target if isinstance(target, type) else type(target)
    return issubclass(kind, ReduceLROnPlateau)


def _check_forms(keys: OptimizationKeys) -> None:
    if not keys.optimizer and not keys.optimizers:
        raise ConfigError(
            "The training config has no optimizer.",
            fix="Write: optimizer: {_target_: torch.optim.AdamW, lr: 0.001}",
        )
    if keys.optimizers and keys.optimizer:
        raise ConfigError(
            f"Both optimizer{place_of('optimizer')} and optimizers{place_of('optimizers')} are "
            "set.",
            fix="Keep one: optimizer for a model with one loss, "
            "optimizers.NAME.{optimizer, params} for one with several.",
        )
    for key in ("scheduler", "scheduler_interval", "scheduler_monitor"):
        if keys.optimizers and getattr(keys, key) is not None:
            name = next(iter(keys.optimizers))
            raise ConfigError(
                key=key,
                problem="belongs to the one optimizer, but there are optimizers with names",
                fix=f"Write: schedulers: {{{name}: "
                "{scheduler: ..., interval: step, monitor: ...}}",
            )
    for key in ("scheduler_interval", "scheduler_monitor"):
        if getattr(keys, key) is not None and keys.scheduler is None:
            raise ConfigError(
                f"{key} is set",
                key=key,
                problem="but there is no scheduler",
                fix="Delete the line, or write: scheduler: {_target_: ...}",
            )


def _all_schedulers(keys: OptimizationKeys) -> dict[str, SchedulerConfig]:
    names = list(keys.optimizers) or [SINGLE]
    for name in keys.schedulers:
        if name not in names:
            raise ConfigError(
                key=f"schedulers.{name}",
                problem=f"belongs to no optimizer.{suggest(name, names)} "
                f"The optimizers are: {', '.join(names)}.",
            )
    if keys.scheduler is None:
        return keys.schedulers
    schedule = SchedulerConfig(
        scheduler=keys.scheduler,
        interval=keys.scheduler_interval or "step",
        monitor=keys.scheduler_monitor,
    )
    return {SINGLE: schedule}


def _with_defaults(optimizer: OptimizerConfig, defaults: _TrainerKeys) -> OptimizerConfig:
    given = {
        "accum_grad_steps": defaults.accumulate_grad_batches,
        "gradient_clip_val": defaults.gradient_clip_val,
        "gradient_clip_algorithm": defaults.gradient_clip_algorithm,
    }
    missing = {k: v for k, v in given.items() if getattr(optimizer, k) is None and v is not None}
    # `model_copy` validates nothing; both sides are validated already.
    return optimizer.model_copy(update=missing)


def _located(node: Mapping[str, Any], key: str) -> Any:
    try:
        return locate(node["_target_"])
    except BadTarget as bad:
        key = f"{key}._target_"
        raise ConfigError(key=key, value=node["_target_"], problem=f"but {bad}") from bad


def _needs_closure(target: Any) -> bool:
    step = getattr(target, "step", None)
    parameters = inspect.signature(step).parameters if callable(step) else {}
    closure = parameters.get("closure")
    # In torch every `step` takes a closure; it has no default only where it is needed (LBFGS).
    return closure is not None and closure.default is closure.empty


def _is_plain(node: Mapping[str, Any]) -> bool:
    return "_args_" not in node and not any(isinstance(v, Mapping) for v in node.values())
