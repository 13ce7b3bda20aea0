"""One optimizer at work: which batches are its own, when it steps, and its learning rate."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer

from espnet3.trainer.optimization.optimization_config import (
    OptimizerConfig,
    SchedulerConfig,
    is_plateau,
)


@dataclass(frozen=True)
class Moment:
    """Where in the training a batch is."""

    iteration: int
    """Batches before it, of all epochs; kept by checkpoints."""
    batch_idx: int
    """Batches before it, of this epoch."""
    is_last: bool
    """Of its epoch."""


@dataclass
class Updater:
    """An optimizer, its scheduler, and the gradients that wait for its next step."""

    name: str
    config: OptimizerConfig
    optimizer: Optimizer
    scheduler: Any = None
    schedule: SchedulerConfig | None = None
    n_batches: int = 0
    """Batches whose gradients have been added up since the last step."""
    is_synced: bool = False
    """Whether those gradients are already the mean over all ranks."""

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Those that are trainable now; a callback may freeze or add some."""
        groups = self.optimizer.param_groups
        return [p for group in groups for p in group["params"] if p.requires_grad]

    def is_due(self, moment: Moment) -> bool:
        """Tell whether its loss is computed for this batch."""
        return (moment.iteration + 1) % self.config.step_every_n_iters == 0

    def closes(self, moment: Moment) -> bool:
        """Tell whether it steps after this batch.

        Windows are counted from the start of the epoch and end with it, so that they are the same
        after a resume.
        """
        if moment.is_last:
            return True
        every = self.config.step_every_n_iters
        n_before_epoch = (moment.iteration - moment.batch_idx) // every
        n_due = (moment.iteration + 1) // every - n_before_epoch
        return self.is_due(moment) and n_due % self.config.n_accumulated == 0

    def reset(self) -> None:
        """Drop the gradients."""
        self.optimizer.zero_grad()
        self.n_batches = 0
        self.is_synced = False

    def advance(self, interval: str) -> None:
        """Go on with the schedule, if it goes by this interval."""
        if self.schedule is None or self.schedule.interval != interval or self.monitor:
            return
        # OneCycleLR raises beyond its end; an epoch may have turned out longer than planned.
        end = getattr(self.scheduler, "total_steps", None)
        if end is None or self.scheduler.last_epoch < end:
            self.scheduler.step()

    def advance_with(self, metric: float, is_epoch_end: bool) -> None:
        """Tell the scheduler the metric that it looks at."""
        if is_epoch_end or (self.schedule and self.schedule.interval == "step"):
            self.scheduler.step(metric)

    @property
    def monitor(self) -> str | None:
        """The metric that the scheduler looks at, if it is of that kind."""
        return self.schedule.monitor if self.schedule and is_plateau(self.scheduler) else None

    def for_lightning(self) -> dict[str, Any]:
        """Return it as `configure_optimizers` has it, so that checkpoints hold its state."""
        if self.schedule is None:
            return {"optimizer": self.optimizer}
        options = {"scheduler": self.scheduler, "interval": self.schedule.interval}
        return {"optimizer": self.optimizer, "lr_scheduler": {**options, "name": f"lr/{self.name}"}}


@contextmanager
def frozen_others(updater: Updater, updaters: Sequence[Updater]) -> Iterator[None]:
    """Switch off the gradients of all other optimizers' parameters inside the block."""
    frozen = [p for other in updaters if other is not updater for p in other.parameters]
    for parameter in frozen:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(True)
