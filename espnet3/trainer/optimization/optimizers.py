"""Build optimizers and schedulers from their nodes of the config."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from lightning.pytorch import Trainer
from torch import nn
from torch.optim import Optimizer

from espnet3.config.instantiate import instantiate
from espnet3.config.targets import find_bad_argument, locate, signature_of
from espnet3.errors import ConfigError
from espnet3.trainer.optimization.optimization_config import OptimizationConfig, OptimizerConfig

LENGTHS = ("total_steps", "T_max", "num_training_steps")
"""Arguments of schedulers that mean "how long the training is"."""


@dataclass(frozen=True)
class TrainingLength:
    """How long a training is planned to be; infinite where nothing limits it."""

    n_batches: float
    """Of one epoch, on one rank."""
    n_epochs: float
    n_updates: float
    """The limit `trainer.max_steps`, of the optimizer that steps most often."""

    @classmethod
    def of(cls, trainer: Trainer) -> "TrainingLength":
        """Read it from a trainer, whose loader is set up for this."""
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


def build_optimizer(
    name: str, optimization: OptimizationConfig, parameters: list[nn.Parameter]
) -> Optimizer:
    """Build one optimizer.

    Raises:
        ConfigError: its arguments do not fit.
    """
    node, key = optimization.optimizers[name].optimizer, optimization.optimizer_key(name)
    optimizer: Optimizer = _prepared(node, key, optimization, "params")(parameters)
    return optimizer


def build_scheduler(
    name: str, optimization: OptimizationConfig, optimizer: Optimizer, length: TrainingLength
) -> Any:
    """Build the scheduler of an optimizer.

    One that wants to know how long the training is, and is not told in the config, is told here.

    Raises:
        ConfigError: its arguments do not fit, or the length is needed and nothing limits it.
    """
    config = optimization.schedulers[name]
    all_configs = optimization.optimizers
    by_step = config.interval == "step"
    n_steps = length.n_steps(all_configs[name], all_configs) if by_step else length.n_epochs
    key = optimization.scheduler_key(name)
    return _Scheduler(optimization, optimizer, n_steps).build(config.scheduler, key)


@dataclass(frozen=True)
class _Scheduler:
    optimization: OptimizationConfig
    optimizer: Optimizer
    n_steps: float

    def build(self, node: Mapping[str, Any], key: str) -> Any:
        node = {**node, **self._length(node, key)}
        inner = node.pop("schedulers", None)
        if inner is None:
            return _prepared(node, key, self.optimization, "optimizer")(optimizer=self.optimizer)
        # SequentialLR and ChainedScheduler hold others, each of which wants the optimizer.
        built = [self.build(child, f"{key}.schedulers.{i}") for i, child in enumerate(inner)]
        outer = _prepared(node, key, self.optimization, "optimizer", "schedulers")
        return outer(optimizer=self.optimizer, schedulers=built)

    def _length(self, node: Mapping[str, Any], key: str) -> dict[str, int]:
        signature = signature_of(locate(node["_target_"]))
        wanted = [n for n in LENGTHS if signature and n in signature.parameters and n not in node]
        # OneCycleLR takes these two instead.
        if not wanted or {"epochs", "steps_per_epoch"} <= set(node):
            return {}
        if not math.isfinite(self.n_steps):
            raise ConfigError(
                f"{key} is {node['_target_']}{self.optimization.set_in(key)}, which must know how "
                f"long the training is. Write: {wanted[0]}: 100000, or set trainer.max_epochs or "
                "trainer.max_steps."
            )
        return {wanted[0]: max(1, int(self.n_steps))}


def _prepared(
    node: Mapping[str, Any], key: str, optimization: OptimizationConfig, *given: str
) -> "partial[Any]":
    """Return the target with the arguments of the node, to be called with the `given` ones.

    Hydra would copy parameters and optimizers that go through it, so they are not among them.
    """
    signature = signature_of(locate(node["_target_"]))
    all_arguments = {**node, **dict.fromkeys(given)}
    bad = find_bad_argument(signature, all_arguments) if signature else None
    if bad is not None:
        where = optimization.set_in(f"{key}.{bad.name}" if bad.name else key)
        raise ConfigError(
            f"{key} does not fit its target: {bad.reason}{where}."
            f"{bad.hint_at(key, node, optimization.loaded)}\n"
            f"Signature: {node['_target_']}{signature}"
        )
    # Containers of OmegaConf in the state of an optimizer would make checkpoints unreadable.
    options = {"_partial_": True, "_convert_": "all"}
    built: partial[Any] = instantiate({**node, **options}, key=key, loaded=optimization.loaded)
    return built
