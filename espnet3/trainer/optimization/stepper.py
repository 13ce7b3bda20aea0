"""Backward passes and steps, as the trainer's strategy and precision want them."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import ParallelStrategy
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from espnet3.trainer.lightning_internals import step_optimizer
from espnet3.trainer.optimization import gradients
from espnet3.trainer.optimization.nonfinite import NonFiniteGuard
from espnet3.trainer.optimization.updater import Updater


class Stepper:
    """Drives the optimizers of a module.

    Args:
        module: the Lightning module, whose `model` is trained.
        updaters: in the order of updates.
        guard: told of gradients that are not finite.
        norms: where the norm of each optimizer's gradients is written, before clipping.
    """

    def __init__(
        self,
        module: pl.LightningModule,
        updaters: Sequence[Updater],
        guard: NonFiniteGuard,
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
        is_single = len(self._updaters) == 1
        is_synced = is_single and closes
        own = None if is_single else updater.parameters
        with self._unsynced(not is_synced), self._full_precision():
            loss = loss / updater.config.n_accumulated
            self._module.manual_backward(loss, inputs=own, retain_graph=keep)
        updater.n_batches += 1
        updater.is_synced = is_synced

    def update(self, updater: Updater, batch: Any) -> bool:
        """Step with the mean gradient of the window; tell whether the weights have changed."""
        if not updater.n_batches:
            return False
        if ddp_of(self._trainer) is not None and not updater.is_synced:
            gradients.average_over_ranks(updater.parameters)
        if updater.n_batches != updater.config.n_accumulated:
            factor = updater.config.n_accumulated / updater.n_batches
            gradients.scale_gradients(updater.parameters, factor)
        with self._full_precision():
            is_good = self._step(updater, batch)
        updater.reset()
        if is_good:
            updater.advance("step")
        return is_good

    def _step(self, updater: Updater, batch: Any) -> bool:
        if self._scaler is None and not self._finish_gradients(updater, batch):
            return False
        self._stepping = updater, batch
        if updater is min(self._updaters, key=lambda other: other.config.n_iters):
            step_optimizer(self._trainer, self._updaters.index(updater))
        else:  # past Lightning's count of steps, which is to go up once for all optimizers
            self._trainer.strategy.optimizer_step(updater.optimizer, closure=lambda: None)
        self._stepping = None
        return math.isfinite(self._norms[updater.name])

    def before_step(self) -> None:
        """Clip what the scaler of 16-mixed has just unscaled; it skips infinite ones itself."""
        if self._scaler is not None and self._stepping is not None:
            self._finish_gradients(*self._stepping)

    def _finish_gradients(self, updater: Updater, batch: Any) -> bool:
        """Measure and clip the gradients; tell whether they are fit for a step."""
        config, parameters = updater.config, updater.parameters
        norm = gradients.total_norm(parameters, self._module.model)
        self._norms[updater.name] = value = norm.item()
        if not math.isfinite(value):
            # At a scale below 1 it is not for the scale that gradients overflow.
            if self._scaler is None or self._scaler.get_scale() < 1:
                self._guard.report_bad_norm(value, batch, self._trainer)
            return False
        if config.gradient_clip_val:
            algorithm = config.gradient_clip_algorithm or "norm"
            gradients.clip_gradients(parameters, config.gradient_clip_val, algorithm, norm)
        return True

    @property
    def _trainer(self) -> pl.Trainer:
        return self._module.trainer

    @property
    def _scaler(self) -> Any:
        return getattr(self._trainer.precision_plugin, "scaler", None)

    def _unsynced(self, block: bool) -> AbstractContextManager[Any]:
        strategy = self._trainer.strategy
        if block and isinstance(strategy, ParallelStrategy):
            blocked: AbstractContextManager[Any] = strategy.block_backward_sync()
            return blocked
        return nullcontext()

    def _full_precision(self) -> AbstractContextManager[Any]:
        """Leave autocast, inside of which Lightning runs the whole training step."""
        kind = self._module.device.type
        is_mixed = torch.is_autocast_enabled(kind)
        return torch.autocast(kind, enabled=False) if is_mixed else nullcontext()


def ddp_of(trainer: pl.Trainer) -> DistributedDataParallel | None:
    """Return DDP's wrapper of the module, or None with another strategy."""
    model = trainer.strategy.model
    return model if isinstance(model, DistributedDataParallel) else None
