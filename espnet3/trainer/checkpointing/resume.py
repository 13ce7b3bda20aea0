"""Resume a training exactly: the position that a checkpoint holds, random states, old folders.

Lightning resumes well from a checkpoint between two batches or at the end of a validation. Written
at the end of an epoch or at its last batch, it skips the validation or counts an epoch twice
(2.6.6, with `max_steps`). So the state is corrected when it is loaded; the file stays Lightning's.
"""

import logging
import os
import random
import shutil
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import lightning.pytorch as pl
import numpy as np
import torch
import torch.distributed as dist
from typing_extensions import override

from espnet3.commands import same_command
from espnet3.errors import ConfigError
from espnet3.io.atomic import StrPath
from espnet3.text import count, first_few
from espnet3.trainer.checkpointing.best_checkpoints import INDEX, LAST
from espnet3.trainer.checkpointing.checkpoint_io import PREFIX, read_checkpoint, restore_folder
from espnet3.trainer.lightning_internals import (
    is_ending,
    is_validation_due,
    restore_loader_position,
    update_epoch_length,
)

log = logging.getLogger(__name__)

KEY = "espnet3"
"""Of our own entry in a checkpoint: where in the training it was written."""
_RANDOM_KEY = "random_states"
_PUT_ASIDE = ("*.ckpt", "*.ave_*best.*", INDEX, "history.jsonl", "curves.*", "tensorboard")
_COPIED = ("config.yaml", "training.json", "tokens.json")
_SHOWN = 4


@dataclass(frozen=True)
class SavedPosition:
    """A point in a training, as it stands in a checkpoint."""

    n_epochs: int
    """Epochs that are wholly done, with their validation."""
    step: int
    """Steps of optimizers."""
    saved: str
    """Date and time, or an empty string."""
    stopped_early: bool
    """Whether an `EarlyStopping` had ended the training."""

    def __str__(self) -> str:
        date = f", saved {self.saved}" if self.saved else ""
        return f"epoch {self.n_epochs}, step {self.step}{date}"


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
            f"fit.ckpt_path is {ckpt_path}, which does not exist.",
            fix=f"Give a checkpoint, or delete the line to resume from {Path(exp_dir) / LAST}.",
        )
    if not ckpt_path and (resume == "never" or not path.exists()):
        return None
    # Mapped: only names, shapes and loops are looked at, not gigabytes of optimizer state.
    checkpoint = read_checkpoint(path, mmap=True)
    if "loops" not in checkpoint:
        raise ConfigError(
            f"{path} has weights only, no state of optimizers, so training cannot resume from it. "
            f"To start from its weights, write instead: init: {{path: {path}}}"
        )
    # A sharded checkpoint is a folder, and has names and shapes in its parts.
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
    # A kill may have left a sharded checkpoint between its two names.
    restore_folder(folder / LAST)
    return put_aside(folder) if resume == "never" else None


def put_aside(folder: Path) -> Path | None:
    """Move checkpoints, averages, curves and TensorBoard files to the next `previous.<n>/`."""
    found = sorted({path for pattern in _PUT_ASIDE for path in folder.glob(pattern)})
    if not found:
        return None
    n = 1
    # Counted up, never overwritten: `resume: never` destroys nothing.
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
        "It was not touched. Either give this training a folder of its own:\n"
        f"  {same_command('exp_tag=NEW_NAME')}\nor put the old one aside and start from scratch:\n"
        f"  {same_command('resume=never')}"
    )


def _shape(value: Any) -> list[int] | None:
    """Return the shape of a weight, or None for what a module keeps beside its weights."""
    return list(value.shape) if isinstance(value, torch.Tensor) else None


def _some(title: str, names: list[str]) -> str:
    return f"{title}: {first_few(names, _SHOWN)}" if names else ""


def record_position(trainer: pl.Trainer) -> dict[str, Any]:
    """Return our entry for a checkpoint that is written now."""
    return {
        "saved": datetime.now(UTC).isoformat(timespec="seconds"),
        "validation_due": _is_batch_end(trainer) and is_validation_due(trainer),
        "world_size": trainer.world_size,
        "is_ending": is_ending(trainer),
    }


def epoch_number(trainer: pl.Trainer) -> int:
    """Return the number of the epoch at hand, or that has just ended; the first is 1."""
    return int(trainer.fit_loop.epoch_progress.state_dict()["current"]["started"])


def read_position(checkpoint: Mapping[str, Any]) -> SavedPosition:
    """Return where a training stood when this checkpoint was written."""
    own = checkpoint.get(KEY, {})
    loops = checkpoint.get("loops", {}).get("fit_loop", {})
    n_epochs = checkpoint.get("epoch", 0)
    if loops:
        n_epochs = loops["epoch_progress"]["current"]["processed"]
        is_open = n_epochs < loops["epoch_progress"]["current"]["started"]
        last = loops["epoch_loop.batch_progress"]["is_last_batch"]
        # Saved at the end of the validation, what is left of the epoch are its hooks.
        n_epochs += int(is_open and last and not _at_batch_end(loops))
    return SavedPosition(
        n_epochs=n_epochs,
        step=checkpoint.get("global_step", 0),
        saved=own.get("saved", ""),
        stopped_early=own.get("is_ending", False) and _stopped(checkpoint.get("callbacks", {})),
    )


def mend_loops_to_resume(checkpoint: dict[str, Any]) -> bool:
    """Correct the loops in a checkpoint that was just loaded, so that Lightning resumes exactly.

    Returns:
        Whether training continues with a new epoch, from its first batch.
    """
    loops = checkpoint.get("loops", {}).get("fit_loop")
    if not loops:
        return False
    epoch, batch = loops["epoch_progress"], loops["epoch_loop.batch_progress"]
    if epoch["current"]["processed"] == epoch["current"]["started"]:
        for part in ("current", "total"):
            epoch[part]["completed"] = epoch[part]["processed"]
        # Lightning would start the next epoch behind the last batch of this one.
        batch["current"] = dict.fromkeys(batch["current"], 0)
        batch["is_last_batch"] = False
        return True
    if checkpoint.get(KEY, {}).get("validation_due"):
        _complete(batch)
        _start_validation(loops["epoch_loop.val_loop.batch_progress"])
    elif batch["is_last_batch"] and _at_batch_end(loops):
        _complete(batch)
        # Lightning adds the batch to this count only where it completes the batch itself.
        loops["epoch_loop.state_dict"]["_batches_that_stepped"] += 1
    return False


def resume_loops(trainer: pl.Trainer, new_epoch: bool) -> None:
    """Finish what `mend_loops_to_resume` began; to be called at the train start.

    Args:
        trainer: In `on_train_start`.
        new_epoch: What `mend_loops_to_resume` returned.
    """
    if new_epoch:
        trainer.fit_loop.epoch_loop.restarting = False
    restore_loader_position(trainer)
    update_epoch_length(trainer)


def _is_batch_end(trainer: pl.Trainer) -> bool:
    total = trainer.fit_loop.epoch_loop.batch_progress.total
    return total.completed == total.ready - 1


def _at_batch_end(loops: Mapping[str, Any]) -> bool:
    total = loops["epoch_loop.batch_progress"]["total"]
    return bool(total["completed"] == total["processed"] - 1)


def _complete(progress: dict[str, Any]) -> None:
    for part in ("current", "total"):
        progress[part]["completed"] = progress[part]["processed"]


def _start_validation(progress: dict[str, Any]) -> None:
    # The form in which the loop believes that it was stopped in its first batch, and starts over.
    for part in ("current", "total"):
        progress[part] = {"ready": 1, "started": 1, "processed": 0, "completed": 0}
    progress["is_last_batch"] = False


def _stopped(callbacks: Mapping[str, Any]) -> bool:
    """Tell whether it was early stopping that ended the training: too few improvements, or a limit.

    What else may end it, such as `max_time`, is reported by the next run itself.
    """
    states = [state for key, state in callbacks.items() if key.startswith("EarlyStopping")]
    return any(s["wait_count"] >= s["patience"] or s["stopped_epoch"] > 0 for s in states)


class RandomStates(pl.Callback):
    """Stores the states of Python, NumPy, torch and the GPU of each rank, and restores them.

    They are restored when everything is set up, right before the first batch. On another number of
    ranks each gets a new seed, derived from the stored states.
    """

    def __init__(self) -> None:
        self._stored: list[dict[str, Any]] = []

    @override
    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        states: list[Any] = [random_state()]
        if trainer.world_size > 1:
            own = states[0]
            states = [None] * trainer.world_size
            # Of all ranks, because only the first one writes.
            dist.all_gather_object(states, own)
        checkpoint[_RANDOM_KEY] = states

    @override
    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        # Not set here: the sanity check and the loaders would still draw from it.
        self._stored = checkpoint.get(_RANDOM_KEY, [])

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        stored, self._stored = self._stored, []
        if len(stored) == trainer.world_size:
            set_random_state(stored[trainer.global_rank])
        elif stored:
            seed_from(stored[0], trainer.global_rank)
            if trainer.is_global_zero:
                log.warning(
                    "The checkpoint was written by %s and is resumed by %d, so random "
                    "numbers (dropout and the like) are other ones from here. The data continues "
                    "where it was.",
                    count(len(stored), "process"),
                    trainer.world_size,
                )


def random_state() -> dict[str, Any]:
    """Return the states of this process as tensors, numbers and lists."""
    version, numbers, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state()
    state = {
        # As tensors: a checkpoint must be readable with weights_only=True.
        "python": [version, torch.tensor(numbers, dtype=torch.int64), gauss],
        "numpy": [torch.from_numpy(np.asarray(keys, dtype=np.int64)), position, has_gauss, cached],
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Put this process back in a state that `random_state` returned."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers.tolist()), gauss))
    keys, *rest = state["numpy"]
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def seed_from(state: dict[str, Any], rank: int) -> None:
    """Seed everything from a stored state and the rank: another stream, but always the same."""
    stored = zlib.crc32(state["torch"].numpy().tobytes())
    # Derived, not drawn: the same resume gives the same numbers.
    seed = int(np.random.SeedSequence([stored, rank]).generate_state(1)[0])
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
