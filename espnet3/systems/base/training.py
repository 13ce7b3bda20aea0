"""Stages 4 and 5, `train` and `average`: a model and its data go to the trainer."""

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.config.sources import names_places
from espnet3.errors import ConfigError
from espnet3.io.atomic import write_text
from espnet3.systems.base.context import completed
from espnet3.systems.base.datasets import build_sets, check_data, check_fields, has_split
from espnet3.systems.base.given_parts import NOTHING_GIVEN, GivenParts
from espnet3.systems.base.stages import Skipped
from espnet3.systems.base.training_fingerprint import TrainingDescription, set_random_state
from espnet3.systems.base.training_record import Comparison, compare_training
from espnet3.text import duration
from espnet3.trainer.config import (
    Criterion,
    TrainingConfig,
    check_call,
    check_parts,
    check_trainer,
    load_criteria,
    load_lightning,
    load_training_config,
)
from espnet3.trainer.launching.process_rank import process_rank
from espnet3.trainer.trainer_block import trainer_block

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from espnet3.components.data.dataset import Floats
    from espnet3.components.data.loader import BatchLoader
    from espnet3.components.data.loader_config import DataLoaderConfig
    from espnet3.config.load import LoadedConfig
    from espnet3.trainer.checkpointing.resume import ResumePoint
    from espnet3.trainer.fit import TrainingParts
    from espnet3.trainer.reporting.summary import StartupTimes

logger = logging.getLogger(__name__)

_MODEL = "model: {_target_: src.model.MyModel}"


@names_places
def train(
    loaded: "LoadedConfig",
    comparison: Comparison | None = None,
    on_start: Callable[[], None] = lambda: None,
    given: GivenParts = NOTHING_GIVEN,
) -> Any:
    """Train the model, or resume a stopped training; then average its best.

    Args:
        loaded: the training config.
        comparison: with the training that is there, if it was made a moment ago.
        on_start: called in the first process when nothing but training is left.
        given: model and data that come as objects, in place of blocks.

    Returns:
        `Skipped` if an earlier run has trained it to the end.

    Raises:
        ConfigError: before anything starts.
        StaleRunError: another training is in the folder; likewise.
        RunInterrupted: after a signal, when a checkpoint has been written.
    """
    from time import monotonic

    begin = monotonic()  # before the imports: Lightning takes seconds of the start
    load_lightning()
    from espnet3.trainer.fit import Fit
    from espnet3.trainer.optimization.optimization_config import OptimizationConfig
    from espnet3.trainer.reporting.summary import StartupTimes

    loaded = completed(loaded)
    exp_dir, criteria = _exp_dir(loaded), load_criteria(loaded)
    times = StartupTimes(begin)
    times.add("imports", monotonic() - begin)
    is_first = process_rank().is_first
    before: list[int] = []
    with times.part("comparison"):
        compared = comparison or compare(loaded, given=given)
    described = compared.described if compared else None
    if is_first:
        given.log_limits()

    def start(point: "ResumePoint | None") -> None:
        _write_record(compared, point)
        _save_config(loaded.resolved(), exp_dir)
        on_start()
        before.append(_history_time(exp_dir))

    config, loader = load_training_config(loaded), load_loader_config(loaded, given)
    fit = Fit(
        config,
        OptimizationConfig.from_config(loaded),
        lambda: _build_parts(loaded.plain(), loader, times, described, given),
        times,
        start,
        on_finished=lambda point: _write_record(compared, point),
        changed_since=compared.changed_since if compared else lambda step: (),
    )
    try:
        was_trained = fit.run()
    finally:
        # Also after a kill signal, but not if this call logged nothing: the curves did not change.
        if before and _history_time(exp_dir) != before[0]:
            _plot(exp_dir)
    if is_first and not config.is_trial and (was_trained or _lacks_averages(exp_dir, criteria)):
        _average_at_the_end(exp_dir, criteria)
    return None if was_trained else Skipped("it is trained to the end already")


@names_places
def compare(
    loaded: "LoadedConfig", *, with_inputs: bool = True, given: GivenParts = NOTHING_GIVEN
) -> Comparison | None:
    """Compare with the training that is there; of a trial nothing is kept, so it may differ."""
    is_trial = bool(trainer_block(loaded).get("fast_dev_run"))
    if is_trial:
        return None
    return compare_training(loaded, with_inputs=with_inputs, given=given)


def _write_record(compared: Comparison | None, point: "ResumePoint | None") -> None:
    if compared is not None:
        position = point and point.position
        compared.write(*((position.n_epochs, position.step) if position else (0, 0)))


def _average_at_the_end(exp_dir: Path, criteria: Sequence[Criterion]) -> None:
    """Average what there is; a training that ended before its first validation has nothing."""
    from espnet3.trainer.checkpointing.best_checkpoints import LAST, average_all, read_index

    if criteria and (exp_dir / LAST).is_dir():
        logger.warning(
            "The checkpoints are sharded (folders), so nothing is averaged. For whole files, write "
            "strategy: {_target_: lightning.pytorch.strategies.FSDPStrategy, state_dict_type: full}"
        )
        return
    kept = read_index(exp_dir) if criteria else {}
    empty = [criterion for criterion in criteria if kept.get(criterion) == []]
    for criterion in empty:
        logger.warning(
            "%s was never measured, so nothing is averaged for it: the training was shorter than "
            "its first validation. See trainer.max_steps and trainer.val_check_interval.",
            criterion.monitor,
        )
    average_all(exp_dir, [c for c in criteria if c not in empty])


def _lacks_averages(exp_dir: Path, criteria: Sequence[Criterion]) -> bool:
    """Tell whether a finished training was killed before its best were averaged."""
    from espnet3.trainer.checkpointing.best_checkpoints import INDEX

    made = [(exp_dir / f"{criterion.stem}.json").exists() for criterion in criteria]
    return (exp_dir / INDEX).exists() and not all(made)


def _history_time(exp_dir: Path) -> int:
    """Return when a metric was written last; 0 if never."""
    from espnet3.trainer.reporting.history import FILE_NAME

    file = exp_dir / FILE_NAME
    return file.stat().st_mtime_ns if file.exists() else 0


def _plot(exp_dir: Path) -> None:
    from espnet3.trainer.reporting.history import plot_curves

    try:
        curves = plot_curves(exp_dir)
    except Exception as error:  # a plot is not worth a training, nor hides why one ended
        logger.warning("The learning curves could not be drawn: %s", error)
        return
    if curves is not None:
        logger.info("Learning curves: %s", curves)


@names_places
def check_train(
    loaded: "LoadedConfig", *, with_inputs: bool = True, given: GivenParts = NOTHING_GIVEN
) -> Comparison | None:
    """Check all that can be checked without building a model, and what is launched.

    Args:
        loaded: the training config.
        with_inputs: whether files and data are there, and not yet to be made by another stage.
        given: model and data that come as objects, in place of blocks.

    Returns:
        How it compares with the training that is there, for `train`; None for a trial.

    Raises:
        ConfigError: naming the key, its place, and what to write.
        ResourceError: the GPUs or processes are not those that the config describes.
        StaleRunError: another training is in the folder.
    """
    load_lightning()
    from espnet3.systems.base.datasets import check_training_rates
    from espnet3.trainer.fit import check_fit
    from espnet3.trainer.launching.launch_check import check_launch
    from espnet3.trainer.optimization.optimization_config import OptimizationConfig
    from espnet3.trainer.reporting.monitors import configured_monitors, refuse_without_validation
    from espnet3.trainer.trainer import quiet_lightning, trainer_for

    # A config from Python may lack the folders that all below rely on.
    loaded = completed(loaded)
    block = check_trainer(loaded)
    config = check_fit(loaded)
    values = loaded.plain()
    given.check(values.get("model"))
    loader = load_loader_config(loaded, given)
    _check_model(values, given)
    check_data(loaded, given)
    check_training_rates(values)
    if has_split(values.get("dataset"), "valid", given) is False:
        optimization = OptimizationConfig.from_config(loaded)
        refuse_without_validation(configured_monitors(config, optimization))
    check_launch(block)
    # Lightning checks most arguments only when its trainer is built.
    with quiet_lightning(), _unheard():
        trainer_for(block, exp_dir=str(_exp_dir(loaded)))
    comparison = compare(loaded, with_inputs=with_inputs, given=given)
    if comparison is not None and comparison.described.sets:
        is_new = _is_new(_exp_dir(loaded))
        check_fields(comparison.described.sets, loader, is_new=is_new)
    return comparison


def _is_new(exp_dir: Path) -> bool:
    from espnet3.trainer.checkpointing.best_checkpoints import LAST

    return not (exp_dir / LAST).exists()


@contextmanager
def _unheard() -> Iterator[None]:
    """Keep warnings and log lines back, which the stage itself shows again."""
    # Restored to this: the caller may have disabled some levels itself.
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@names_places
def describe_train(loaded: "LoadedConfig", comparison: Comparison | None = None) -> list[str]:
    """Describe `train`: data, batches, model, where it resumes; nothing is written.

    Raises:
        ConfigError: as the stage itself would.
        StaleRunError: another training is in the folder.
    """
    loaded = completed(loaded)
    compared = comparison or compare(loaded)
    sets = (compared.described.sets if compared else None) or build_sets(loaded.plain())
    training, config = load_training_config(loaded), load_loader_config(loaded)
    seed = _seed(loaded.plain())
    lines = [
        line for name, data in sets.items() for line in _describe_split(name, data, config, seed)
    ]
    model = _describe_model(loaded.plain(), training.freeze)
    return [*lines, model, _describe_trainer(training.trainer), _describe_start(training)]


def _describe_split(split: str, dataset: Any, config: "DataLoaderConfig", seed: int) -> list[str]:
    from espnet3.components.data.dataset import durations_of

    if dataset is None:
        return [f"{split}: none"]
    durations = durations_of(dataset)
    audio = "" if durations is None else f", {duration(durations.sum())} of audio"
    loader = build_split_loader(dataset, config, split, seed)
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


def _describe_model(values: Mapping[str, Any], frozen: Sequence[str]) -> str:
    from espnet3.trainer.fine_tuning import freeze
    from espnet3.trainer.reporting.summary import ModelSize

    model = build_model(values)
    freeze(model, frozen)
    return f"model: {type(model).__name__}, {ModelSize.of(model)}"


def _describe_trainer(block: Mapping[str, Any]) -> str:
    shown = ("accelerator", "devices", "num_nodes", "strategy", "precision", "max_epochs")
    facts = [f"{key} {block[key]}" for key in (*shown, "max_steps") if key in block]
    return f"trainer: {', '.join(facts) or 'all of it as Lightning chooses'}"


def _describe_start(config: TrainingConfig) -> str:
    from espnet3.trainer.checkpointing.resume import find_resume_point

    if config.is_trial:
        return "a trial of a few batches (fast_dev_run), of which nothing is kept"
    point = find_resume_point(config.exp_dir, config.resume, ckpt_path=config.fit.get("ckpt_path"))
    if point is None:
        return f"starts from scratch, in {config.exp_dir}"
    return f"resumes from {point.path} ({point.position})"


@names_places
def average(loaded: "LoadedConfig") -> Any:
    """Average the best checkpoints of each entry of `best_model_criterion`.

    Returns:
        The files, or `Skipped` if there is no such entry.
    """
    from espnet3.trainer.checkpointing.best_checkpoints import average_all

    loaded = completed(loaded)
    criteria = load_criteria(loaded)
    if not criteria:
        return Skipped("best_model_criterion names nothing to go by")
    return average_all(_exp_dir(loaded), criteria)


@names_places
def check_average(loaded: "LoadedConfig") -> None:
    """Check `best_model_criterion`."""
    load_criteria(loaded)


@names_places
def describe_average(loaded: "LoadedConfig") -> list[str]:
    """Return what would be averaged."""
    loaded = completed(loaded)
    folder = _exp_dir(loaded)
    return [
        f"{c}: -> {folder / c.stem}.{{safetensors,ckpt,json}}" for c in load_criteria(loaded)
    ] or ["nothing: best_model_criterion is not set"]


def _build_parts(
    values: Mapping[str, Any],
    config: "DataLoaderConfig",
    times: "StartupTimes",
    described: TrainingDescription | None,
    given: GivenParts,
) -> "TrainingParts":
    """Build datasets, unless that was done to describe them, and then model and loaders."""
    from espnet3.systems.base.datasets import check_training_samples
    from espnet3.trainer.fit import TrainingParts

    with times.part("datasets"):
        if described is not None and described.sets:
            datasets = described.sets
            # Numbers that they drew are gone for the model, as if they were built here.
            set_random_state(described.random_state)
        else:
            datasets = build_sets(values, given)
    with times.part("model"):
        model = build_model(values, given)
        check_training_samples(datasets, model, values.get("model"))
        check_fields(datasets, config, is_new=_is_new(Path(values["exp_dir"])))
    with times.part("loaders"):
        loaders = {
            split: build_split_loader(dataset, config, split, _seed(values), given)
            for split, dataset in datasets.items()
            if dataset is not None or given.split(split) is not None
        }
    return TrainingParts(model, loaders["train"], loaders.get("valid"))


def build_model(values: Mapping[str, Any], given: GivenParts = NOTHING_GIVEN) -> Any:
    """Build `model` of a config, or take what was given; it must be a module of torch.

    Raises:
        ConfigError: it is not.
    """
    import torch

    from espnet3.config.instantiate import instantiate

    _check_model(values, given)
    block = values.get("model")
    is_given = given.model is not None
    model = given.build_model(block) if is_given else instantiate(block, key="model")
    if not isinstance(model, torch.nn.Module):
        raise ConfigError(
            key="model",
            problem=f"is a {type(model).__name__}, no torch.nn.Module: there is nothing to train",
            fix=f"Write: {_MODEL}",
        )
    return model


def build_split_loader(
    dataset: Any,
    config: "DataLoaderConfig",
    split: str,
    seed: int,
    given: GivenParts = NOTHING_GIVEN,
) -> "BatchLoader":
    """Build the loader of `train` or `valid`; one that was given may be of another kind."""
    from espnet3.components.data.loader import build_loader
    from espnet3.components.data.loader_config import build_collate

    if given.split(split) is not None:
        loader: BatchLoader = given.build_loader(split, config, seed)
        return loader
    return build_loader(
        dataset,
        config.for_split(split),
        collate_fn=build_collate(config.collate_fn),
        seed=seed,
        split=split,
    )


@names_places
def load_loader_config(
    loaded: "LoadedConfig", given: GivenParts = NOTHING_GIVEN
) -> "DataLoaderConfig":
    """Read the `dataloader` block.

    Raises:
        ConfigError: it is wrong, or says nothing of training.
    """
    from espnet3.components.data.loader_config import DataLoaderConfig, check_collate

    block = loaded.plain().get("dataloader")
    if block is None and given.makes_batches:
        block = {}
    needs_size = not given.makes_batches and (
        not isinstance(block, Mapping) or not block.get("train")
    )
    if needs_size:
        size = "batch_seconds: 120" if given.train is None else "batch_size: 16"
        raise ConfigError(
            key="dataloader.train",
            problem="is not set, so it is not known how large a batch is",
            fix=f"Write: dataloader: {{train: {{{size}}}}}",
        )
    config = DataLoaderConfig.from_config(block)
    check_collate(config.collate_fn)
    return given.with_sizes(config)


def _check_model(values: Mapping[str, Any], given: GivenParts = NOTHING_GIVEN) -> None:
    if given.model is not None:
        return
    from espnet3.config.targets import locate
    from espnet3.trainer.optimization.model_calls import refuse_lightning

    block, task = values.get("model"), values.get("task")
    if block is None and task is not None:
        raise ConfigError(
            key="task",
            value=task,
            problem="but there is no model beside it",
            fix="Write the keys of ESPnet2's training config, model: {encoder: conformer, ...}, or "
            f"delete task and name a model of your own: {_MODEL}",
        )
    if not isinstance(block, Mapping) or "_target_" not in block:
        raise ConfigError(
            key="model",
            problem="has no _target_, so what to train is not known",
            fix=f"Write: {_MODEL}",
        )
    check_call(block, "model")
    check_parts(block, "model")
    refuse_lightning(locate(str(block["_target_"])))


def _save_config(resolved: "DictConfig", exp_dir: Path) -> None:
    from omegaconf import OmegaConf

    from espnet3.config.redact import redact

    exp_dir.mkdir(parents=True, exist_ok=True)
    write_text(exp_dir / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(redact(resolved))))


def _seed(values: Mapping[str, Any]) -> int:
    return int(values.get("seed") or 0)


def _exp_dir(loaded: "LoadedConfig") -> Path:
    return Path(loaded.config["exp_dir"])
