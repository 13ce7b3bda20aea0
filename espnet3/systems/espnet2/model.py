"""Train a model of ESPnet2: what `train` and `collect_stats` ask of a model."""

import argparse
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn

from espnet3.config.resolve import resolved
from espnet3.errors import ConfigError
from espnet3.systems.espnet2.package import installed_version, task_class, task_of
from espnet3.systems.espnet2.training_config import (
    log_unused,
    read_config,
    read_token_list,
    sample_rate_of,
    training_values,
)

logger = logging.getLogger(__name__)

_STATS = "stats_file"


class ESPnet2Model(nn.Module):
    """A model of ESPnet2, built from the keys of its training configs.

    ESPnet2's own network is `network`, so its `.pth` is loaded by
    `init: {path: valid.acc.ave.pth, to: network}`.

    Args:
        task: `asr`.
        config: A training config of ESPnet2, such as `conf/train_asr_conformer.yaml`. Its keys
            about optimizers, batches and epochs have no effect; the log says where they stand here.
        **keys: Keys of ESPnet2: `encoder`, `encoder_conf`, `token_list`, ... They win over those of
            the file; options of a part, such as `encoder_conf`, one by one.

    Raises:
        ConfigError: A key is unknown, a file is missing, or the parts do not fit each other.
        MissingExtraError: `espnet` is not installed.
    """

    def __init__(
        self, task: str, config: str | os.PathLike[str] | None = None, **keys: Any
    ) -> None:
        super().__init__()
        task_of(task)
        plain = {key: resolved(value) for key, value in keys.items()}
        if config is not None:
            log_unused(read_config(config), os.fspath(config))
        stats_file, plain = _later(plain)
        values = training_values(task, config, plain)
        source = os.fspath(config) if config is not None else "the model"
        values["token_list"] = read_token_list(values, source)
        self._stats_file = stats_file
        """Statistics that were not there yet: only `collect_stats` can use such a model."""
        self.sample_rate = sample_rate_of(values)
        self.network: nn.Module = _build(task, values)
        # Parts that ESPnet2 shares between models keep the mode of the last one that was used.
        self.train()

    def forward(self, **batch: Any) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """Return ESPnet2's loss, statistics and weight of a batch.

        While training on several ranks the loss is scaled, so that the mean of their gradients is
        the mean over all items, as ESPnet2 computes it.

        Raises:
            ConfigError: The statistics of `global_mvn` were not there when the model was built.
        """
        if self._stats_file is not None:
            raise ConfigError(
                key="model.normalize_conf.stats_file",
                value=self._stats_file,
                problem="which does not exist",
                fix="Make it first: python run.py --stages collect_stats --training_config "
                "conf/training.yaml",
            )
        loss, stats, weight = self.network(**_tensors(batch))
        # ESPnet2 returns vectors of one value each, for the gathering of DataParallel.
        loss, weight = loss.sum(), weight.sum()
        told = {name: value.mean() for name, value in stats.items() if value is not None}
        return self._weighted(loss, weight), told, weight

    def collect_feats(self, **batch: Any) -> dict[str, Tensor]:
        """Return the features before they are normalised, for the stage `collect_stats`."""
        feats: dict[str, Tensor] = self.network.collect_feats(**_tensors(batch))  # type: ignore[operator]
        return feats

    def _weighted(self, loss: Tensor, weight: Tensor) -> Tensor:
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        n_ranks = torch.distributed.get_world_size() if distributed else 1
        if n_ranks == 1 or not self.training:
            return loss
        total = weight.detach().clone().float()
        torch.distributed.all_reduce(total)
        return loss * (weight.float() * n_ranks / total)


def _tensors(batch: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return what ESPnet2 takes of a batch: no ids and texts."""
    return {key: value for key, value in batch.items() if isinstance(value, Tensor)}


def _later(keys: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """Leave out a normalisation whose statistics `collect_stats` has still to make."""
    path = (keys.get("normalize_conf") or {}).get(_STATS)
    if keys.get("normalize") != "global_mvn" or path is None or Path(path).exists():
        return None, dict(keys)
    logger.info("%s does not exist yet, so features are not normalised", path)
    return str(path), {**keys, "normalize": None, "normalize_conf": {}}


def _build(task: str, values: Mapping[str, Any]) -> nn.Module:
    try:
        built: nn.Module = task_class(task).build_model(argparse.Namespace(**values))
    except (TypeError, ValueError, AssertionError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"espnet {installed_version()} cannot build the model: {type(error).__name__}: "
            f"{error}.",
            fix="Correct the key that it names, in the model or in its config.",
        ) from error
    return built
