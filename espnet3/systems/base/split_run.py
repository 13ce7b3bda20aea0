"""What taking the statistics of one split takes: its provider, its dataset and its runner."""

import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.components.data.collect_stats import StatsRunner
from espnet3.components.data.dataset import durations_of, fingerprint_of
from espnet3.components.data.errors import DataError
from espnet3.config.fingerprint import flatten
from espnet3.config.resolve import resolved
from espnet3.config.sources import set_in
from espnet3.errors import EspnetError, StaleRunError
from espnet3.parallel.identity import is_below
from espnet3.systems.base.common_fields import warn_of_fields
from espnet3.systems.base.inference_code import describe_targets
from espnet3.systems.base.inference_provider import ORGANIZER
from espnet3.systems.base.statistics_config import (
    BLOCK,
    SPLITS,
    StatisticsConfig,
    check_collect_stats,
    computes_features,
    splits_of,
)
from espnet3.systems.base.statistics_provider import StatisticsProvider, build_split

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from espnet3.components.data.dataset import Floats
    from espnet3.config.load import LoadedConfig

logger = logging.getLogger(__name__)
_ENTRY = re.compile(r"dataset\.(?:train|valid)\.\d+(?:\.\w+)*")


@dataclass(frozen=True)
class SplitRun:
    """What taking the statistics of one split takes; the model is built in the workers."""

    name: str
    runner: StatsRunner
    n_items: int
    durations: "Floats | None"
    """Seconds of each item, if the dataset knows them."""
    has_model: bool
    """Whether a model computes the features."""

    @property
    def output_dir(self) -> Path:
        """The folder of the results."""
        assert self.runner.output_dir is not None
        return self.runner.output_dir

    def __call__(self, client: Any) -> dict[str, Path]:
        """Take the statistics, or go on, or answer at once if all is done.

        Raises:
            StaleRunError: there are results of another config, data or code.
        """
        try:
            files: dict[str, Path] = self.runner(
                range(self.n_items), durations=self.durations, client=client
            )
        except StaleRunError as error:
            if "\n  config.model." not in str(error):
                raise
            raise StaleRunError(
                f"{error}. Where the features depend on a part of the model only, name it: "
                f"'{BLOCK}.model_keys=[frontend]'"
            ) from None
        return files


def plan_statistics(loaded: "LoadedConfig", *, runs_here: bool = True) -> list[SplitRun]:
    """Build the datasets, and what runs over them.

    Args:
        loaded: the config.
        runs_here: whether this machine must have what workers need; not for a mere description.

    Raises:
        ConfigError: also if a dataset is empty.
    """
    config = check_collect_stats(loaded, runs_here=runs_here)
    return [_plan_split(split, config, loaded) for split in splits_of(loaded)]


def _plan_split(split: str, config: StatisticsConfig, loaded: "LoadedConfig") -> SplitRun:
    own = _config_of(split, loaded)
    try:
        dataset = build_split(own)
    except EspnetError as error:
        raise _placed(error, loaded) from error.__cause__
    warn_of_fields(split, dataset, loaded)
    stats_dir = Path(str(loaded.config.stats_dir))
    settings = config.model_dump(exclude={"model_keys"})
    runner = StatsRunner(StatisticsProvider(own), output_dir=stats_dir / split, **settings)
    runner.config_block, runner.folder_key = BLOCK, "stats_dir"
    runner.not_results = _not_results(resolved(own), config, stats_dir)
    runner.depends_on = {
        "dataset.content": fingerprint_of(dataset),
        "code": describe_targets(_named_code(resolved(own)), dataset),
    }
    return SplitRun(split, runner, len(dataset), _durations(dataset), own.model is not None)


def _config_of(split: str, loaded: "LoadedConfig") -> "DictConfig":
    """Return what the results depend on, and no more: a change of the rest must not matter."""
    from omegaconf import DictConfig, OmegaConf

    # Not resolved once more: what looks like an interpolation now is text.
    plain: Any = OmegaConf.to_container(loaded.resolved())
    has_model = computes_features(loaded)
    config = DictConfig(
        {
            "split": split,
            "dataset": _dataset_block(plain, split),
            "model": plain["model"] if has_model else None,
            "collate_fn": (plain.get("dataloader") or {}).get("collate_fn") if has_model else None,
            "device": plain.get("device"),
            "recipe_dir": plain.get("recipe_dir"),
        },
        flags={"allow_objects": True},
    )
    OmegaConf.set_readonly(config, True)
    return config


def _dataset_block(plain: dict[str, Any], split: str) -> dict[str, Any]:
    block: dict[str, Any] = plain["dataset"]
    if block.get("_target_", ORGANIZER) != ORGANIZER:
        return block
    others = {"test", *SPLITS} - {split}
    kept = {key: value for key, value in block.items() if key not in others}
    # How often training takes an item does not change what it is.
    kept[split] = [{k: v for k, v in entry.items() if k != "weight"} for entry in block[split]]
    return {"_target_": ORGANIZER, "recipe_dir": plain.get("recipe_dir"), **kept}


def _named_code(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config in the form in which `describe_targets` looks for code."""
    collate = config["collate_fn"]
    named = {"_target_": collate} if isinstance(collate, str) else collate
    return {**config, "dataset": [config["dataset"], named]}


def _not_results(
    config: dict[str, Any], settings: StatisticsConfig, stats_dir: Path
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
    return Path(os.path.abspath(value)).is_relative_to(os.path.abspath(folder))


def _durations(dataset: Any) -> "Floats | None":
    """Return the durations, which let the run balance its shards, if they can be had."""
    try:
        return durations_of(dataset)
    except DataError as error:
        # Which item it is about, and whether to skip it, is the run's own business.
        logger.info("Durations are not known: %s", error)
        return None


def _placed(error: EspnetError, loaded: "LoadedConfig") -> EspnetError:
    """Return an error about an entry of a split with the file and line of that entry."""

    def placed(match: re.Match[str]) -> str:
        return f"{match[0]}{set_in(match[0], loaded)}"

    return type(error)(_ENTRY.sub(placed, str(error), count=1))
