"""Check optimizers and schedulers of a config before there is a model that they could be built for.

The model and the data may take minutes to build, and a misspelt argument is seen without them.
"""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from espnet3.config.advice import is_override
from espnet3.config.resolve import resolved
from espnet3.config.sources import join_key, set_in
from espnet3.config.targets import RESERVED, locate, signature_of
from espnet3.errors import ConfigError
from espnet3.trainer.optimization.optimization_config import OptimizationConfig
from espnet3.trainer.target_arguments import check_call

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

logger = logging.getLogger(__name__)

_EXAMPLES = {
    "optimizer": "{_target_: torch.optim.AdamW, lr: 0.001}",
    "scheduler": "{_target_: espnet3.components.schedulers.WarmupLR, warmup_steps: 10000}",
}
_SETS_RATE = ("OneCycleLR", "CyclicLR")
# What the training adds when it builds a scheduler.
_ADDED = ("optimizer", "schedulers", "total_steps", "T_max", "num_training_steps")


def check_optimizers(loaded: "LoadedConfig") -> OptimizationConfig:
    """Check the keys, and the arguments of what they name.

    Raises:
        ConfigError: naming the key, its place, and what to write.
    """
    _check_forms(loaded)
    optimization = OptimizationConfig.from_config(loaded)
    for name, optimizer in optimization.optimizers.items():
        key = optimization.optimizer_key(name)
        check_call(optimizer.optimizer, key, loaded, added=["params"])
        _try_optimizer(optimizer.optimizer, key, loaded)
    for name, scheduler in optimization.schedulers.items():
        _check_scheduler(scheduler.scheduler, optimization.scheduler_key(name), loaded)
        _check_rate(name, optimization, loaded)
    return optimization


def _check_rate(name: str, optimization: OptimizationConfig, loaded: "LoadedConfig") -> None:
    """Warn of a rate that some schedulers replace: a sweep over it would train equal models."""
    node = optimization.schedulers[name].scheduler
    rate, highest = optimization.optimizers[name].optimizer.get("lr"), node.get("max_lr")
    key = join_key(optimization.optimizer_key(name), "lr")
    its_key = join_key(optimization.scheduler_key(name), "max_lr")
    if str(node["_target_"]).rpartition(".")[2] not in _SETS_RATE or rate in (None, highest):
        return
    if is_override(its_key, loaded):
        return  # what is meant was said
    logger.warning(
        "%s is %s%s and has no effect: %s goes by its max_lr, which is %s. Write as well: %s=%s",
        key, rate, set_in(key, loaded), node["_target_"], highest, its_key, rate,
    )  # fmt: skip


def _check_forms(loaded: "LoadedConfig") -> None:
    values = resolved(loaded.config, loaded=loaded)
    for key, example in _EXAMPLES.items():
        if isinstance(values.get(key), str):
            raise ConfigError(
                f"{key} is {values[key]!r}{set_in(key, loaded)}, but must be a mapping with a "
                f"_target_. Write: {key}: {example}"
            )


def _check_scheduler(node: Any, key: str, loaded: "LoadedConfig") -> None:
    if not isinstance(node, Mapping) or "_target_" not in node:
        raise ConfigError(
            f"{key} is {node!r:.80}{set_in(key, loaded)}, but must be a mapping with a _target_. "
            f"Write: {_EXAMPLES['scheduler']}"
        )
    for index, child in enumerate(node.get("schedulers") or ()):
        _check_scheduler(child, f"{key}.schedulers.{index}", loaded)
    signature = signature_of(locate(node["_target_"]))
    added = [name for name in _ADDED if signature and name in signature.parameters]
    check_call(node, key, loaded, added=added)


def _try_optimizer(node: Mapping[str, Any], key: str, loaded: "LoadedConfig") -> None:
    """Let an optimizer of torch judge its values; others may want a model of their own kind."""
    import torch

    if not node["_target_"].startswith("torch.optim.") or not _is_plain(node):
        return
    arguments = {name: value for name, value in node.items() if name not in RESERVED}
    try:
        locate(node["_target_"])([torch.nn.Parameter(torch.zeros(2, 2))], **arguments)
    except (ValueError, TypeError) as error:
        blamed = next((n for n, v in arguments.items() if str(v) in str(error)), "")
        key = join_key(key, blamed) if blamed else key
        raise ConfigError(
            f"{key}{set_in(key, loaded)} is not taken by {node['_target_']}: {error}. "
            f"Write, for example: optimizer: {_EXAMPLES['optimizer']}"
        ) from error


def _is_plain(node: Mapping[str, Any]) -> bool:
    return "_args_" not in node and not any(isinstance(v, Mapping) for v in node.values())
