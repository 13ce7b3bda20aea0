"""The callback that writes checkpoints: the last one often, and the best K of each criterion."""

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.trainer.states import TrainerFn
from typing_extensions import override

from espnet3.io.atomic import StrPath, write_json
from espnet3.trainer.checkpointing.best_checkpoints import (
    INDEX,
    LAST,
    BestCheckpoints,
    read_index,
)
from espnet3.trainer.checkpointing.checkpoint_io import (
    STAGING,
    explain_trouble,
    publish,
    remove_path,
    restore_folder,
)
from espnet3.trainer.checkpointing.resume import (
    KEY,
    epoch_number,
    mend_loops_to_resume,
    record_position,
    resume_loops,
)
from espnet3.trainer.config import CheckpointConfig, Criterion
from espnet3.trainer.lightning_internals import (
    is_ending,
    is_last_batch,
    is_validation_due,
    update_epoch_length,
)
from espnet3.trainer.optimization.optimizer_steps import has_gradients

log = logging.getLogger(__name__)

NAME = re.compile(r"epoch\d+_step\d+\.ckpt")
"""Names of the best checkpoints."""
_PATIENCE = 100  # batches that a save waits for a moment without half-summed gradients
_SHORTEST, _LONGEST = 60.0, 1800.0  # seconds between two saves, where the timer chooses
_SHARE = 0.01  # of the time that saving may take
_MOST_BATCHES = 1000  # between two questions to the clock of rank 0


class CheckpointKeeper(Checkpoint):
    """Writes `last.ckpt`, `epoch<E>_step<S>.ckpt` for the best K, and `best.json`.

    All ranks must reach each save together; what is best is decided by rank 0. A checkpoint is
    written once, whatever the number of its names. Order on the disk: the new files, `last.ckpt`,
    `best.json`, then the removal of what fell out of the best K; a kill between any two is fine.
    """

    def __init__(
        self,
        exp_dir: StrPath,
        criteria: Iterable[Criterion] = (),
        config: CheckpointConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.exp_dir = Path(exp_dir)
        self.best = BestCheckpoints(criteria)
        self.config = config or CheckpointConfig()
        minutes = self.config.every_minutes
        seconds = None if minutes == "auto" else minutes and minutes * 60
        self._timer = SaveTimer(seconds, clock) if minutes else None
        self._saved_step = 0
        self._validated_batch = -1
        self._waited = 0
        self._is_partial = False
        self._is_index_old = False
        self._dropped: set[str] = set()
        self._begins_epoch = False

    @override
    def state_dict(self) -> dict[str, Any]:
        return self.best.state_dict()

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best.load_state_dict(state_dict)

    @override
    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        checkpoint[KEY] = record_position(trainer)

    @override
    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self._begins_epoch = mend_loops_to_resume(checkpoint)

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if trainer.is_global_zero:
            self.exp_dir.mkdir(parents=True, exist_ok=True)

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        resume_loops(trainer, self._begins_epoch)
        self._begins_epoch = False
        self._saved_step = trainer.global_step
        if self._timer:
            self._timer.restart()
        if trainer.is_global_zero:
            # This run has not saved yet, so they are left from one that was killed.
            for path in self.exp_dir.glob(f".{STAGING}.tmp-*"):
                remove_path(path)
            resumed = trainer.ckpt_path and Path(trainer.ckpt_path).absolute()
            # After a resume from another file, newer checkpoints may still be wanted.
            if resumed == (self.exp_dir / LAST).absolute():
                self._sweep()

    @override
    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        update_epoch_length(trainer)

    def _sweep(self) -> None:
        # Written after `last.ckpt` was, or to be removed when the run was killed.
        known = self.best.files()
        # After a kill between `last.ckpt` and `best.json`, `average` still reads the older list.
        if (self.exp_dir / INDEX).is_file():
            known |= {one.file for saved in read_index(self.exp_dir).values() for one in saved}
        for path in sorted(self.exp_dir.glob("epoch*_step*.ckpt")):
            # The glob also matches names that users gave to copies.
            if NAME.fullmatch(path.name) and path.name not in known:
                log.info("Removing %s, a leftover of the run that was interrupted.", path)
                remove_path(path)

    @override
    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        if trainer.fast_dev_run or not self._is_due(trainer):  # type: ignore[attr-defined]
            return
        if is_last_batch(trainer) or is_validation_due(trainer):
            return  # it is saved after the validation, or at the end of the epoch
        self._waited += 1
        is_patient = self._waited < _PATIENCE and not is_ending(trainer)
        if has_gradients(pl_module) and is_patient:
            return
        self.save_last(trainer)

    @staticmethod
    def _is_off(trainer: pl.Trainer) -> bool:
        is_fitting = trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking
        return not is_fitting or bool(trainer.fast_dev_run)  # type: ignore[attr-defined]

    def _is_due(self, trainer: pl.Trainer) -> bool:
        step, every = trainer.global_step, self.config.every_n_steps
        by_time = self._timer is not None and self._timer.is_due(trainer)
        # By multiples, so that a save by time in between does not shift the later ones.
        by_step = every is not None and step // every > self._saved_step // every
        at_end = is_ending(trainer) or (trainer.max_steps != -1 and step >= trainer.max_steps)
        return step > self._saved_step and (by_time or by_step or at_end or self._is_partial)

    @override
    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._is_off(trainer):
            return
        self._validated_batch = trainer.fit_loop.total_batch_idx
        if not is_last_batch(trainer):
            self._save_with_metrics(trainer, pl_module, fresh_metrics=True)

    @override
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # Only now are early stopping and schedules through with this epoch and its validation.
        # One that was cut short (max_steps, a signal) is saved between its batches.
        if not self._is_off(trainer) and is_last_batch(trainer):
            validated = self._validated_batch == trainer.fit_loop.total_batch_idx
            fresh = validated or not trainer.enable_validation
            self._save_with_metrics(trainer, pl_module, fresh_metrics=fresh)

    def save_last(self, trainer: pl.Trainer) -> None:
        """Write `last.ckpt`; to be called on all ranks, between two batches."""
        self._write(trainer, [LAST])

    def _save_with_metrics(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *, fresh_metrics: bool
    ) -> None:
        monitors = [criterion.monitor for criterion in self.best.lists]
        if not fresh_metrics:  # what validation logged is that of an earlier epoch
            monitors = [monitor for monitor in monitors if monitor.startswith("train/")]
        metrics = trainer.callback_metrics
        values = {name: float(metrics[name]) for name in monitors if name in metrics}
        # Ranks that disagree about the names to write would hang in the next save.
        values = trainer.strategy.broadcast(values)
        epoch, step = epoch_number(trainer), trainer.global_step
        name = f"epoch{epoch}_step{step}.ckpt"
        before = self.best.files()
        entered = self.best.add(name, values, epoch, step)
        # Collected, not removed: the `last.ckpt` on the disk still names them.
        self._dropped = (self._dropped | before) - self.best.files()
        self._is_index_old = True
        # A run that resumes in the middle of an accumulation does not have its gradients, so
        # `last.ckpt` waits for the end of it.
        is_partial = has_gradients(pl_module) and not is_ending(trainer)
        names = [*([] if is_partial else [LAST]), *([name] if entered else [])]
        if names:
            self._write(trainer, names)
        self._is_partial = is_partial
        if trainer.is_global_zero:
            for criterion in entered:
                log.info("%s: %s is %.6g.", name, criterion, values[criterion.monitor])

    def _write(self, trainer: pl.Trainer, names: list[str]) -> None:
        with self._timer.saving() if self._timer else nullcontext():
            self._publish(trainer, names)
        if LAST not in names:
            return
        self._saved_step = trainer.global_step
        self._waited = 0
        self._is_partial = False
        if self._timer:
            self._timer.restart()

    def _publish(self, trainer: pl.Trainer, names: list[str]) -> None:
        staging = self.exp_dir / STAGING
        if trainer.is_global_zero and staging.is_dir():
            remove_path(staging)  # parts of a sharded checkpoint that was not finished
        # On all ranks: sharded strategies write together, and Lightning ends it with a barrier.
        trainer.save_checkpoint(staging)
        if trainer.is_global_zero:
            restore_folder(self.exp_dir / LAST)
            with explain_trouble(staging):
                # The best one first: `last.ckpt` holds the list that names it.
                publish(staging, names)
            log.debug("Saved %s at step %d.", " and ".join(names), trainer.global_step)
        if LAST not in names:
            return
        if trainer.is_global_zero and self._is_index_old:
            self._tidy()
        self._is_index_old, self._dropped = False, set()

    def _tidy(self) -> None:
        with explain_trouble(self.exp_dir / INDEX):
            write_json(self.exp_dir / INDEX, self.best.state_dict())
        for name in self._dropped:
            remove_path(self.exp_dir / name)


class SaveTimer:
    """Decides, batch by batch and on all ranks alike, whether a save is due.

    The clock of rank 0 decides. With several ranks it is asked only when about half of the
    remaining time has passed, judged by the pace so far: a few dozen messages per interval.

    Args:
        seconds: Of an interval; None chooses it by what the last save took: a minute, or as much
            more as keeps saving below 1% of the time, up to half an hour.
        clock: Counts seconds.
    """

    def __init__(self, seconds: float | None, clock: Callable[[], float]) -> None:
        self.seconds = _SHORTEST if seconds is None else seconds
        self._is_chosen = seconds is None
        self._clock = clock
        self.restart()

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Enclose a save, so that what it takes is known."""
        begin = self._clock() if self._is_chosen else 0.0
        yield
        if self._is_chosen:
            self.seconds = min(max(_SHORTEST, (self._clock() - begin) / _SHARE), _LONGEST)

    def restart(self) -> None:
        """Begin a new interval."""
        self._start = self._clock()
        self._n_batches = 0
        self._ask_at = 1
        self._due = False

    def is_due(self, trainer: pl.Trainer) -> bool:
        """Count one batch and say whether a save is due; it stays due until `restart`."""
        self._n_batches += 1
        if trainer.world_size == 1:
            return self._clock() - self._start >= self.seconds
        if not self._due and self._n_batches >= self._ask_at:
            left = trainer.strategy.broadcast(self._batches_left())
            self._due = left <= 0
            self._ask_at = self._n_batches + max(1, min(left // 2, _MOST_BATCHES))
        return self._due

    def _batches_left(self) -> int:
        elapsed = self._clock() - self._start
        if elapsed >= self.seconds:
            return 0
        pace = self._n_batches / max(elapsed, 1e-6)
        return max(1, int((self.seconds - elapsed) * pace))
