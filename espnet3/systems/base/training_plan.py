"""Describe the `train` stage for `--dry-run`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from espnet3.systems.base.training import (
    build_model,
    build_split_loader,
    load_loader_config,
)
from espnet3.systems.base.training_data import build_sets
from espnet3.text import duration

if TYPE_CHECKING:
    from espnet3.components.data.dataset import Floats
    from espnet3.components.data.loader import BatchLoader
    from espnet3.config.load import LoadedConfig


def describe_training(loaded: "LoadedConfig", sets: Mapping[str, Any] | None = None) -> list[str]:
    """Return lines that tell data, batches, model, devices, and where the training goes on.

    Args:
        loaded: the training config.
        sets: its datasets, if they are built.

    Raises:
        ConfigError: as the stage itself would.
    """
    lines = [
        line
        for split, dataset in (sets or build_sets(loaded)).items()
        for line in _describe_split(split, dataset, loaded)
    ]
    return [*lines, _describe_model(loaded), _describe_trainer(loaded), _describe_start(loaded)]


def _describe_split(split: str, dataset: Any, loaded: "LoadedConfig") -> list[str]:
    from espnet3.components.data.dataset import durations_of

    if dataset is None:
        return [f"{split}: none"]
    durations = durations_of(dataset)
    audio = "" if durations is None else f", {duration(durations.sum())} of audio"
    loader = build_split_loader(dataset, load_loader_config(loaded), split, loaded)
    padded = "" if durations is None else f", {_padding(loader, durations):.1%} padding"
    return [
        f"{split}: {len(dataset)} items{audio}",
        f"  batches: {len(loader)} in an epoch of one process{padded}",
    ]


def _padding(loader: "BatchLoader", durations: "Floats") -> float:
    """Return which share of the batches of the first epoch is padding."""
    batches = [durations[tickets % len(durations)] for tickets in loader.sampler.begin()]
    computed = sum(batch.max() * len(batch) for batch in batches)
    return float(1 - sum(batch.sum() for batch in batches) / computed) if computed else 0.0


def _describe_model(loaded: "LoadedConfig") -> str:
    from espnet3.trainer.config import load_training_config
    from espnet3.trainer.optimization.parameters import freeze, parse_freeze
    from espnet3.trainer.reporting.summary import ModelSize

    model = build_model(loaded)
    freeze(model, parse_freeze(load_training_config(loaded).freeze, loaded), loaded)
    return f"model: {type(model).__name__}, {ModelSize.of(model)}"


def _describe_trainer(loaded: "LoadedConfig") -> str:
    from espnet3.trainer.config import trainer_block

    shown = ("accelerator", "devices", "num_nodes", "strategy", "precision", "max_epochs")
    block = trainer_block(loaded)
    facts = [f"{key} {block[key]}" for key in (*shown, "max_steps") if key in block]
    return f"trainer: {', '.join(facts) or 'all of it as Lightning chooses'}"


def _describe_start(loaded: "LoadedConfig") -> str:
    from espnet3.trainer.checkpointing.resume import find_resume_point
    from espnet3.trainer.config import load_training_config, trainer_block

    if trainer_block(loaded).get("fast_dev_run"):
        return "a trial of a few batches (fast_dev_run), of which nothing is kept"
    config = load_training_config(loaded)
    point = find_resume_point(config.exp_dir, config.resume, ckpt_path=config.fit.get("ckpt_path"))
    if point is None:
        return f"starts from scratch, in {config.exp_dir}"
    return f"resumes from {point.path} ({point.position})"
