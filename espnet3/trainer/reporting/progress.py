"""Tell how a training goes: a bar on a terminal, lines in a log."""

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from time import monotonic
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from espnet3.text import count, duration, value_text
from espnet3.trainer.reporting.log_listener import LogListener
from espnet3.trainer.reporting.progress_bar import (
    ON_BAR,
    TrainingBar,
    has_terminal,
    lines_only_in_files,
)
from espnet3.trainer.reporting.progress_text import (
    BestValues,
    Position,
    describe_start,
    describe_training,
    time_left,
)
from espnet3.trainer.reporting.summary import describe_parts

logger = logging.getLogger(__name__)

_MOST_OFTEN = 1.0
_LEAST_OFTEN = 60.0


class TrainingProgress(Callback):
    """Says what is trained, how it goes, and what each validation gave; on rank 0 only.

    There is a line at the start and the end, for each log point (not more than one a second, at
    least one a minute), each validation and each epoch. On a terminal, a bar stands for those of
    the log points, which then go to the log file only.

    Args:
        modes: `min` or `max` for the metrics that checkpoints are chosen by: their best is marked.
        bar: False for no bar on a terminal either.
    """

    def __init__(self, modes: Mapping[str, str] | None = None, *, bar: bool | None = None) -> None:
        self._values: dict[str, float] = {}
        self._best = BestValues({"valid/loss": "min"} if modes is None else dict(modes))
        self._listener = LogListener(self._receive)
        self._wants_bar = bar
        self._bar: TrainingBar | None = None
        self._open = ExitStack()
        self._trainer: Trainer | None = None
        self._begin: tuple[Position, float] | None = None
        self._last_line = self._epoch_begin = self._validation_begin = 0.0
        self._validating = 0.0

    def state_dict(self) -> dict[str, Any]:
        """Keep the best values, so that a run that goes on knows them."""
        return {"best": {name: list(best) for name, best in self._best.best.items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the best values of the run that is continued."""
        for name, (value, step) in state_dict.get("best", {}).items():
            self._best.best[str(name)] = (float(value), int(step))

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._listener.attach(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        self._trainer = trainer
        now = monotonic()
        self._begin = Position.of(trainer), now
        self._epoch_begin, self._last_line = now, now - _MOST_OFTEN
        parts = describe_parts(getattr(pl_module, "model", pl_module))
        logger.info("%s", "\n".join([describe_start(trainer, pl_module), *parts]))
        if self._wants_bar is not False and has_terminal():
            self._bar = TrainingBar()
            self._open.enter_context(lines_only_in_files())
            self._open.callback(self._bar.stop)
            self._bar.start()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._epoch_begin, self._validating = monotonic(), 0.0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._begin is None:
            return
        if self._bar is not None:
            self._show_on_bar(trainer, self._bar)
        # Log points may be far apart.
        if monotonic() - self._last_line >= _LEAST_OFTEN:
            self._write_line(trainer, "")

    def _show_on_bar(self, trainer: Trainer, bar: TrainingBar) -> None:
        here = Position.of(trainer)
        label = here.epoch_text.capitalize()
        text = f"step {here.step:,}  " * bar.is_wide + self._bar_text(here)
        bar.show_epoch(label, here.batch, here.n_batches, text)

    def _bar_text(self, here: Position) -> str:
        parts = list[str]()
        for word, prefix in (("loss", "train/"), ("valid", "valid/")):
            # A model with several optimizers has several losses: the first stands for them.
            found = [name for name in self._values if name.startswith(prefix)]
            name = f"{prefix}loss" if f"{prefix}loss" in found else next(iter(found), "")
            parts += [f"{word} {value_text(self._values[name])}"] if name else []
        speed = self._values.get("perf/audio_seconds_per_second")
        parts += [] if speed is None else [f"{speed:,.0f} audio s/s"]
        return "  ".join(filter(None, [*parts, self._time_left(here)]))

    def _time_left(self, here: Position) -> str:
        assert self._begin is not None
        begin, at = self._begin
        return time_left(here.seconds_left(begin, monotonic() - at))

    def _receive(self, values: Mapping[str, float]) -> None:
        """Hear what goes to the loggers."""
        trainer = self._trainer
        if trainer is None or self._begin is None:
            return
        self._values |= values
        if trainer.validating:
            self._validated(trainer, values)
        elif any(name.startswith(("train/", "perf/")) for name in values):
            now = monotonic()
            if now - self._last_line >= _MOST_OFTEN:
                self._write_line(trainer, describe_training(values))

    def _write_line(self, trainer: Trainer, text: str) -> None:
        here = Position.of(trainer)
        self._last_line = monotonic()
        parts = "; ".join(filter(None, [text, self._time_left(here)]))
        extra = {ON_BAR: True} if self._bar is not None else {}
        logger.info("%s: %s", str(here).capitalize(), parts, extra=extra)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._validation_begin = monotonic()

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if self._bar is not None:
            total = sum(n for n in trainer.num_val_batches if n != float("inf"))
            self._bar.show_validation(batch_idx + 1, int(total) or None)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._validating += monotonic() - self._validation_begin
        if self._bar is not None:
            self._bar.end_validation()

    def _validated(self, trainer: Trainer, values: Mapping[str, float]) -> None:
        here = Position.of(trainer)
        logger.info(
            "Validation at %s, step %s: %s; %s",
            here.epoch_text,
            f"{here.step:,}",
            self._best.describe(values, here.step),
            duration(monotonic() - self._validation_begin),
        )

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._begin is None:
            return
        here = Position.of(trainer)
        part = f", {duration(self._validating)} of it validation" if self._validating else ""
        took = duration(monotonic() - self._epoch_begin)
        logger.info("%s done in %s%s", here.epoch_text.capitalize(), took, part)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._open.close()
        if self._begin is None:
            return
        took = duration(monotonic() - self._begin[1])
        steps = count(trainer.global_step - self._begin[0].step, "step")
        best = f"; {self._best}" if self._best.best else ""
        n_bad = int(getattr(pl_module, "n_bad_batches", 0))
        bad = f"; {count(n_bad, 'batch')} left out as not finite" if n_bad else ""
        logger.info("Trained %s in %s%s%s", steps, took, best, bad)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self._open.close()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._open.close()
        self._listener.detach(trainer)
        self._bar = self._begin = self._trainer = None
