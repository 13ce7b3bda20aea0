"""Progress of a training: lines in the log, and a bar on a terminal."""

import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from espnet3.text import count, duration, share_text, value_text
from espnet3.trainer.reporting.loggers import LogListener
from espnet3.trainer.reporting.summary import ModelSize, describe_parts

logger = logging.getLogger(__name__)

_MOST_OFTEN = 1.0
_LEAST_OFTEN = 60.0
_AUDIO = "perf/audio_seconds_per_second"
_PERF = {
    _AUDIO: "{} audio s/s",
    "perf/samples_per_second": "{} samples/s",
    "perf/step_seconds": "{} s/batch",
    "perf/data_wait_share": "{} waiting for data",
    "perf/padding_share": "{} padding",
    "perf/memory_gb": "{} GB",
}
# Drawing takes milliseconds, a small batch not many more.
_SECONDS_BETWEEN = 0.2
_WIDE = 100
ON_BAR = "espnet3_on_bar"
"""Attribute of log records that say what the bar shows: for log files only."""


@dataclass(frozen=True)
class TrainingPosition:
    """Position of a training; epochs count from 1."""

    epoch: int
    n_epochs: int | None
    batch: int
    n_batches: int | None
    step: int
    share: float | None
    """Of the whole training; None if it has no end."""

    @classmethod
    def of(cls, trainer: Trainer) -> "TrainingPosition":
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
        # Whichever limit comes first ends the training.
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

    def seconds_left(self, begin: "TrainingPosition", elapsed: float) -> float | None:
        """Estimate the rest from the time that the way from `begin` took."""
        if self.share is None or begin.share is None or self.share <= begin.share:
            return None
        return elapsed * (1 - self.share) / (self.share - begin.share)


class TrainingProgress(Callback):
    """Logs what is trained, its progress, and the results of each validation; on rank 0 only.

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
        self._begin: tuple[TrainingPosition, float] | None = None
        self._last_line = self._epoch_begin = self._validation_begin = 0.0
        self._validating = 0.0

    def state_dict(self) -> dict[str, Any]:
        """Keep the best values, so that a resumed run knows them."""
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
        self._begin = TrainingPosition.of(trainer), now
        # A second back, so that the first log point has its line at once.
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

    def _show_on_bar(self, trainer: Trainer, bar: "TrainingBar") -> None:
        here = TrainingPosition.of(trainer)
        label = here.epoch_text.capitalize()
        text = f"step {here.step:,}  " * bar.is_wide + self._bar_text(here)
        bar.show_epoch(label, here.batch, here.n_batches, text)

    def _bar_text(self, here: TrainingPosition) -> str:
        parts = list[str]()
        for word, prefix in (("loss", "train/"), ("valid", "valid/")):
            # A model with several optimizers has several losses: the first stands for them.
            found = [name for name in self._values if name.startswith(prefix)]
            name = f"{prefix}loss" if f"{prefix}loss" in found else next(iter(found), "")
            parts += [f"{word} {value_text(self._values[name])}"] if name else []
        speed = self._values.get("perf/audio_seconds_per_second")
        parts += [] if speed is None else [f"{speed:,.0f} audio s/s"]
        return "  ".join(filter(None, [*parts, self._time_left(here)]))

    def _time_left(self, here: TrainingPosition) -> str:
        assert self._begin is not None
        begin, at = self._begin
        return time_left(here.seconds_left(begin, monotonic() - at))

    def _receive(self, values: Mapping[str, float]) -> None:
        """Take in what goes to the loggers."""
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
        here = TrainingPosition.of(trainer)
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
        here = TrainingPosition.of(trainer)
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
        here = TrainingPosition.of(trainer)
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
    here = TrainingPosition.of(trainer)
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


def has_terminal() -> bool:
    """Tell whether stderr is a terminal that can move its cursor."""
    from rich.console import Console

    console = Console(stderr=True)
    return console.is_terminal and not console.is_dumb_terminal


class TrainingBar:
    """A line for the epoch, and one for a validation while it runs."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        # Drawn by the training itself, not by a thread: a loader forks worker processes, and one
        # that is forked while the thread holds a lock could never print.
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}"),
            console=Console(stderr=True),
            auto_refresh=False,
            transient=True,
            expand=True,
        )
        self._epoch: Any = None
        self._validation: Any = None
        self._drawn = 0.0

    def start(self) -> None:
        """Show it; what is printed from now on appears above it."""
        self._bars.start()

    @property
    def is_wide(self) -> bool:
        """Tell whether there is room for more than what matters most."""
        return self._bars.console.width >= _WIDE

    def stop(self) -> None:
        """Take it away; a second call does nothing."""
        self._bars.stop()

    def show_epoch(self, label: str, done: int, total: int | None, text: str) -> None:
        """Show how far an epoch is."""
        if self._epoch is None:
            self._epoch = self._bars.add_task(label, total=total, text=text)
        self._update(self._epoch, label, done, total, text)

    def show_validation(self, done: int, total: int | None) -> None:
        """Show how far a validation is."""
        if self._validation is None:
            self._validation = self._bars.add_task("Validation", total=total, text="")
        self._update(self._validation, "Validation", done, total, "")

    def end_validation(self) -> None:
        """Take the line of the validation away."""
        if self._validation is not None:
            self._bars.remove_task(self._validation)
            self._validation = None
            self._bars.refresh()

    def _update(self, task: Any, label: str, done: int, total: int | None, text: str) -> None:
        now = monotonic()
        # The last one always, or a finished bar would seem to hang just before its end.
        if now - self._drawn >= _SECONDS_BETWEEN or done == total:
            self._drawn = now
            self._bars.update(task, description=label, completed=done, total=total, text=text)
            self._bars.refresh()


def _is_for_terminal(record: logging.LogRecord) -> bool:
    return not hasattr(record, ON_BAR)


@contextmanager
def lines_only_in_files() -> Iterator[None]:
    """Keep lines that repeat the bar off the terminal; log files get them."""
    loggers = (logging.getLogger(), logging.getLogger("espnet3"))
    handlers = [
        handler
        for logger in loggers
        for handler in logger.handlers
        # A FileHandler is a StreamHandler as well.
        if isinstance(handler, logging.StreamHandler)
        and not isinstance(handler, logging.FileHandler)
    ]
    for handler in handlers:
        handler.addFilter(_is_for_terminal)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(_is_for_terminal)
