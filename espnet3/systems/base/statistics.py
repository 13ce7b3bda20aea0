"""Stage 3, `collect_stats`: shapes and statistics of the training and validation sets."""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import NonNegativeInt, PositiveInt

from espnet3.commands import free_name
from espnet3.components.data.collect_stats import DEFAULT_BATCH_SIZE, StatsRunner
from espnet3.components.data.data_organizer import check_datasets
from espnet3.components.data.dataset import durations_of, fingerprint_of
from espnet3.components.data.errors import DataError
from espnet3.config.fingerprint import flatten
from espnet3.config.resolve import resolved
from espnet3.config.schema import FrozenConfig, Names, validate
from espnet3.config.sources import names_places
from espnet3.config.targets import check_arguments, locate
from espnet3.errors import ConfigError, StaleRunError, suggest
from espnet3.parallel.clusters.registry import check_resources
from espnet3.parallel.identity import is_below
from espnet3.parallel.parallel import as_parallel_config
from espnet3.systems.base.datasets import warn_of_fields
from espnet3.systems.base.inference import PlannedRun, run_all
from espnet3.systems.base.inference_provider import ORGANIZER
from espnet3.systems.base.run_description import (
    describe_folder,
    describe_items,
    describe_job_script,
)
from espnet3.systems.base.statistics_provider import COLLECT_FEATS, StatisticsProvider, build_split
from espnet3.systems.base.training_fingerprint import describe_targets

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from espnet3.components.data.dataset import Floats
    from espnet3.config.load import LoadedConfig

logger = logging.getLogger(__name__)

__all__ = ["check_collect_stats", "collect_stats", "describe_collect_stats"]


@names_places
def collect_stats(loaded: "LoadedConfig") -> dict[str, dict[str, Path]]:
    """Take the statistics of the training set, then of the validation set, on one cluster.

    Returns:
        The files in `<stats_dir>/<split>/` by name, such as `speech_shape` and `feats_stats`, by
        split.

    Raises:
        ConfigError: before anything starts.
    """
    parallel = as_parallel_config(loaded)
    return run_all(plan_statistics(loaded), parallel)


@names_places
def describe_collect_stats(loaded: "LoadedConfig") -> list[str]:
    """Return what the stage would do: nothing is started, nothing is written.

    Raises:
        ConfigError: as the stage itself would.
    """
    parallel = as_parallel_config(loaded)
    lines = [f"workers: {parallel.n_workers} on env: {parallel.env}"]
    for run in plan_statistics(loaded, runs_here=False):
        lines.append(f"split {run.name}: {describe_items(run)}")
        lines += [f"  {fact}" for fact in (_features(run), describe_folder(run)) if fact]
    return [*lines, *describe_job_script(parallel)]


def _features(run: "SplitRun") -> str:
    batches = f"in batches of {run.runner.batch_size}"
    if run.has_model:
        return f"statistics of what model.collect_feats returns, {batches}"
    return f"statistics of the arrays in the samples, {batches}; no model has collect_feats"


@dataclass(frozen=True)
class SplitRun(PlannedRun):
    """The run over one split."""

    has_model: bool
    """Whether a model computes the features."""

    def __call__(self, client: Any) -> dict[str, Path]:
        """Compute the statistics, as every run; a refusal says more of the model.

        Raises:
            StaleRunError: there are results of another config, data or code.
        """
        try:
            files: dict[str, Path] = super().__call__(client)
        except StaleRunError as error:
            # Only a change of the model can be narrowed down by model_keys.
            if "\n  config.model." not in str(error):
                raise
            raise StaleRunError(
                f"{error}. Where the features depend on a part of the model only, name it: "
                f"'{BLOCK}.model_keys=[frontend]'"
            ) from None
        return files


@names_places
def plan_statistics(loaded: "LoadedConfig", *, runs_here: bool = True) -> list[SplitRun]:
    """Build the datasets, and what runs over them.

    Args:
        loaded: the config.
        runs_here: whether this machine must have what workers need; not for a mere description.

    Raises:
        ConfigError: also if a dataset is empty.
    """
    from omegaconf import OmegaConf

    config = check_collect_stats(loaded, runs_here=runs_here)
    # Not resolved once more: what looks like an interpolation now is text.
    values: Any = OmegaConf.to_container(loaded.resolved())
    splits = _splits_of(values.get("dataset"))
    return [_plan_split(split, config, values) for split in splits]


def _plan_split(split: str, config: "StatisticsConfig", values: Mapping[str, Any]) -> SplitRun:
    own = _config_of(split, values)
    dataset = build_split(own)
    warn_of_fields(split, dataset)
    stats_dir = Path(str(values["stats_dir"]))
    settings = config.model_dump(exclude={"model_keys"})
    runner = StatsRunner(StatisticsProvider(own), output_dir=stats_dir / split, **settings)
    runner.config_block, runner.elsewhere = BLOCK, f"stats_dir={free_name(stats_dir)}"
    runner.not_results = _not_results(resolved(own), config, stats_dir)
    runner.depends_on = {
        "dataset.content": fingerprint_of(dataset),
        "code": describe_targets(_named_code(resolved(own)), dataset),
    }
    return SplitRun(split, runner, len(dataset), _durations(dataset), own.model is not None)


def _config_of(split: str, values: Mapping[str, Any]) -> "DictConfig":
    """Return what the results depend on, and no more: a change of the rest must not matter."""
    from omegaconf import DictConfig, OmegaConf

    has_model = _computes_features(_model_block(values))
    config = DictConfig(
        {
            "split": split,
            "dataset": _dataset_block(values, split),
            # Otherwise a change of the model would make statistics stale that do not depend on it.
            "model": values["model"] if has_model else None,
            "collate_fn": (values.get("dataloader") or {}).get("collate_fn") if has_model else None,
            "device": values.get("device"),
            "recipe_dir": values.get("recipe_dir"),
        },
        flags={"allow_objects": True},
    )
    OmegaConf.set_readonly(config, True)
    return config


def _dataset_block(values: Mapping[str, Any], split: str) -> dict[str, Any]:
    block: dict[str, Any] = values["dataset"]
    if block.get("_target_", ORGANIZER) != ORGANIZER:
        return block
    others = {"test", *SPLITS} - {split}
    kept = {key: value for key, value in block.items() if key not in others}
    # How often training takes an item does not change what it is.
    kept[split] = [{k: v for k, v in entry.items() if k != "weight"} for entry in block[split]]
    return {"_target_": ORGANIZER, "recipe_dir": values.get("recipe_dir"), **kept}


def _named_code(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config in the form in which `describe_targets` looks for code."""
    collate = config["collate_fn"]
    named = {"_target_": collate} if isinstance(collate, str) else collate
    return {**config, "dataset": [config["dataset"], named]}


def _not_results(
    config: dict[str, Any], settings: "StatisticsConfig", stats_dir: Path
) -> tuple[str, ...]:
    """Return keys that do not count: the files to be made, and parts of the model without say."""
    flat = flatten({"config": config})
    ignored = [key for key, value in flat.items() if _is_inside(value, stats_dir)]
    if settings.model_keys is not None:
        kept = [f"config.model.{key}" for key in (*settings.model_keys, "_target_")]
        ignored += [k for k in flat if is_below(k, ["config.model"]) and not is_below(k, kept)]
    return ("config.recipe_dir", *ignored)


def _is_inside(value: Any, folder: Path) -> bool:
    if not isinstance(value, str) or os.sep not in value:
        return False
    # As absolute paths, because `is_relative_to` compares text and knows no "..".
    return Path(os.path.abspath(value)).is_relative_to(os.path.abspath(folder))


def _durations(dataset: Any) -> "Floats | None":
    """Return the durations, which let the run balance its shards, if they can be had."""
    try:
        return durations_of(dataset)
    except DataError as error:
        # Which item it is about, and whether to skip it, is the run's own business.
        logger.info("Durations are not known: %s", error)
        return None


BLOCK = "collect_stats"
SPLITS = ("train", "valid")


class StatisticsConfig(FrozenConfig):
    """Settings of stage 3, `collect_stats`; a config needs no such block."""

    batch_size: PositiveInt = DEFAULT_BATCH_SIZE
    """Items that the model gets at once."""
    on_error: Literal["raise", "skip"] = "raise"
    """What to do with an item that fails: stop, or list and skip it."""
    max_errors: NonNegativeInt | None = None
    """With `on_error: skip`, how many items may fail."""
    retry_failed: bool = False
    """Run what was skipped again."""
    resume: bool = True
    """Continue where an earlier run stopped; false removes its results."""
    accept_changes: Names = []
    """Keys, as a refusal names them, that may differ from those of the results so far."""
    model_keys: Names | None = None
    """Keys below `model` that its features depend on, such as [frontend]; all if unset."""


def load_statistics_config(loaded: "LoadedConfig") -> StatisticsConfig:
    """Read the block.

    Raises:
        ConfigError: one error that lists every problem.
    """
    return validate(StatisticsConfig, loaded.config.get(BLOCK), prefix=BLOCK, loaded=loaded)


@names_places
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
            "stats_dir is not set",
            key="stats_dir",
            problem="so the statistics have no folder",
            fix="Write: stats_dir: ${recipe_dir}/exp/stats",
        )
    values = loaded.plain()
    _splits_of(values.get("dataset"))
    check_datasets(loaded, SPLITS)
    _check_model(config, _model_block(values))
    return config


def _splits_of(block: Any) -> tuple[str, ...]:
    """Return which of `train` and `valid` there are.

    Raises:
        ConfigError: there is no training set.
    """
    if isinstance(block, Mapping) and block.get("_target_", ORGANIZER) != ORGANIZER:
        return tuple(split for split in SPLITS if split == "train" or block.get(split))
    if not isinstance(block, Mapping) or not block.get("train"):
        raise ConfigError(
            key="dataset.train",
            problem="lists no training set",
            fix="Write: dataset: {train: [{data_src: kaldi, data_src_args: {path: data/train}}]}",
        )
    return tuple(split for split in SPLITS if block.get(split))


def _computes_features(model: Mapping[str, Any] | None) -> bool:
    """Tell whether a model has `collect_feats`.

    That of a function is known only once it is built, so a function counts.
    """
    if model is None:
        return False
    target = locate(str(model["_target_"]))
    return hasattr(target, COLLECT_FEATS) if isinstance(target, type) else True


def _model_block(values: Mapping[str, Any]) -> Mapping[str, Any] | None:
    block = values.get("model")
    return block if isinstance(block, Mapping) and block.get("_target_") else None


def _check_model(config: StatisticsConfig, block: Mapping[str, Any] | None) -> None:
    if block is None:
        return
    check_arguments("model", str(block["_target_"]), block)
    for name in config.model_keys or ():
        if name.partition(".")[0] not in block:
            known = [key for key in block if key != "_target_"]
            key = f"{BLOCK}.model_keys"
            raise ConfigError(
                f"{key} has {name!r}",
                key=key,
                problem="which is no key of model",
                fix=f"It has: {', '.join(known)}.{suggest(name, known)}",
            )
