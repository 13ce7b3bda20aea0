"""The words of the progress: where a training is, how it goes, and how long it takes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from espnet3.text import count, duration, share_text, value_text
from espnet3.trainer.reporting.summary import ModelSize

_AUDIO = "perf/audio_seconds_per_second"
_PERF = {
    _AUDIO: "{} audio s/s",
    "perf/samples_per_second": "{} samples/s",
    "perf/step_seconds": "{} s/batch",
    "perf/data_wait_share": "{} waiting for data",
    "perf/padding_share": "{} padding",
    "perf/memory_gb": "{} GB",
}


@dataclass(frozen=True)
class Position:
    """Where a training is; epochs count from 1, as people do."""

    epoch: int
    n_epochs: int | None
    batch: int
    n_batches: int | None
    step: int
    share: float | None
    """Of the whole training; None if it has no end."""

    @classmethod
    def of(cls, trainer: Trainer) -> "Position":
        """Read it between two batches, or at the end of one."""
        loop = trainer.fit_loop
        n_batches = _finite(trainer.num_training_batches)
        n_epochs = trainer.max_epochs if (trainer.max_epochs or 0) > 0 else None
        batch = loop.batch_idx + 1
        shares = list[float]()
        if n_epochs and n_batches:
            shares.append((trainer.current_epoch + min(1.0, batch / n_batches)) / n_epochs)
        if trainer.max_steps > 0:
            shares.append(trainer.global_step / trainer.max_steps)
        share = min(1.0, max(shares)) if shares else None
        epoch = trainer.current_epoch + 1
        return cls(epoch, n_epochs, batch, n_batches, trainer.global_step, share)

    @property
    def epoch_text(self) -> str:
        """Such as `epoch 3/10`."""
        return f"epoch {self.epoch}" + (f"/{self.n_epochs}" if self.n_epochs else "")

    def __str__(self) -> str:
        of_batches = f"/{self.n_batches:,}" if self.n_batches else ""
        return f"{self.epoch_text}, batch {self.batch:,}{of_batches}, step {self.step:,}"

    def seconds_left(self, begin: "Position", elapsed: float) -> float | None:
        """Estimate the rest from the time that the way from `begin` took."""
        if self.share is None or begin.share is None or self.share <= begin.share:
            return None
        return elapsed * (1 - self.share) / (self.share - begin.share)


def _finite(number: float) -> int | None:
    return int(number) if number and math.isfinite(number) else None


def time_left(seconds: float | None) -> str:
    """Return `1 h 05 min left`, or nothing where that is not known."""
    return "" if seconds is None else f"{duration(seconds)} left"


def describe_start(trainer: Trainer, pl_module: LightningModule) -> str:
    """Return what is trained: model, data, processes, precision, and how far it will go."""
    model = getattr(pl_module, "model", pl_module)
    parts = [
        f"Training {type(model).__name__}: {ModelSize.of(model)}",
        _describe_data(trainer),
        f"{_describe_ranks(trainer)}, precision {trainer.precision}",
        _describe_goal(trainer),
    ]
    return "; ".join(filter(None, parts))


def _describe_data(trainer: Trainer) -> str:
    n_batches = _finite(trainer.num_training_batches)
    if n_batches is None:
        return "batches without end"
    n_items = _n_items(trainer.train_dataloader)
    items = f"{count(n_items, 'item')} in " if n_items else ""
    and_rank = " and rank" if trainer.world_size > 1 else ""
    return f"{items}{count(n_batches, 'batch')} per epoch{and_rank}"


def _n_items(loader: Any) -> int | None:
    try:
        return len(loader.dataset)
    except (AttributeError, TypeError, NotImplementedError):
        return None


def _describe_ranks(trainer: Trainer) -> str:
    device = trainer.strategy.root_device.type
    if trainer.world_size == 1:
        return f"1 process on {device}"
    nodes = f" on {trainer.num_nodes} nodes" if trainer.num_nodes > 1 else ""
    strategy = type(trainer.strategy).__name__.removesuffix("Strategy")
    return f"{trainer.world_size} ranks ({device}, {strategy}){nodes}"


def _describe_goal(trainer: Trainer) -> str:
    goals = list[str]()
    if (trainer.max_epochs or 0) > 0:
        goals.append(count(int(trainer.max_epochs or 0), "epoch"))
    if trainer.max_steps > 0:
        goals.append(count(trainer.max_steps, "step"))
    goal = f"until {' or '.join(goals)}" if goals else "without end"
    if trainer.global_step == 0:
        return f"from the start, {goal}"
    here = Position.of(trainer)
    return f"continued from epoch {here.epoch}, step {here.step:,}, {goal}"


def describe_training(values: Mapping[str, float]) -> str:
    """Return the loss and the other statistics, then the speed."""
    stats = [f"{k.removeprefix('train/')} {value_text(v)}" for k, v in _below(values, "train/")]
    for prefix, word in (("lr/", "lr"), ("grad_norm/", "grad norm")):
        stats += [f"{_named(word, k, prefix)} {value_text(v)}" for k, v in _below(values, prefix)]
    return "; ".join(filter(None, [", ".join(stats), _describe_speed(values)]))


def _below(values: Mapping[str, float], prefix: str) -> list[tuple[str, float]]:
    return loss_first({k: v for k, v in values.items() if k.startswith(prefix)})


def loss_first(values: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return the items with the loss before other statistics, wherever a model puts it."""
    return sorted(values.items(), key=lambda item: not item[0].endswith("/loss"))


def _named(word: str, name: str, prefix: str) -> str:
    optimizer = name.removeprefix(prefix)
    return word if optimizer == "optimizer" else f"{word} {optimizer}"


def _describe_speed(values: Mapping[str, float]) -> str:
    # Samples only where the seconds are not known: they would be two figures for one thing.
    left_out = "perf/samples_per_second" if _AUDIO in values else ""
    return ", ".join(
        form.format((share_text if name.endswith("_share") else _rough)(values[name]))
        for name, form in _PERF.items()
        if name in values and name != left_out
    )


def _rough(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


@dataclass
class BestValues:
    """The best value so far of each metric that checkpoints are chosen by."""

    modes: Mapping[str, str]
    """`min` or `max`, by the name of the metric."""
    best: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Value and step."""

    def describe(self, values: Mapping[str, float], step: int) -> str:
        """Take in the values of a validation, and return them with a remark on those chosen by."""
        return ", ".join(
            f"{name.removeprefix('valid/')} {value_text(value)}{self._remark(name, value, step)}"
            for name, value in loss_first(values)
        )

    def _remark(self, name: str, value: float, step: int) -> str:
        if name not in self.modes:
            return ""
        before = self.best.get(name)
        if before is not None and not self._is_better(name, value, before[0]):
            return f" (best: {value_text(before[0])} at step {before[1]:,})"
        if not math.isfinite(value):
            return ""
        self.best[name] = (value, step)
        return f" (best so far; before: {value_text(before[0])})" if before else " (best so far)"

    def _is_better(self, name: str, value: float, than: float) -> bool:
        return value > than if self.modes[name] == "max" else value < than

    def __str__(self) -> str:
        return ", ".join(
            f"best {name} {value_text(value)} at step {step:,}"
            for name, (value, step) in self.best.items()
        )
