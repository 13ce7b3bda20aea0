"""`resume`: continue from `last.ckpt`, or put the old training aside and start from scratch."""

import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from espnet3.errors import ConfigError
from espnet3.io.atomic import StrPath
from espnet3.text import first_few
from espnet3.trainer.checkpointing.best_checkpoints import INDEX, LAST
from espnet3.trainer.checkpointing.checkpoint_io import read_checkpoint, restore_folder
from espnet3.trainer.checkpointing.training_state import KEY, SavedPosition, read_position
from espnet3.trainer.checkpointing.weights import PREFIX

log = logging.getLogger(__name__)

_PUT_ASIDE = ("*.ckpt", "*.ave_*best.*", INDEX, "history.jsonl", "curves.*", "tensorboard")
_COPIED = ("config.yaml", "training.json", "tokens.json")
_SHOWN = 4


@dataclass(frozen=True)
class ResumePoint:
    """The checkpoint that a training resumes from."""

    path: Path
    position: SavedPosition
    validation_due: bool = False

    def way_on(
        self,
        max_epochs: int | None = None,
        max_steps: int | None = None,
        *,
        stops_early: bool = True,
    ) -> str | None:
        """Return what to change to train on, or None if there is something left to train.

        Args:
            max_epochs: limit; None and -1 mean no limit.
            max_steps: likewise.
            stops_early: whether the config has an `EarlyStopping`, or still has it.
        """
        if self.validation_due:
            return None
        by_epochs = max_epochs not in (None, -1) and self.position.n_epochs >= (max_epochs or 0)
        by_steps = max_steps not in (None, -1) and self.position.step >= (max_steps or 0)
        if by_epochs or by_steps:
            return "raise trainer.max_epochs or max_steps"
        if self.position.stopped_early and stops_early:
            return "take EarlyStopping, which has ended it, out of trainer.callbacks"
        return None


def find_resume_point(
    exp_dir: StrPath,
    resume: Literal["auto", "never"] = "auto",
    *,
    ckpt_path: StrPath | None = None,
    model: torch.nn.Module | None = None,
) -> ResumePoint | None:
    """Return the checkpoint to resume from, or None to start; nothing on the disk changes.

    Args:
        exp_dir: The folder of the training.
        resume: `auto` takes its `last.ckpt`, if there is one.
        ckpt_path: `fit.ckpt_path`, which wins over `resume`.
        model: The bare model; the checkpoint must fit it.

    Raises:
        ConfigError: `ckpt_path` does not exist or has weights only, or the model is another one.
        RunFolderError: the checkpoint is damaged.
    """
    path = Path(ckpt_path) if ckpt_path else Path(exp_dir) / LAST
    if ckpt_path and not path.exists():
        raise ConfigError(
            f"fit.ckpt_path is {ckpt_path}, which does not exist. Give a checkpoint, or delete the "
            f"line to resume from {Path(exp_dir) / LAST}."
        )
    if not ckpt_path and (resume == "never" or not path.exists()):
        return None
    checkpoint = read_checkpoint(path, mmap=True)
    if "loops" not in checkpoint:
        raise ConfigError(
            f"{path} has weights only, no state of optimizers, so training cannot resume from it. "
            f"To start from its weights, write instead: init: {{path: {path}}}"
        )
    if model is not None and path.is_file():
        check_same_model(path, checkpoint["state_dict"], model.state_dict())
    own = checkpoint.get(KEY, {})
    return ResumePoint(path, read_position(checkpoint), bool(own.get("validation_due")))


def prepare_folder(exp_dir: StrPath, resume: Literal["auto", "never"] = "auto") -> Path | None:
    """Make the folder of a training ready; to be called by the first process only.

    With `never`, what an earlier training left is moved to `previous.<n>/`; nothing is destroyed.

    Returns:
        The folder to which it was moved, if any.
    """
    folder = Path(exp_dir)
    folder.mkdir(parents=True, exist_ok=True)
    restore_folder(folder / LAST)
    return put_aside(folder) if resume == "never" else None


def put_aside(folder: Path) -> Path | None:
    """Move checkpoints, averages, curves and TensorBoard files to the next `previous.<n>/`."""
    found = sorted({path for pattern in _PUT_ASIDE for path in folder.glob(pattern)})
    if not found:
        return None
    n = 1
    while (folder / f"previous.{n}").exists():
        n += 1
    target = folder / f"previous.{n}"
    target.mkdir()
    for name in _COPIED:
        if (folder / name).is_file():
            shutil.copy2(folder / name, target)
    # `last.ckpt` last: after a kill on the way, `resume: auto` would still find it.
    for path in sorted(found, key=lambda p: p.name == LAST):
        os.rename(path, target / path.name)
    log.info("Starting from scratch (resume: never); the old training was moved to %s.", target)
    return target


def report_resume(
    point: ResumePoint | None,
    max_epochs: int | None = None,
    max_steps: int | None = None,
    *,
    stops_early: bool = True,
) -> bool:
    """Log where training resumes; for the limits see `ResumePoint.way_on`.

    Returns:
        Whether it is finished, and there is nothing to do.
    """
    if point is None:
        return False
    change = point.way_on(max_epochs, max_steps, stops_early=stops_early)
    if change is not None:
        log.info(
            "Training is finished (%s: %s). To train longer, %s; to start from scratch, "
            "set resume=never.",
            point.path,
            point.position,
            change,
        )
        return True
    log.info("Resuming from %s (%s).", point.path, point.position)
    return False


def check_same_model(path: StrPath, stored: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Compare names and shapes in a checkpoint (under `model.`) with those of the bare model.

    Raises:
        ConfigError: listing some that differ, and the two ways on.
    """
    theirs = {k.removeprefix(PREFIX): _shape(v) for k, v in stored.items() if k.startswith(PREFIX)}
    missing = [name for name in state if name not in theirs]
    unexpected = [name for name in theirs if name not in state]
    reshaped = [
        f"{name} ({theirs[name]} there, {_shape(value)} here)"
        for name, value in state.items()
        if name in theirs and theirs[name] != _shape(value)
    ]
    if not (missing or unexpected or reshaped):
        return
    parts = [
        _some("missing in it", missing),
        _some("only in it", unexpected),
        _some("of another shape", reshaped),
    ]
    raise ConfigError(
        f"{path} is a checkpoint of another model. Weights {'; '.join(p for p in parts if p)}. "
        "It was not touched. Either give this training a folder of its own: exp_tag=NEW_NAME, or "
        "put the old one aside and start from scratch: resume=never."
    )


def _shape(value: Any) -> list[int] | None:
    """Return the shape of a weight, or None for what a module keeps beside its weights."""
    return list(value.shape) if isinstance(value, torch.Tensor) else None


def _some(title: str, names: list[str]) -> str:
    return f"{title}: {first_few(names, _SHOWN)}" if names else ""
