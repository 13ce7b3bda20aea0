"""Monitored metrics: which ones a config names, whether they are logged, and early stopping."""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping

from espnet3.config.sources import place_of
from espnet3.errors import ConfigError, suggest
from espnet3.io.atomic import StrPath
from espnet3.text import count, value_text
from espnet3.trainer.config import CRITERIA, TrainingConfig
from espnet3.trainer.lightning_internals import is_log_point
from espnet3.trainer.optimization.optimization_config import OptimizationConfig
from espnet3.trainer.reporting.history import read_history

logger = logging.getLogger(__name__)

_OF_TRAINING = ("train/", "perf/", "lr/", "grad_norm/")
_MESSAGE = "stopping_reason_message"


@dataclass(frozen=True)
class Monitor:
    """A metric that something goes by."""

    name: str
    key: str
    """Where the config names it, such as `best_model_criterion.0`."""
    line: str = "{}"
    """What to write there, with `{}` for the name: `scheduler_monitor: {}`."""

    @property
    def is_of_training(self) -> bool:
        """Tell whether it is logged while training, not by a validation."""
        return self.name.startswith(_OF_TRAINING)


def configured_monitors(config: TrainingConfig, optimization: OptimizationConfig) -> list[Monitor]:
    """Return the metrics of best checkpoints, schedulers and the user's callbacks."""
    criteria = [
        Monitor(c.monitor, f"{CRITERIA}.{i}", f"{CRITERIA}: [[{{}}, {c.k}, {c.mode}]]")
        for i, c in enumerate(config.best_model_criterion)
    ]
    schedulers = [
        _monitor(schedule.monitor, optimization.monitor_key(name))
        for name, schedule in optimization.schedulers.items()
        if schedule.monitor
    ]
    return [*criteria, *schedulers, *_of_callbacks(config.trainer.get("callbacks"))]


def _of_callbacks(nodes: Any) -> list[Monitor]:
    listed = nodes if isinstance(nodes, list) else [nodes]
    return [
        _monitor(node["monitor"], f"trainer.callbacks.{i}.monitor")
        for i, node in enumerate(listed)
        if isinstance(node, Mapping) and isinstance(node.get("monitor"), str)
    ]


def _monitor(name: str, key: str) -> Monitor:
    return Monitor(name, key, f"{key.rpartition('.')[2]}: {{}}")


def refuse_without_validation(monitors: Iterable[Monitor], *, is_limited: bool = False) -> None:
    """Refuse monitors that only a validation could log, where there is none.

    Args:
        monitors: what something goes by.
        is_limited: there is a validation set, but `trainer.limit_val_batches: 0`.

    Raises:
        ConfigError: naming the first, and the line to write.
    """
    way_out = (
        f"Delete trainer.limit_val_batches: 0{place_of('trainer.limit_val_batches')}"
        if is_limited
        else "Give a validation set (dataset.valid)"
    )
    for monitor in monitors:
        if not monitor.is_of_training:
            raise ConfigError(
                key=monitor.key,
                value=monitor.name,
                problem="but there is no validation that could log it",
                fix=f"{way_out}, or go by the training: {monitor.line.format('train/loss')}",
            )


class MonitorCheck(Callback):
    """Ends a run at its sanity check, or its first validation, if a monitor was not logged.

    Monitors of `train/*` are looked for after the first log point. It should stand before callbacks
    that have a monitor: theirs would be the error otherwise.

    Raises:
        ConfigError: naming the monitor, what is logged, and the line to write.
    """

    def __init__(self, monitors: Sequence[Monitor]) -> None:
        self._of_training = [m for m in monitors if m.is_of_training]
        self._of_validation = [m for m in monitors if not m.is_of_training]
        self._has_logged = False

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._of_validation and not trainer.enable_validation:
            is_limited = trainer.limit_val_batches == 0
            refuse_without_validation(self._of_validation, is_limited=is_limited)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        where = "the sanity check" if trainer.sanity_checking else "a validation"
        self._of_validation = self._check(trainer, self._of_validation, where)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._of_training and is_log_point(trainer):
            self._has_logged = True

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._check_training(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._check_training(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._check_training(trainer)

    def _check_training(self, trainer: Trainer) -> None:
        # Not at the end of the batch itself: a module may log after its callbacks.
        if self._has_logged and self._of_training:
            self._of_training = self._check(trainer, self._of_training, "the first logged steps")

    def _check(self, trainer: Trainer, monitors: list[Monitor], where: str) -> list[Monitor]:
        """Return nothing to check any more, or raise."""
        logged = sorted(map(str, trainer.callback_metrics))
        for monitor in monitors:
            if monitor.name not in logged:
                raise _not_logged(monitor, logged, where)
        return []


def _not_logged(monitor: Monitor, logged: Collection[str], where: str) -> ConfigError:
    # `val_loss` and `loss` mean `valid/loss`, far as they are from it in letters.
    short = monitor.name.rpartition("/")[2].rpartition("_")[2]
    namesakes = [name for name in logged if name.rpartition("/")[2] == short]
    same_side = [n for n in namesakes if n.startswith("train/") == monitor.is_of_training]
    hint = suggest(monitor.name, logged)
    if not hint and (same_side or namesakes):
        hint = f" Did you mean {(same_side or namesakes)[0]!r}?"
    fixed = hint.split("'")[1] if hint else (next(iter(logged), "valid/loss"))
    late = (
        " (If it is logged by later validations only, set trainer.num_sanity_val_steps: 0.)"
        if where == "the sanity check"
        else ""
    )
    return ConfigError(
        key=monitor.key,
        value=monitor.name,
        problem=f"but {where} logged no such metric.{hint} Logged are: "
        f"{', '.join(logged) or 'none at all'}",
        fix=f"Write: {monitor.line.format(fixed)}{late}",
    )


class EarlyStops(Callback):
    """Logs at the end which `EarlyStopping` ended the training, if one did; Lightning is silent.

    A checkpoint holds the `patience` of the run before, and would put it back: the config's counts.

    Args:
        exp_dir: whose history has the epoch of the best value.
    """

    def __init__(self, exp_dir: StrPath) -> None:
        self._exp_dir = exp_dir
        self._patience: dict[int, int] = {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        # Before the checkpoint is loaded, which happens between here and the train start.
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
        # min_epochs may have kept it running for a while.
        ended = max(stopper.stopped_epoch, trainer.current_epoch - 1) + 1
        return (
            f"EarlyStopping ended the training after epoch {ended}: {_reason(stopper)}. "
            f"Best {stopper.monitor}: {value_text(best)}{at}"
        )

    def _epoch_of(self, monitor: str, best: float) -> int | None:
        entries = [one for one in read_history(self._exp_dir) if monitor in one.values]
        # The history keeps seven digits, so the best value need not be equal to its own line.
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
    reason = current.partition(" Signaling")[0].partition(" Previous")[0].rstrip(". ")
    return reason[:1].lower() + reason[1:]
