"""`history.jsonl`: what was logged in a run, one line per log point and per validation.

A line is `{"step": 1250, "epoch": 2, "time": 1763260000.1, "values": {"train/loss": 2.134},
"batch": 5000}`, where `step` counts optimizer steps, `epoch` counts from 1, as in the names of
checkpoints, and `batch` counts the batches of all epochs. A value that is not finite is null.
"""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from time import time
from typing import IO, Any

from lightning.pytorch import Callback, LightningModule, Trainer

from espnet3.io.atomic import StrPath, write_text
from espnet3.trainer.reporting.history_entries import (
    FILE_NAME,
    Entry,
    read_history,
)
from espnet3.trainer.reporting.loggers import LogListener, hide_lost_steps

logger = logging.getLogger(__name__)


class History(Callback):
    """Writes `exp_dir/history.jsonl` on rank 0, whatever the loggers are.

    When a run resumes from a checkpoint, lines beyond its batch are dropped, for those batches come
    again; TensorBoard hides them.
    """

    def __init__(self, exp_dir: StrPath) -> None:
        self.path = Path(exp_dir) / FILE_NAME
        self._listener = LogListener(self._receive)
        self._trainer: Trainer | None = None
        self._file: IO[str] | None = None
        self._is_at_start = True

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._listener.attach(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        self._trainer = trainer
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _keep_until(self.path, _n_batches(trainer))
            self._file = self.path.open("a", encoding="utf-8")
        except OSError as error:
            self._give_up(error)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self._is_at_start and trainer.is_global_zero:
            hide_lost_steps(trainer)
        self._is_at_start = False

    def _receive(self, values: Mapping[str, float]) -> None:
        if self._trainer is None or self._file is None:
            return
        trainer = self._trainer
        step, epoch, now = trainer.global_step, trainer.current_epoch + 1, round(time(), 3)
        entry = Entry(step, epoch, now, values, _n_batches(trainer))
        try:
            self._file.write(entry.to_line() + "\n")
            self._file.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        # A full disk must not end a training; checkpoints have their own errors.
        logger.warning("%s is not written any more: %s", self.path, error)
        self._close()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError:
                logger.debug("the last line of %s is lost", self.path)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._listener.detach(trainer)
        self._close()
        self._trainer, self._is_at_start = None, True


def _n_batches(trainer: Trainer) -> int:
    # Not the step, which stays the same while gradients are accumulated.
    return trainer.fit_loop.epoch_loop.batch_progress.total.ready


def _keep_until(path: Path, batch: int) -> None:
    """Rewrite a history without lines beyond a batch, and without unfinished ones."""
    if path.exists():
        kept = [entry for entry in read_history(path) if entry.batch <= batch]
        write_text(path, _joined(entry.to_line() for entry in kept))


def _joined(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
