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
from lightning.fabric.utilities.data import sized_len

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


def is_validation_due(trainer: pl.Trainer) -> bool:
    """Tell, at the end of a batch, whether a validation follows at once."""
    fit_loop = trainer.fit_loop
    fetcher = fit_loop._data_fetcher
    return fetcher is not None and fit_loop.epoch_loop._should_check_val_fx(fetcher)


def is_last_batch(trainer: pl.Trainer) -> bool:
    """Tell whether the batch at hand is the last one of its epoch."""
    return trainer.fit_loop.epoch_loop._num_ready_batches_reached()


def is_ending(trainer: pl.Trainer) -> bool:
    """Tell whether a callback has asked for the end, such as early stopping, and gets it."""
    return bool(trainer.should_stop and trainer.fit_loop._can_stop_early)


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
    fit_loop = trainer.fit_loop
    if new_epoch:
        fit_loop.epoch_loop.restarting = False
    # A module that asks for `trainer.estimated_stepping_batches`, as those with a schedule do, has
    # the loaders set up before the checkpoint is read, and Lightning forgets their position.
    if fit_loop._combined_loader_states_to_load and fit_loop._data_fetcher is not None:
        fit_loop._load_combined_loader_states()
        iter(fit_loop._data_fetcher)
    measure_epoch(trainer)


def measure_epoch(trainer: pl.Trainer) -> None:
    """Take the number of batches of the epoch at hand; to be called at its start.

    Lightning asks once, before it restores the position of the loader. After a resume with another
    number of ranks the rest of that epoch has other steps, and the epochs after it have others
    again; so may the batches of a sampler of the user's own.
    """
    fit_loop = trainer.fit_loop
    loader, fetcher = fit_loop._combined_loader, fit_loop._data_fetcher
    if loader is None or fetcher is None:
        return
    lengths = [sized_len(one) for one in loader.flattened]
    limits = [_limited(n, trainer.limit_train_batches) for n in lengths if n is not None]
    if None in lengths or limits == loader.limits:
        return
    loader.limits = limits
    iter(fetcher)
    fit_loop.max_batches = max(limits)
    if isinstance(trainer.val_check_interval, float) and trainer.val_check_batch is not None:
        trainer.val_check_batch = max(1, int(max(limits) * trainer.val_check_interval))


def _limited(n_batches: int, limit: float | None) -> int | float:
    if limit is None:
        return n_batches
    return min(n_batches, limit) if isinstance(limit, int) else int(n_batches * limit)


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
