"""One update: backward passes, accumulation, clipping, steps of optimizers and their schedules."""

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import ParallelStrategy
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from espnet3.errors import TrainingError
from espnet3.text import first_few
from espnet3.trainer.lightning_internals import LowOverheadModule, run_backward, step_optimizer
from espnet3.trainer.optimization.model_calls import ids_of
from espnet3.trainer.optimization.optimization_config import (
    OptimizerConfig,
    SchedulerConfig,
    is_plateau,
)

logger = logging.getLogger(__name__)

# That of DDP: large enough for the network, small beside a model.
_BUCKET_BYTES = 25 * 2**20
_SHOWN_IDS = 8
_NOTHING = nullcontext()
_SURELY_SMALL = 0.99
"""Share of the largest norm at which no rounding, not even to bfloat16, makes torch clip."""


@dataclass(frozen=True)
class Moment:
    """Position of a batch in the training."""

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

    @cached_property
    def n_in_window(self) -> int:
        """Batches whose gradients make a step."""
        return self.config.n_accumulated

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
        return self.is_due(moment) and n_due % self.n_in_window == 0

    def reset(self) -> None:
        """Drop the gradients."""
        self.optimizer.zero_grad()
        self.n_batches = 0
        self.is_synced = False

    def advance(self, interval: str) -> None:
        """Advance the schedule, if it goes by this interval."""
        if self.schedule is None or self.schedule.interval != interval or self.monitor:
            return
        # OneCycleLR raises beyond its end; an epoch may have turned out longer than planned.
        end = getattr(self.scheduler, "total_steps", None)
        if end is None or self.scheduler.last_epoch < end:
            self.scheduler.step()

    def advance_with(self, metric: float, is_epoch_end: bool) -> None:
        """Step a scheduler that follows a metric."""
        if is_epoch_end or (self.schedule and self.schedule.interval == "step"):
            self.scheduler.step(metric)

    @cached_property
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
    # `parameters` has the trainable ones only, so what the user froze stays so afterwards.
    frozen = [p for other in updaters if other is not updater for p in other.parameters]
    for parameter in frozen:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(True)


class Stepper:
    """Drives the optimizers of a module.

    Args:
        module: the Lightning module, whose `model` is trained.
        updaters: in the order of updates.
        guard: notified of gradients that are not finite.
        norms: where the norm of each optimizer's gradients is written, before clipping.
    """

    def __init__(
        self,
        module: LowOverheadModule,
        updaters: Sequence[Updater],
        guard: "NonFiniteGuard",
        norms: dict[str, float],
    ) -> None:
        self._module = module
        self._updaters = updaters
        self._guard = guard
        self._norms = norms
        self._stepping: tuple[Updater, Any] | None = None

    def backward(self, updater: Updater, loss: Tensor, *, closes: bool, keep: bool) -> None:
        """Add the gradients of a loss to those that wait.

        Args:
            updater: the optimizer whose parameters get them.
            loss: of one batch.
            closes: whether its optimizer steps after this batch.
            keep: whether another backward pass through the same graph follows.
        """
        # DDP waits for all parameters in a backward pass; this one may be for some of them only.
        is_single, n_batches = len(self._updaters) == 1, updater.n_in_window
        is_synced = is_single and closes
        # A graph through the parameters of another optimizer must not add to their gradients.
        own = None if is_single else updater.parameters
        with self._unsynced(not is_synced), self._full_precision():
            if n_batches != 1:
                loss = loss / n_batches
            run_backward(self._module, loss, inputs=own, retain_graph=keep)
        updater.n_batches += 1
        updater.is_synced = is_synced

    def update(self, updater: Updater, batch: Any) -> bool:
        """Step with the mean gradient of the window; return whether the weights have changed."""
        if not updater.n_batches:
            return False
        if ddp_of(self._trainer) is not None and not updater.is_synced:
            average_over_ranks(updater.parameters)
        if updater.n_batches != updater.n_in_window:
            # Each loss was divided by the size of a full window.
            factor = updater.n_in_window / updater.n_batches
            scale_gradients(updater.parameters, factor)
        with self._full_precision():
            is_good = self._step(updater, batch)
        updater.reset()
        if is_good:
            updater.advance("step")
        return is_good

    def _step(self, updater: Updater, batch: Any) -> bool:
        # With a scaler the gradients are still scaled here; `before_step` sees them unscaled.
        if self._scaler is None:
            if not self._finish_gradients(updater, batch):
                return False
        else:
            self._stepping = updater, batch
        is_single = len(self._updaters) == 1
        if is_single or updater is min(self._updaters, key=lambda other: other.config.n_iters):
            step_optimizer(self._module, self._updaters.index(updater))
        else:  # past Lightning's count of steps, which is to go up once for all optimizers
            # Lightning asks for a closure; the backward passes are done by now.
            self._trainer.strategy.optimizer_step(updater.optimizer, closure=lambda: None)
        self._stepping = None
        return math.isfinite(self._norms[updater.name])

    def before_step(self) -> None:
        """Clip what the scaler of 16-mixed has just unscaled; it skips infinite ones itself."""
        if self._stepping is not None:
            self._finish_gradients(*self._stepping)

    def _finish_gradients(self, updater: Updater, batch: Any) -> bool:
        """Measure and clip the gradients; return whether they are fit for a step."""
        config, parameters = updater.config, updater.parameters
        norm = total_norm(parameters, self._module.model)
        self._norms[updater.name] = value = norm.item()
        if not math.isfinite(value):
            # At a scale below 1 it is not for the scale that gradients overflow.
            if self._scaler is None or self._scaler.get_scale() < 1:
                self._guard.report_bad_norm(value, batch, self._trainer)
            return False
        if config.gradient_clip_val:
            algorithm = config.gradient_clip_algorithm or "norm"
            clip_gradients(parameters, config.gradient_clip_val, algorithm, norm, value)
        return True

    @property
    def _trainer(self) -> pl.Trainer:
        return self._module.trainer

    @property
    def _scaler(self) -> Any:
        return getattr(self._trainer.precision_plugin, "scaler", None)

    def _unsynced(self, block: bool) -> AbstractContextManager[Any]:
        strategy = self._trainer.strategy if block else None
        if isinstance(strategy, ParallelStrategy):
            blocked: AbstractContextManager[Any] = strategy.block_backward_sync()
            return blocked
        return _NOTHING

    def _full_precision(self) -> AbstractContextManager[Any]:
        """Leave autocast, inside of which Lightning runs the whole training step."""
        kind = self._module.device.type
        is_mixed = torch.is_autocast_enabled(kind)
        return torch.autocast(kind, enabled=False) if is_mixed else _NOTHING


def ddp_of(trainer: pl.Trainer) -> DistributedDataParallel | None:
    """Return DDP's wrapper of the module, or None with another strategy."""
    model = trainer.strategy.model
    return model if isinstance(model, DistributedDataParallel) else None


class NonFiniteGuard:
    """Counts bad batches and stops a training that has too many of them in a row.

    Args:
        limit: as many in a row are left out; one more is an error.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.n_bad = 0
        """Of the whole training."""
        self.n_in_a_row = 0
        self._is_bad = False

    def start_batch(self) -> None:
        """Begin a batch, of which nothing bad is known yet."""
        self._is_bad = False

    def is_bad_loss(self, loss: Tensor, batch: Any, trainer: Trainer) -> bool:
        """Tell whether the loss is not finite on any rank, and say so on that rank.

        All ranks get the same answer: one that continued alone would wait for the others forever.
        """
        if _n_bad_ranks(loss, trainer) == 0:
            return False
        if not math.isfinite(loss.item()):
            self._warn(f"its loss is {loss.item()}", batch, trainer)
        self._is_bad = True
        return True

    def report_bad_norm(self, norm: float, batch: Any, trainer: Trainer) -> None:
        """Take note of gradients that are not finite, which all ranks see alike."""
        self._warn(f"the norm of its gradients is {norm}", batch, trainer)
        self._is_bad = True

    def end_batch(self, is_updated: bool) -> None:
        """Count the batch; those before are forgiven once a good one has changed the weights.

        Raises:
            TrainingError: it is one bad batch too many.
        """
        if self._is_bad:
            self.n_bad += 1
            self.n_in_a_row += 1
        elif is_updated:
            self.n_in_a_row = 0
        if self.n_in_a_row > self.limit:
            raise TrainingError(
                f"{self.n_in_a_row} batches in a row had a loss or gradient that is not finite "
                f"(max_nonfinite_batches: {self.limit}); the utterances stand in the warnings "
                "above. The weights are those before the first of them, as none was stepped with. "
                "Try a lower learning rate or a longer warm-up, gradient clipping "
                "(trainer.gradient_clip_val: 1.0), or precision: bf16-mixed or 32 instead of "
                "16-mixed. Empty texts, and texts longer than the frames for CTC, are the usual "
                "reason in data. Running train again resumes from the last checkpoint."
            )

    def _warn(self, what: str, batch: Any, trainer: Trainer) -> None:
        ids = ids_of(batch)
        named = f" with {first_few(ids, _SHOWN_IDS)}" if ids else ""
        logger.warning(
            "epoch %d, batch %d, rank %d: the batch%s is left out: %s",
            trainer.current_epoch,
            trainer.fit_loop.batch_idx,
            trainer.global_rank,
            named,
            what,
        )

    def state_dict(self) -> dict[str, int]:
        """Return the counts."""
        return {"n_bad": self.n_bad, "n_in_a_row": self.n_in_a_row}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Restore the counts."""
        self.n_bad, self.n_in_a_row = state["n_bad"], state["n_in_a_row"]


def _n_bad_ranks(loss: Tensor, trainer: Trainer) -> int:
    if trainer.world_size == 1:
        return int(not math.isfinite(loss.item()))
    is_bad = (~torch.isfinite(loss.detach())).float().reshape(1)
    return int(trainer.strategy.reduce(is_bad, reduce_op="sum").item())


def average_over_ranks(parameters: Sequence[nn.Parameter]) -> None:
    """Replace each gradient by the mean over all ranks.

    It is what DDP does in a backward pass, for gradients that came about without one: those of one
    of several optimizers, or of a window whose last batch was skipped. A parameter without gradient
    counts as zero, unless no rank has one.
    """
    for bucket in _buckets(parameters):
        flags = [p.new_tensor(float(p.grad is not None)) for p in bucket]
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        # The flags travel with the gradients: one collective per bucket, not two.
        flat = torch.cat([*(part.reshape(-1) for part in parts), torch.stack(flags)])
        torch.distributed.all_reduce(flat)
        flat[: -len(bucket)] /= torch.distributed.get_world_size()
        _unpack(flat, bucket)


def _buckets(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Yield groups of one type and at most 25 MB: few collectives, and little memory."""
    for dtype in dict.fromkeys(p.dtype for p in parameters):
        bucket: list[nn.Parameter] = []
        size = 0
        for parameter in (p for p in parameters if p.dtype == dtype):
            if bucket and size + parameter.nbytes > _BUCKET_BYTES:
                yield bucket
                bucket, size = [], 0
            bucket.append(parameter)
            size += parameter.nbytes
        yield bucket


def _unpack(flat: Tensor, bucket: Sequence[nn.Parameter]) -> None:
    has_gradient = iter(flat[-len(bucket) :].tolist())
    chunks = torch.split(flat, [*(p.numel() for p in bucket), len(bucket)])
    for parameter, chunk in zip(bucket, chunks, strict=False):  # the last chunk has the flags
        if next(has_gradient) == 0:
            parameter.grad = None
        elif parameter.grad is None:
            # A view would keep the whole bucket alive.
            parameter.grad = chunk.view_as(parameter).clone()
        else:
            parameter.grad.copy_(chunk.view_as(parameter))


def has_gradients(module: nn.Module) -> bool:
    """Tell whether gradients wait for more batches: an accumulation, which no checkpoint holds.

    Our own module is asked, whose answer is the same on all ranks: of the parts into which FSDP
    cuts a model, that of one rank may be empty.
    """
    known: bool | None = getattr(module, "has_open_window", None)
    if known is not None:
        return known
    return any(parameter.grad is not None for parameter in module.parameters())


def scale_gradients(parameters: Sequence[nn.Parameter], factor: float) -> None:
    """Multiply the gradients in place."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if gradients:
        # One kernel for all of them, where a loop would launch one for each.
        torch._foreach_mul_(gradients, factor)


def total_norm(parameters: Sequence[nn.Parameter], root: Any = None) -> Tensor:
    """Return the 2-norm of all gradients together.

    Args:
        parameters: those of the optimizer.
        root: the module whose parameters FSDP has spread over the ranks, where it has.
    """
    clip = getattr(root, "clip_grad_norm_", None)
    if clip is not None:  # of FSDP, which alone knows the parts of the others
        # Without a limit it only measures.
        norm: Tensor = clip(float("inf"))
        return norm
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    whole = getattr(norm, "full_tensor", None)  # of a DTensor
    return whole() if whole is not None else norm


def clip_gradients(
    parameters: Sequence[nn.Parameter], limit: float, algorithm: str, norm: Tensor, known: float
) -> None:
    """Limit the gradients, each by its value or all together by their norm, `known` as a number."""
    if algorithm == "value":
        torch.nn.utils.clip_grad_value_(parameters, limit)
    # Torch multiplies small ones by 1, a pass over all gradients that changes no bit.
    elif known > _SURELY_SMALL * limit:
        torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)
