"""Hear what is logged, whoever logs it and whichever loggers the user has."""

from collections.abc import Callable, Mapping
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import Logger


class LogListener(Logger):
    """A logger that hands each set of metrics on; it is called where TensorBoard's is.

    A callback that reads `trainer.logged_metrics` instead depends on its place in the list, and
    cannot tell what is new.
    """

    def __init__(self, receive: Callable[[Mapping[str, float]], None]) -> None:
        super().__init__()
        self._receive = receive

    def attach(self, trainer: Trainer) -> None:
        """Listen to a trainer, also to one without loggers; on all ranks, to keep them alike."""
        if self not in trainer.loggers:
            trainer.loggers = [*trainer.loggers, self]

    def detach(self, trainer: Trainer) -> None:
        """Listen no more."""
        trainer.loggers = [logger for logger in trainer.loggers if logger is not self]

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        values = {
            name: number for name in metrics if (number := _number(metrics[name])) is not None
        }
        # Lightning adds the epoch, which the listeners know better.
        values.pop("epoch", None)
        if values:
            self._receive(values)

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Ignore them: the config is saved beside the outputs."""

    @property
    def name(self) -> str:
        """Of no folder: a checkpoint callback without one makes no `None/` from it."""
        return ""

    @property
    def version(self) -> str:
        return ""

    @property
    def experiment(self) -> "_Nothing":
        """Something that swallows `add_audio` and the like, where the user has no logger."""
        return _Nothing()


class _Nothing:
    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):  # text, or a tensor of several numbers
        return None
