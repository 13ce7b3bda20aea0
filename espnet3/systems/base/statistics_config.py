"""The `collect_stats` block of a training config, and what stage 3 reads of the rest."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import NonNegativeInt, PositiveInt

from espnet3.components.data.collect_stats import DEFAULT_BATCH_SIZE
from espnet3.components.data.data_organizer import check_datasets
from espnet3.config.resolve import resolved
from espnet3.config.schema import FrozenConfig, Names, validate
from espnet3.config.sources import set_in
from espnet3.config.targets import check_arguments, locate
from espnet3.errors import ConfigError, suggest
from espnet3.parallel.clusters.table import check_resources
from espnet3.parallel.parallel import as_parallel_config
from espnet3.systems.base.inference_provider import ORGANIZER
from espnet3.systems.base.statistics_provider import COLLECT_FEATS

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

BLOCK = "collect_stats"
SPLITS = ("train", "valid")


class StatisticsConfig(FrozenConfig):
    """How stage 3 goes about it; a config needs no such block."""

    batch_size: PositiveInt = DEFAULT_BATCH_SIZE
    """Items that the model gets at once."""
    on_error: Literal["raise", "skip"] = "raise"
    """What to do with an item that fails: stop, or list it and go on without."""
    max_errors: NonNegativeInt | None = None
    """With `on_error: skip`, how many items may fail."""
    retry_failed: bool = False
    """Run what was skipped again."""
    resume: bool = True
    """Go on where an earlier run stopped; false removes its results."""
    accept_changes: Names = []
    """Keys, as a refusal names them, that may differ from those of the results so far."""
    model_keys: Names | None = None
    """Keys below `model` that its features depend on, such as [frontend]; all if unset."""


def load_statistics_config(loaded: "LoadedConfig") -> StatisticsConfig:
    """Read the block.

    Raises:
        ConfigError: one error that lists every problem.
    """
    values = resolved(loaded.config.get(BLOCK), prefix=BLOCK, loaded=loaded)
    return validate(StatisticsConfig, values, prefix=BLOCK, loaded=loaded)


def check_collect_stats(loaded: "LoadedConfig", *, runs_here: bool = True) -> StatisticsConfig:
    """Check all that can be checked without building anything.

    Args:
        loaded: the config.
        runs_here: whether this machine must have what workers need, such as GPUs.

    Raises:
        ConfigError: naming the key, its place, and what to write.
    """
    config = load_statistics_config(loaded)
    if runs_here:
        check_resources(as_parallel_config(loaded))
    if not loaded.config.get("stats_dir"):
        raise ConfigError(
            f"stats_dir is not set{set_in('stats_dir', loaded)}, so the statistics "
            "have no folder. Write: stats_dir: ${recipe_dir}/exp/stats"
        )
    splits_of(loaded)
    check_datasets(loaded, SPLITS)
    _check_model(config, loaded)
    return config


def splits_of(loaded: "LoadedConfig") -> tuple[str, ...]:
    """Return which of `train` and `valid` there are.

    Raises:
        ConfigError: there is no training set.
    """
    block = resolved(loaded.config.get("dataset"), prefix="dataset", loaded=loaded)
    if isinstance(block, Mapping) and block.get("_target_", ORGANIZER) != ORGANIZER:
        return tuple(split for split in SPLITS if split == "train" or block.get(split))
    if not isinstance(block, Mapping) or not block.get("train"):
        raise ConfigError(
            f"dataset.train{set_in('dataset', loaded)} lists no training set. Write: dataset: "
            "{train: [{data_src: kaldi, data_src_args: {path: data/train}}]}"
        )
    return tuple(split for split in SPLITS if block.get(split))


def computes_features(loaded: "LoadedConfig") -> bool:
    """Tell whether the config has a model with `collect_feats`.

    What is built by a function tells only once it is built, so that counts.
    """
    block = _model_block(loaded)
    if block is None:
        return False
    target = locate(str(block["_target_"]))
    return hasattr(target, COLLECT_FEATS) if isinstance(target, type) else True


def _model_block(loaded: "LoadedConfig") -> Mapping[str, Any] | None:
    block = resolved(loaded.config.get("model"), prefix="model", loaded=loaded)
    return block if isinstance(block, Mapping) and block.get("_target_") else None


def _check_model(config: StatisticsConfig, loaded: "LoadedConfig") -> None:
    block = _model_block(loaded)
    if block is None:
        return
    check_arguments("model", str(block["_target_"]), block)
    for name in config.model_keys or ():
        if name.partition(".")[0] not in block:
            known = [key for key in block if key != "_target_"]
            key = f"{BLOCK}.model_keys"
            raise ConfigError(
                f"{key} has {name!r}{set_in(key, loaded)}, which is no key of model. It has: "
                f"{', '.join(known)}.{suggest(name, known)}"
            )
