"""Where in the training a checkpoint was written, and how Lightning's loops go on from there.

Lightning resumes well from a checkpoint between two batches or at the end of a validation. Written
at the end of an epoch or at its last batch, it skips the validation or counts an epoch twice
(2.6.6, with `max_steps`). So the state is put right when it is loaded; the file stays Lightning's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import lightning.pytorch as pl

from espnet3.trainer.lightning_internals import (
    is_ending,
    is_validation_due,
    restore_loader_position,
    update_epoch_length,
)

KEY = "espnet3"
"""Of our own entry in a checkpoint."""


@dataclass(frozen=True)
class Position:
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


def read_position(checkpoint: Mapping[str, Any]) -> Position:
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
    return Position(
        n_epochs=n_epochs,
        step=checkpoint.get("global_step", 0),
        saved=own.get("saved", ""),
        stopped_early=own.get("is_ending", False) and _stopped(checkpoint.get("callbacks", {})),
    )


def settle_loops(checkpoint: dict[str, Any]) -> bool:
    """Put right, in a checkpoint that was just loaded, how Lightning's loops go on.

    Returns:
        Whether training goes on with a new epoch, from its first batch.
    """
    loops = checkpoint.get("loops", {}).get("fit_loop")
    if not loops:
        return False
    epoch, batch = loops["epoch_progress"], loops["epoch_loop.batch_progress"]
    if epoch["current"]["processed"] == epoch["current"]["started"]:
        for part in ("current", "total"):
            epoch[part]["completed"] = epoch[part]["processed"]
        batch["current"] = dict.fromkeys(batch["current"], 0)
        batch["is_last_batch"] = False
        return True
    if checkpoint.get(KEY, {}).get("validation_due"):
        _complete(batch)
        _start_validation(loops["epoch_loop.val_loop.batch_progress"])
    elif batch["is_last_batch"] and _at_batch_end(loops):
        _complete(batch)
        loops["epoch_loop.state_dict"]["_batches_that_stepped"] += 1
    return False


def start_loops(trainer: pl.Trainer, new_epoch: bool) -> None:
    """Finish what `settle_loops` began; to be called at the train start.

    Args:
        trainer: In `on_train_start`.
        new_epoch: What `settle_loops` returned.
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

    What else may end it, such as `max_time`, is told by the next run itself.
    """
    states = [state for key, state in callbacks.items() if key.startswith("EarlyStopping")]
    return any(s["wait_count"] >= s["patience"] or s["stopped_epoch"] > 0 for s in states)
