"""Figures of a training: size of the model, time to the first step, throughput."""

import logging
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.nn.parameter import UninitializedParameter

from espnet3.text import amount, count, duration, n_bytes, share_text
from espnet3.trainer.lightning_internals import is_log_point

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
    children = (
        (name, child)
        for name, child in model.named_children()
        if any(True for _ in child.parameters())
    )
    return _aligned([_row(name, child, total) for name, child in children])


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
    """Durations of the parts of a start, from the call of `train` to the first step.

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
        # A part that has ended since the mark has counted its own time.
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
        values = {f"startup/{n.replace(' ', '_')}": round(s, 3) for n, s in parts.items()}
        for sink in trainer.loggers:
            sink.log_metrics({**values, "startup/total": round(total, 3)}, step=0)


@dataclass
class LogWindow:
    """Sums over the batches since the last log point; what a loader does not report becomes NaN."""

    n_batches: int = 0
    elapsed: float = 0.0
    wait: float = 0.0
    n_samples: float = 0.0
    seconds: float = 0.0
    padded_seconds: float = 0.0

    def add(self, elapsed: float, info: Any, batch: Any) -> None:
        """Add a batch that took `elapsed` seconds, waiting included."""
        self.n_batches += 1
        self.elapsed += elapsed
        self.wait += _known(info, "wait_seconds")
        n_samples = _known(info, "n_samples")
        self.n_samples += _batch_size(batch) if math.isnan(n_samples) else n_samples
        self.seconds += _known(info, "seconds")
        self.padded_seconds += _known(info, "padded_seconds")

    def to_list(self) -> list[float]:
        """Return the sums, for the trip to the other ranks."""
        return [self.elapsed, self.wait, self.n_samples, self.seconds, self.padded_seconds]


def _known(info: Any, name: str) -> float:
    value = getattr(info, name, None)
    return math.nan if value is None else float(value)


class ThroughputMonitor(Callback):
    """Logs speed, waiting, padding, memory, learning rates and gradient norms at each log point.

    `perf/*` are of all ranks together, `perf/memory_gb` of the rank with the most. The time of
    validations is left out; that of checkpoints within an epoch is not. Between log points a batch
    costs a few additions, and nothing waits for the device.
    """

    def __init__(self) -> None:
        self._window = LogWindow()
        self._mark = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._window = LogWindow()
        self._mark = perf_counter()
        _log_each_epoch(trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._mark = perf_counter()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._mark = perf_counter()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        now = perf_counter()
        # Our loader describes its last batch; other kinds of loaders do not.
        info = getattr(trainer.train_dataloader, "last_batch", None)
        self._window.add(now - self._mark, info, batch)
        self._mark = now
        if is_log_point(trainer):
            values = {**_speed(trainer, self._window), **_optimizer_values(trainer, pl_module)}
            pl_module.log_dict(values, on_step=True, on_epoch=False)
            self._window = LogWindow()


def _log_each_epoch(trainer: Trainer) -> None:
    """Log at least once per epoch: a small set would never be seen in the curves otherwise."""
    n_batches = trainer.num_training_batches
    interval: int = trainer.log_every_n_steps  # type: ignore[attr-defined]
    if 0 < n_batches < interval:
        logger.info(
            "trainer.log_every_n_steps is %d, but an epoch has only %s: logging every %d",
            interval,
            count(int(n_batches), "batch"),
            n_batches,
        )
        trainer.log_every_n_steps = int(n_batches)  # type: ignore[attr-defined]


def _batch_size(batch: Any) -> float:
    for value in _leaves(batch):
        if isinstance(value, torch.Tensor) and value.ndim:
            return float(value.shape[0])
    return math.nan


def _leaves(batch: Any) -> Iterator[Any]:
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, list | tuple):
        for part in batch:
            yield from _leaves(part)
    else:
        yield batch


def _speed(trainer: Trainer, window: LogWindow) -> dict[str, float]:
    ranks = _of_all_ranks(trainer, [*window.to_list(), _memory_gb(trainer)])
    elapsed, wait, n_samples, seconds, padded = (sum(r[i] for r in ranks) for i in range(5))
    # Ranks go in step, so the time of one is that of all.
    wall = elapsed / len(ranks)
    values = {
        "perf/audio_seconds_per_second": _ratio(seconds, wall),
        "perf/samples_per_second": _ratio(n_samples, wall),
        "perf/step_seconds": _ratio(wall, window.n_batches),
        "perf/data_wait_share": _ratio(wait, elapsed),
        "perf/padding_share": 1 - _ratio(seconds, padded),
        "perf/memory_gb": max(r[5] for r in ranks),
    }
    return {name: value for name, value in values.items() if math.isfinite(value)}


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def _of_all_ranks(trainer: Trainer, values: list[float]) -> list[list[float]]:
    if trainer.world_size == 1:
        return [values]
    own = torch.tensor(values, dtype=torch.float32, device=trainer.strategy.root_device)
    gathered: list[list[float]] = trainer.strategy.all_gather(own).reshape(-1, len(values)).tolist()
    return gathered


def _memory_gb(trainer: Trainer) -> float:
    """Return the peak of the GPU's memory, or what this process has in main memory."""
    device = trainer.strategy.root_device
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    return _resident_bytes() / 1e9


def _resident_bytes() -> float:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return float(pages * os.sysconf("SC_PAGE_SIZE"))
    except OSError:  # no Linux
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        # macOS has it in bytes, others in kilobytes.
        return float(peak if sys.platform == "darwin" else peak * 1024)


def _optimizer_values(trainer: Trainer, pl_module: LightningModule) -> dict[str, float]:
    norms: Mapping[str, float] = getattr(pl_module, "last_gradient_norms", {})
    values = {
        f"grad_norm/{name or 'optimizer'}": float(norm)
        for name, norm in norms.items()
        if not math.isnan(norm)  # of an optimizer that has not stepped yet
    }
    for name, optimizer in zip(_names(trainer, pl_module), trainer.optimizers, strict=True):
        rates = [float(group["lr"]) for group in optimizer.param_groups]
        values[f"lr/{name}"] = rates[0]
        if len(set(rates)) > 1:
            values |= {f"lr/{name}.{i}": rate for i, rate in enumerate(rates[1:], 1)}
    return values


def _names(trainer: Trainer, pl_module: LightningModule) -> list[str]:
    """Return the names of the optimizers, as the config has them."""
    names = [str(n) or "optimizer" for n in getattr(pl_module, "last_gradient_norms", {})]
    n_optimizers = len(trainer.optimizers)
    if len(names) != n_optimizers:
        names = ["optimizer", *(f"optimizer.{i}" for i in range(1, n_optimizers))]
    return names
