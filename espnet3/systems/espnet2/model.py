"""Train a model of ESPnet2: what `train` and `collect_stats` ask of a model."""

import argparse
import inspect
import logging
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn

from espnet3.components.data.errors import DataError
from espnet3.config.resolve import resolved
from espnet3.errors import ConfigError, MissingExtraError
from espnet3.systems.espnet2.package import installed_version, task_class, task_of
from espnet3.systems.espnet2.training_config import (
    log_unused,
    read_config,
    sample_rate_of,
    training_values,
)
from espnet3.systems.espnet2.transducer_loss import provide_loss

logger = logging.getLogger(__name__)

_STATS = "stats_file"
_BY_STATS = "global_mvn"
_LENGTHS = "_lengths"
_PADS_ONLY = "CommonCollateFn"
_COLLATE = "espnet3.systems.espnet2.preprocessor.ESPnet2Collate"
_PREPROCESSOR = "espnet3.systems.espnet2.preprocessor.ESPnet2Preprocessor"
_DATA_FILES = "espnet3.systems.espnet2.data_files"


class ESPnet2Model(nn.Module):
    """A model of ESPnet2, built from the keys of its training configs.

    ESPnet2's own network is `network`, so its `.pth` is loaded by
    `init: {path: valid.acc.ave.pth, to: network}`.

    Args:
        task: Of ESPnet2: `asr`, `st`, `mt`, `lm`, `tts`, `enh`, `spk`, ...
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
        values = training_values(task, config, plain, may_lack=(_STATS,))
        self._stats_file, values = _later(values)
        """Statistics that were not there yet: only `collect_stats` can use such a model."""
        self.sample_rate = sample_rate_of(task, values)
        self.network: nn.Module = _build(task, values)
        # What a preprocessor adds, such as the prefix of s2t_ctc, only the network names.
        further = inspect.signature(self.network.forward).parameters
        self._inputs = TaskInputs(task, values, further)
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
        loss, stats, weight = self.network(**self._inputs.longest_first(self._inputs.of(batch)))
        # ESPnet2 returns vectors of one value each, for the gathering of DataParallel.
        loss, weight = loss.sum(), weight.sum()
        told = {
            name: torch.as_tensor(value, dtype=torch.float32).mean()
            for name, value in stats.items()
            if value is not None
        }
        return self._weighted(loss, weight), told, weight

    def collect_feats(self, **batch: Any) -> dict[str, Tensor]:
        """Return the features before they are normalised, for the stage `collect_stats`."""
        feats: dict[str, Tensor] = self.network.collect_feats(**self._inputs.of(batch))  # type: ignore[operator]
        return feats

    def _weighted(self, loss: Tensor, weight: Tensor) -> Tensor:
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        n_ranks = torch.distributed.get_world_size() if distributed else 1
        if n_ranks == 1 or not self.training:
            return loss
        total = weight.detach().clone().float()
        torch.distributed.all_reduce(total)
        return loss * (weight.float() * n_ranks / total)


class TaskInputs:
    """Picks from batches what a task of ESPnet2 takes, as its own collate function pads it.

    Args:
        task: Of ESPnet2.
        values: Its complete config.
        further: Names that its network takes, beside those of the task's data.
    """

    def __init__(self, task: str, values: Mapping[str, Any], further: Iterable[str] = ()) -> None:
        kind = task_class(task)
        self._task = task
        self._required = tuple(kind.required_data_names(True, False))
        self._names = {*self._required, *kind.optional_data_names(True, False), *further}
        collate = kind.build_collate_fn(argparse.Namespace(**values), True)
        self._int_pad = getattr(collate, "int_pad_value", None)
        self._not_sequences = frozenset(getattr(collate, "not_sequence", None) or ())
        self._told: set[str] = set()
        if type(collate).__name__ != _PADS_ONLY:
            logger.warning(
                "ESPnet2 makes batches of %s by %s, which does more than padding; write: "
                "dataloader.collate_fn: {_target_: %s, task: %s, ...}",
                task, type(collate).__name__, _COLLATE, task,
            )  # fmt: skip

    def longest_first(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the items of a batch in the order that ESPnet2's recurrent networks demand."""
        lengths = tensors.get(f"{self._required[0]}{_LENGTHS}")
        if lengths is None or len(lengths) < 2:
            return tensors
        order = lengths.argsort(descending=True, stable=True)
        return {
            key: value[order] if len(value) == len(order) else value
            for key, value in tensors.items()
        }

    def of(self, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the tensors of a batch by ESPnet2's names: no ids and texts.

        Raises:
            DataError: The batch lacks one.
        """
        tensors = {key: value for key, value in batch.items() if isinstance(value, Tensor)}
        if lacking := [name for name in self._required if name not in tensors]:
            raise self._lack(lacking[0], batch)
        others = {n for n in tensors if n.removesuffix(_LENGTHS) not in self._names} - self._told
        if others:
            self._told |= others
            logger.info("the task %s has no use for: %s", self._task, ", ".join(sorted(others)))
        return {
            key: self._padded(value, tensors.get(f"{key}{_LENGTHS}"))
            for key, value in tensors.items()
            if (name := key.removesuffix(_LENGTHS)) in self._names
            and not (name != key and name in self._not_sequences)
        }

    def _padded(self, value: Tensor, lengths: Tensor | None) -> Tensor:
        """Return integers with the padding of ESPnet2's task: for some it is -1, for others 0."""
        if lengths is None or self._int_pad is None or value.ndim < 2:
            return value
        if value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
            return value
        is_padding = torch.arange(value.shape[1], device=value.device) >= lengths[:, None]
        return value.masked_fill(is_padding.view(*is_padding.shape, *[1] * (value.ndim - 2)),
                                 self._int_pad)  # fmt: skip

    def _lack(self, name: str, batch: Mapping[str, Any]) -> DataError:
        has = ", ".join(f"{key} (a text)" if key == name else key for key in batch)
        fix = (
            f"Let the preprocessor make numbers of it: dataset.preprocessor: {{_target_: "
            f"{_PREPROCESSOR}, task: {self._task}, ...}}"
            if name in batch
            else f"Name the file: data_src: {_DATA_FILES}, with data_src_args: {{files: "
            f"[[PATH, {name}, TYPE], ...]}}"
        )
        return DataError(
            f"The task {self._task} of ESPnet2 needs {name}, but a batch has {has}.", fix=fix
        )


def _later(values: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """Leave out a normalisation whose statistics `collect_stats` has still to make.

    Raises:
        ConfigError: There is to be one by statistics, and no file is named.
    """
    missing = None
    for key in [key for key, value in values.items() if key.endswith("normalize")]:
        if values[key] != _BY_STATS:
            continue
        path = (values.get(f"{key}_conf") or {}).get(_STATS)
        if path is None:
            raise ConfigError(
                key=key,
                value=_BY_STATS,
                problem=f"but {key}_conf names no statistics",
                fix=f"Write: {key}_conf: {{{_STATS}: exp/stats/train/feats_stats.npz}}, which "
                f"collect_stats makes; or {key}: null",
            )
        if not Path(path).exists():
            logger.info("%s does not exist yet, so features are not normalised", path)
            missing = str(path)
            values = {**values, key: None, f"{key}_conf": {}}
    return missing, values


def _build(task: str, values: Mapping[str, Any]) -> nn.Module:
    provide_loss()
    # typeguard, which ESPnet2 imports, has an error of its own for a part of another kind.
    wrong_part = getattr(sys.modules.get("typeguard"), "TypeCheckError", TypeError)
    try:
        built: nn.Module = task_class(task).build_model(argparse.Namespace(**values))
    except ImportError as error:
        raise MissingExtraError(
            f"espnet {installed_version()} cannot build the model: {error}.",
            fix="Install the package that it names, as ESPnet2's documentation of this part says.",
        ) from error
    except (wrong_part, TypeError, ValueError, AssertionError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"espnet {installed_version()} cannot build the model: {type(error).__name__}: "
            f"{error}.",
            fix="Correct the key that it names, in the model or in its config.",
        ) from error
    return built
