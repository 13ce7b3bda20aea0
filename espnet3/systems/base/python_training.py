"""Training from Python: the `train` stage for a notebook or a script, with objects for blocks.

It is the stage itself, of a system whose config may lack the blocks of model and data: checks,
comparison with what is there, resume, ranks and averages are those of `run.py --stages train`.
"""

import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.errors import ConfigError, ResourceError, StaleRunError
from espnet3.systems.base.given_parts import SPLITS, GivenParts, GivenSplit
from espnet3.trainer.launching.process_rank import process_rank

if TYPE_CHECKING:
    from espnet3.config.load import ConfigSource, LoadedConfig
    from espnet3.systems.base.system import BaseSystem
    from espnet3.trainer.config import Criterion

logger = logging.getLogger(__name__)

_CALL = "ESPNET3_LAUNCHED_CALL"
"""Set for the processes that Lightning starts from a script: which call of `train` is theirs."""
_calls = count(1)
"""Of this process; a script that is started again makes the same calls in the same order."""


@dataclass(frozen=True)
class TrainingResult:
    """Files and figures that a training left in its folder."""

    exp_dir: Path
    weights: Path | None
    """The weights to use: the average of the best by the first criterion, as safetensors; without
    such, the best checkpoint, or the last."""
    last: Path | None
    """The checkpoint from which another call resumes."""
    best: dict[str, list[Path]] = field(default_factory=dict)
    """By metric, the checkpoints that were kept, the best first."""
    averages: dict[str, Path] = field(default_factory=dict)
    """By metric, the mean of these, as safetensors."""
    history: list[dict[str, float]] = field(default_factory=list)
    """A dict for each epoch: `epoch`, `step`, and the last value of each metric in it."""
    was_trained: bool = True
    """False if an earlier call had trained it to the end."""

    def load_into(self, model: Any) -> Any:
        """Load `weights` into a model of the same kind, and return it."""
        from espnet3.trainer.checkpointing.checkpoint_io import load_weights

        if self.weights is None:
            raise ConfigError(f"{self.exp_dir} has no weights, as after a trial (fast_dev_run).")
        model.load_state_dict(load_weights(self.weights))
        return model


def train_from_python(
    config: "ConfigSource | Sequence[ConfigSource]",
    *,
    model: Any = None,
    train: Any = None,
    valid: Any = None,
    overrides: str | Sequence[str] = (),
    **options: Any,
) -> TrainingResult:
    """Train; see `espnet3.trainer.train`.

    Args:
        config: the training config.
        model: in place of its `model` block.
        train: in place of its `dataset.train`.
        valid: in place of its `dataset.valid`.
        overrides: as on the command line.
        **options: top-level keys that win over the config: `exp_dir`, `resume`, ...
    """
    from espnet3.config.load import load_config
    from espnet3.systems.base.context import completed
    from espnet3.trainer.config import load_criteria
    from espnet3.trainer.trainer_block import trainer_block

    # Counted before anything can fail, so that all processes number their calls alike.
    number = next(_calls)
    process_rank().show_logs()
    set_here = {key: value for key, value in options.items() if value is not None}
    if isinstance(set_here.get("accept_changes"), str):
        set_here["accept_changes"] = [set_here["accept_changes"]]
    is_many = isinstance(config, Sequence) and not isinstance(config, str)
    sources: list[Any] = list(config) if is_many else [config]  # type: ignore[arg-type]
    words = [overrides] if isinstance(overrides, str) else overrides
    loaded = load_config([*sources, set_here] if set_here else sources, words)
    loaded, given = _separate(loaded, model, {"train": train, "valid": valid})
    loaded = completed(loaded)
    launched = os.environ.get(_CALL)
    if launched is not None and int(launched) != number:
        # Another process has made this call.
        return find_result(Path(loaded["exp_dir"]), load_criteria(loaded), was_trained=False)
    with loaded.naming_places():
        _check_processes(trainer_block(loaded), given)
    from espnet3.systems.base.system import BaseSystem

    system = BaseSystem(training=loaded)
    system.given = given
    with _naming_overrides(), _numbered(number), _own_group():
        was_trained = _run(system)
    # Ranks of srun or torchrun are left alone: their script continues in all of them.
    if process_rank().launcher == "lightning" and not process_rank().is_first:
        raise SystemExit(0)  # what follows in the script is for the first process
    return find_result(Path(loaded["exp_dir"]), load_criteria(loaded), was_trained=was_trained)


def _run(system: "BaseSystem") -> bool:
    """Check and run the stage, with its log in the folder of the experiment."""
    from espnet3.logs import open_stage_log
    from espnet3.systems.base.checks import check_stages
    from espnet3.systems.base.stages import Skipped, find_stage, stages_of

    check_stages(system, [find_stage(stages_of(type(system)), "train")])
    folder, rank = system.exp_dir, process_rank()
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / ("train.log" if rank.is_first else f"train.rank{rank.rank}.log")
    with open_stage_log(log) as opened:
        logger.info("Training in %s (log: %s)", folder, log)
        try:
            return not isinstance(system.train(), Skipped)
        except Exception as error:
            opened.write_traceback(__name__, error)
            raise


@contextmanager
def _naming_overrides() -> Iterator[None]:
    """Say where the words of a refusal go, which are those of a command line."""
    try:
        yield
    except StaleRunError as error:
        raise StaleRunError(
            f"{error}\nIn Python, such a word is one of the overrides: "
            'train(config, ..., overrides=["resume=never"])'
        ) from error


@contextmanager
def _numbered(number: int) -> Iterator[None]:
    """Tell processes that Lightning starts which call of the script is theirs."""
    before = os.environ.get(_CALL)
    os.environ[_CALL] = str(number)
    try:
        yield
    finally:
        os.environ.pop(_CALL, None)
        if before is not None:
            os.environ[_CALL] = before


@contextmanager
def _own_group() -> Iterator[None]:
    """Leave the processes that Lightning has started behind: the next call starts others."""
    import torch.distributed as dist

    # A group that existed before belongs to the caller.
    is_kept = process_rank().is_external or (dist.is_available() and dist.is_initialized())
    try:
        yield
    finally:
        if dist.is_available() and dist.is_initialized() and not is_kept:
            dist.destroy_process_group()


def _separate(
    loaded: "LoadedConfig", model: Any, data: Mapping[str, Any]
) -> tuple["LoadedConfig", GivenParts]:
    """Put blocks that were given beside the config into it, and keep what are objects.

    What of the config is not used then is taken out of it, with a line that says so.
    """
    given = GivenParts()
    if isinstance(model, str):
        model = {"_target_": model}
    if isinstance(model, Mapping):
        loaded = _replaced(loaded, "model", model)
    elif model is not None:
        given = replace(given, model=model)
        if given.has_model or "_target_" in (loaded.config.get("model") or {}):
            loaded = _replaced(loaded, "model", None)
    for split in SPLITS:
        value = data[split]
        if _is_block(value):
            entries = [value] if isinstance(value, Mapping) else list(value)
            loaded = _replaced(loaded, f"dataset.{split}", entries)
        elif value is not None:
            own = GivenSplit(split, value)
            given = replace(given, **{split: own})
            loaded = _replaced(loaded, f"dataset.{split}", None)
            if own.is_loader:
                loaded = _replaced(loaded, f"dataloader.{split}", None)
    return _without_leftovers(loaded, given), given


def _is_block(value: Any) -> bool:
    """Tell entries of the `dataset` block from a list of samples."""
    entries = [value] if isinstance(value, Mapping) else value
    if not isinstance(entries, list | tuple) or not entries:
        return False
    return all(isinstance(entry, Mapping) and "data_src" in entry for entry in entries)


def _without_leftovers(loaded: "LoadedConfig", given: GivenParts) -> "LoadedConfig":
    """Take out what only blocks use of which none is left."""
    if all(given.split(name) is not None or not loaded.has(f"dataset.{name}") for name in SPLITS):
        loaded = _replaced(loaded, "dataset.preprocessor", None)
    splits = [split for name in SPLITS if (split := given.split(name)) is not None]
    if splits and all(split.is_loader for split in splits):
        own_valid = loaded.has("dataset.valid") and given.valid is None
        if not own_valid:
            loaded = _replaced(loaded, "dataloader.collate_fn", None)
    return loaded


def _replaced(loaded: "LoadedConfig", key: str, value: Any) -> "LoadedConfig":
    """Return the config with another value for a key, or without it; warn of a lost value."""
    from omegaconf import OmegaConf

    from espnet3.config.load import LoadedConfig, load_config
    from espnet3.config.sources import set_in

    if loaded.has(key) and OmegaConf.select(loaded.config, key) is not None:
        logger.warning(
            "%s%s is not used: train(...) was given it in Python", key, set_in(key, loaded)
        )
    values: Any = OmegaConf.to_container(loaded.config)
    *parents, name = key.split(".")
    block = values
    for parent in parents:
        block = block.get(parent) if isinstance(block, dict) else None
    if isinstance(block, dict) and name in block:
        del block[name]
    # The sources of removed keys go as well, or messages would name a place that does not count.
    sources = {k: s for k, s in loaded.sources.items() if k != key and not k.startswith(f"{key}.")}
    kept = LoadedConfig(OmegaConf.create(values), sources, loaded.files, loaded.names)
    if value is None:
        return load_config(kept)
    for part in reversed(key.split(".")):
        value = {part: value}
    return load_config([kept, value])


def _check_processes(block: Mapping[str, Any], given: GivenParts) -> None:
    """Refuse several processes where they cannot be started, or could not share the data.

    Raises:
        ResourceError: this is a notebook, or a prompt.
        ConfigError: the training data cannot be dealt out.
    """
    from espnet3.components.data.foreign_loader import shared_by_none
    from espnet3.trainer.trainer_block import count_gpus, find_wanted

    wanted = find_wanted(block, count_gpus())
    n_processes = wanted.world_size if wanted is not None else 1
    if n_processes == 1:
        return
    if process_rank().world_size == 1 and not _is_script():
        key = "trainer.devices"
        raise ResourceError(
            key=key,
            value=block.get("devices", "auto"),
            problem="but this is a notebook or a prompt, which cannot be started in "
            f"{n_processes} processes",
            fix='Write {"trainer": {"devices": 1}} here; or put the cell into a file: '
            "python train.py",
        )
    if given.train is not None and given.train.is_foreign:
        raise ConfigError(shared_by_none(given.train.data, "train", n_processes))


def _is_script() -> bool:
    """Tell whether this program is a file that Python can be started with again."""
    main = sys.modules.get("__main__")
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    is_prompt = hasattr(sys, "ps1") or shell is not None
    return not is_prompt and bool(getattr(main, "__file__", None)) and sys.argv[0] != "-c"


def find_result(
    folder: Path, criteria: "Sequence[Criterion]", *, was_trained: bool
) -> TrainingResult:
    """Return what is in the folder of a training now."""
    from espnet3.trainer.checkpointing.best_checkpoints import LAST, read_index

    index = read_index(folder) if (folder / "best.json").exists() else {}
    best = {
        criterion.monitor: [folder / entry.file for entry in index.get(criterion) or ()]
        for criterion in criteria
    }
    averages = {
        criterion.monitor: file
        for criterion in criteria
        if (file := folder / f"{criterion.stem}.safetensors").exists()
    }
    last = folder / LAST if (folder / LAST).exists() else None
    ordered = [*averages.values(), *(paths[0] for paths in best.values() if paths)]
    weights = next(iter(ordered), last)
    return TrainingResult(folder, weights, last, best, averages, _epochs(folder), was_trained)


def _epochs(folder: Path) -> list[dict[str, float]]:
    from espnet3.trainer.reporting.history import read_history

    epochs: dict[int, dict[str, float]] = {}
    for entry in read_history(folder):
        values = epochs.setdefault(entry.epoch, {"epoch": entry.epoch})
        kept = {n: v for n, v in entry.values.items() if not n.startswith("startup/")}
        values |= {"step": entry.step, **kept}
    return [epochs[number] for number in sorted(epochs)]
