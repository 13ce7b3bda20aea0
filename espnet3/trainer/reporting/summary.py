"""Size of a model, and the time until the first step, part by part."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.nn.parameter import UninitializedParameter

from espnet3.text import amount, duration, n_bytes, share_text

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelSize:
    """Parameters of a module; tied ones count once."""

    n_parameters: int
    n_trainable: int
    n_bytes: int

    @classmethod
    def of(cls, module: torch.nn.Module) -> "ModelSize":
        """Count; parameters that get their shape from the first batch are left out."""
        counted = [p for p in module.parameters() if not isinstance(p, UninitializedParameter)]
        return cls(
            sum(p.numel() for p in counted),
            sum(p.numel() for p in counted if p.requires_grad),
            sum(p.numel() * p.element_size() for p in counted),
        )

    def __str__(self) -> str:
        return (
            f"{amount(self.n_parameters)} parameters ({self._trainable()}), {n_bytes(self.n_bytes)}"
        )

    def _trainable(self) -> str:
        if self.n_trainable == self.n_parameters:
            return "all trainable"
        return f"{amount(self.n_trainable)} trainable" if self.n_trainable else "none trainable"


def describe_parts(model: torch.nn.Module) -> list[str]:
    """Return a line for each top-level module that has parameters."""
    total = ModelSize.of(model)
    children = ((name, child) for name, child in model.named_children() if _has_weights(child))
    return _aligned([_row(name, child, total) for name, child in children])


def _has_weights(module: torch.nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _row(name: str, module: torch.nn.Module, total: ModelSize) -> tuple[str, ...]:
    size = ModelSize.of(module)
    share = size.n_parameters / total.n_parameters if total.n_parameters else 0.0
    frozen = size.n_parameters - size.n_trainable
    note = "" if not frozen else "frozen" if not size.n_trainable else f"{amount(frozen)} frozen"
    return name, type(module).__name__, amount(size.n_parameters), share_text(share), note


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  "
        + "  ".join(
            cell.rjust(width) if i in (2, 3) else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


class StartupTimes:
    """Where the time from the start of `train` to the first step goes.

    Example:
        >>> times = StartupTimes()
        >>> with times.part("datasets"):
        ...     pass
        >>> list(times.parts)
        ['datasets']
    """

    def __init__(self, begin: float | None = None) -> None:
        """Start the clock.

        Args:
            begin: when `train` started, by `time.monotonic()`, if that was before now.
        """
        self.begin = monotonic() if begin is None else begin
        self.parts: dict[str, float] = {}
        self.ended = self.begin
        """When the last part ended."""

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the time of the block as that of a part; blocks of one name add up."""
        begin = monotonic()
        try:
            yield
        finally:
            self.ended = monotonic()
            self.add(name, self.ended - begin)

    def add(self, name: str, seconds: float) -> None:
        """Count some time as that of a part."""
        self.parts[name] = self.parts.get(name, 0.0) + seconds

    def total(self) -> float:
        """Return the time since the start."""
        return monotonic() - self.begin

    def callback(self) -> Callback:
        """Return what measures the parts inside of Lightning, and reports them after a step."""
        return _StartupCallback(self)


class _StartupCallback(Callback):
    """Measures from its making, or from the end of a part that it is made in."""

    def __init__(self, times: StartupTimes) -> None:
        self._times = times
        self._mark = monotonic()
        self._is_done = False

    def _lap(self, name: str) -> None:
        now = monotonic()
        self._times.add(name, now - max(self._mark, self._times.ended))
        self._mark = now

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._lap("process group")

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._lap("setup")

    def on_sanity_check_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._lap("sanity check")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if "sanity check" not in self._times.parts:
            self._lap("setup")
        else:
            self._lap("train loader")

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if not self._is_done:
            self._lap("first batch")

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._is_done:
            return
        self._is_done = True
        self._lap("first step")
        if trainer.is_global_zero:
            self._report(trainer)

    def _report(self, trainer: Trainer) -> None:
        total = self._times.total()
        parts = dict(self._times.parts)
        parts["other"] = max(0.0, total - sum(parts.values()))
        # Hundredths of a second are no news.
        shown = {name: seconds for name, seconds in parts.items() if seconds >= 0.005}
        text = ", ".join(f"{name} {duration(seconds)}" for name, seconds in shown.items())
        logger.info("First step after %s: %s", duration(total), text or "at once")
        values = {f"startup/{_snake(name)}": round(seconds, 3) for name, seconds in parts.items()}
        for sink in trainer.loggers:
            sink.log_metrics({**values, "startup/total": round(total, 3)}, step=0)


def _snake(name: str) -> str:
    return name.replace(" ", "_")
