"""Say that `EarlyStopping` has ended a training, and by which value; Lightning itself is silent."""

import logging
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping

from espnet3.io.atomic import StrPath
from espnet3.text import count, value_text
from espnet3.trainer.reporting.history_entries import read_history

logger = logging.getLogger(__name__)

_MESSAGE = "stopping_reason_message"


class EarlyStops(Callback):
    """Tells at the end which `EarlyStopping` ended the training, if one did.

    A checkpoint holds the `patience` of the run before, and would put it back: the config's counts.

    Args:
        exp_dir: whose history tells at which epoch the best value came.
    """

    def __init__(self, exp_dir: StrPath) -> None:
        self._exp_dir = exp_dir
        self._patience: dict[int, int] = {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._patience = {id(one): one.patience for one in _stoppers(trainer)}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for stopper in _stoppers(trainer):
            wanted = self._patience.get(id(stopper), stopper.patience)
            if wanted != stopper.patience and trainer.is_global_zero:
                logger.info(
                    "EarlyStopping of %s now waits for %s, and not for %d as before",
                    stopper.monitor, count(wanted, "check"), stopper.patience,
                )  # fmt: skip
            stopper.patience = wanted
            setattr(stopper, _MESSAGE, None)  # what it says is of an earlier end

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero or not trainer.should_stop:
            return
        for stopper in _stoppers(trainer):
            if getattr(stopper, _MESSAGE, None) or stopper.wait_count >= stopper.patience:
                logger.info("%s", self._describe(stopper, trainer))

    def _describe(self, stopper: EarlyStopping, trainer: Trainer) -> str:
        best = float(stopper.best_score)
        epoch = self._epoch_of(stopper.monitor, best)
        at = "" if epoch is None else f", at epoch {epoch}"
        # min_epochs may have let it go on for a while.
        ended = max(stopper.stopped_epoch, trainer.current_epoch - 1) + 1
        return (
            f"EarlyStopping ended the training after epoch {ended}: {_reason(stopper)}. "
            f"Best {stopper.monitor}: {value_text(best)}{at}"
        )

    def _epoch_of(self, monitor: str, best: float) -> int | None:
        entries = [one for one in read_history(self._exp_dir) if monitor in one.values]
        near = [one for one in entries if abs(one.values[monitor] - best) <= 1e-6 * abs(best)]
        return near[0].epoch if near else None


def _stoppers(trainer: Trainer) -> list[EarlyStopping]:
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    return [one for one in callbacks if isinstance(one, EarlyStopping)]


def _reason(stopper: EarlyStopping) -> str:
    if stopper.wait_count >= stopper.patience:
        checks = count(stopper.wait_count, "check")
        return f"{stopper.monitor} was not better in {checks} (patience: {stopper.patience})"
    current = str(getattr(stopper, _MESSAGE, None) or "")
    told = current.partition(" Signaling")[0].partition(" Previous")[0].rstrip(". ")
    return told[:1].lower() + told[1:]
