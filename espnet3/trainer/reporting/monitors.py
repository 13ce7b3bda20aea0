"""See to it that the metrics that checkpoints, schedulers and callbacks go by are logged."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lightning.pytorch import Callback, LightningModule, Trainer

from espnet3.config.sources import set_in
from espnet3.errors import ConfigError, suggest
from espnet3.trainer.lightning_internals import is_log_point

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

_OF_TRAINING = ("train/", "perf/", "lr/", "grad_norm/")


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
        """Whether it is logged while training, not by a validation."""
        return self.name.startswith(_OF_TRAINING)


def monitors_of(callbacks: Iterable[Callback], key: str = "trainer.callbacks") -> list[Monitor]:
    """Return what the user's callbacks monitor, such as early stopping."""
    return [
        Monitor(name, f"{key}.{i}.monitor", "monitor: {}")
        for i, callback in enumerate(callbacks)
        if isinstance(name := getattr(callback, "monitor", None), str)
    ]


def refuse_without_validation(
    monitors: Iterable[Monitor], loaded: "LoadedConfig | None" = None, *, is_limited: bool = False
) -> None:
    """Refuse monitors that only a validation could log, where there is none.

    Args:
        monitors: what something goes by.
        loaded: where they come from.
        is_limited: there is a validation set, but `trainer.limit_val_batches: 0`.

    Raises:
        ConfigError: naming the first, and the line to write.
    """
    limit = "trainer.limit_val_batches"
    way_out = (
        f"Delete {limit}: 0{set_in(limit, loaded)}"
        if is_limited
        else "Give a validation set (dataset.valid)"
    )
    for monitor in monitors:
        if not monitor.is_of_training:
            raise ConfigError(
                f"{monitor.key} is {monitor.name!r}{set_in(monitor.key, loaded)}, but there is no "
                f"validation that could log it. {way_out}, or go by the training: "
                f"{monitor.line.format('train/loss')}"
            )


class MonitorCheck(Callback):
    """Ends a run at its sanity check, or its first validation, if a monitor was not logged.

    Monitors of `train/*` are looked for after the first log point. It should stand before callbacks
    that have a monitor: theirs would be the error otherwise.

    Raises:
        ConfigError: naming the monitor, what is logged, and the line to write.
    """

    def __init__(self, monitors: Sequence[Monitor], loaded: "LoadedConfig | None" = None) -> None:
        self._loaded = loaded
        self._of_training = [m for m in monitors if m.is_of_training]
        self._of_validation = [m for m in monitors if not m.is_of_training]
        self._has_logged = False

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._of_validation and not trainer.enable_validation:
            is_limited = trainer.limit_val_batches == 0
            refuse_without_validation(self._of_validation, self._loaded, is_limited=is_limited)

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
                raise ConfigError(self._describe(monitor, logged, where))
        return []

    def _describe(self, monitor: Monitor, logged: Collection[str], where: str) -> str:
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
        return (
            f"{monitor.key} is {monitor.name!r}{set_in(monitor.key, self._loaded)}, but {where} "
            f"logged no such metric.{hint} Logged are: {', '.join(logged) or 'none at all'}. "
            f"Write: {monitor.line.format(fixed)}{late}"
        )
