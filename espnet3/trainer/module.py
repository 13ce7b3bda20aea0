"""The Lightning module: any model with a loss, one optimizer or several, on any number of ranks."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import FSDPStrategy
from torch import Tensor, nn

from espnet3.errors import TrainingError
from espnet3.trainer.fine_tuning import NOTHING, Frozen
from espnet3.trainer.lightning_internals import LowOverheadModule, is_log_point
from espnet3.trainer.optimization.model_calls import (
    ModelInputs,
    ModelOutput,
    batch_size,
    compute,
    is_lazy,
    is_named,
    parse_output,
    steps_of,
)
from espnet3.trainer.optimization.optimization_config import OptimizationConfig
from espnet3.trainer.optimization.optimizer_steps import (
    Moment,
    NonFiniteGuard,
    Stepper,
    Updater,
    ddp_of,
    frozen_others,
)
from espnet3.trainer.optimization.optimizers import (
    BuiltState,
    Settings,
    TrainingLength,
    apply_changed,
    build_optimizer,
    build_scheduler,
    check_combination,
    settings_of,
    split_parameters,
    warn_of_kept,
)

_STATE = "espnet3_nonfinite"
_LOG = "espnet3_log"
Number = Tensor | float
Sums = dict[str, tuple[float, float]]
"""By name of a statistic, the weighted sum of its values and the sum of their weights."""


class TrainingModule(LowOverheadModule):
    """Trains a model whose `forward(**batch)` returns a loss.

    Backward passes, accumulation, clipping and steps are done here, for one optimizer and for
    several alike. Statistics are logged as `train/<name>` and `valid/<name>`, with several
    optimizers as `train/<optimizer>/<name>`. `trainer.global_step` counts the steps of the
    optimizer that steps most often, the first of equals.

    Args:
        model: what is trained.
        optimization: how.
        changed: keys of the config that win over those of the checkpoint to resume from.
        frozen: what of the model is not trained, and stays in eval mode.

    Raises:
        ConfigError: the parameters of the model do not fit the optimizers.
    """

    def __init__(
        self,
        model: nn.Module,
        optimization: OptimizationConfig,
        changed: Sequence[str] = (),
        frozen: Frozen = NOTHING,
    ) -> None:
        super().__init__()
        # Lightning would step without asking the other ranks whether a loss is bad; see ADR 7.
        self.automatic_optimization = False
        self.model = model
        self.optimization = optimization
        self._frozen = frozen
        self.last_gradient_norms = dict.fromkeys(optimization.optimizers, math.nan)
        """By optimizer, before clipping."""
        split_parameters(model, optimization)  # for its errors, before anything expensive
        self._names = list(optimization.optimizers)
        # torch.compile wraps the model in a class whose name would say nothing in an error.
        self._model_name = type(getattr(model, "_orig_mod", model)).__name__
        self._inputs = ModelInputs(model)
        self._guard = NonFiniteGuard(optimization.max_nonfinite_batches)
        self._updaters: list[Updater] = []
        self._built: Settings = {}
        self._changed = tuple(changed)
        self._built_states: dict[str, BuiltState] = {}
        self._stepper = Stepper(self, self._updaters, self._guard, self.last_gradient_norms)
        self._train_log = TrainLog(self.last_gradient_norms)
        self._valid_stats = StatMeter()
        self._is_spread = False

    def train(self, mode: bool = True) -> "TrainingModule":
        """Set all but what is frozen to train mode."""
        super().train(mode)
        self._frozen.hold()
        return self

    @property
    def n_bad_batches(self) -> int:
        """Batches of the training so far that were left out, as they were not finite."""
        return self._guard.n_bad

    @property
    def has_open_window(self) -> bool:
        """Tell whether gradients wait for more batches; a checkpoint written now lacks them."""
        return any(updater.n_batches for updater in self._updaters)

    def configure_model(self) -> None:
        """Let FSDP spread the model itself, not this module.

        Lightning runs `training_step` inside the forward pass of what is wrapped, where FSDP allows
        neither backward passes nor clipping.
        """
        strategy = self.trainer.strategy
        if isinstance(strategy, FSDPStrategy) and not self._is_spread:
            from torch.distributed.fsdp.wrap import wrap

            self.model = wrap(self.model)
            self._is_spread = True
            strategy.kwargs.pop("auto_wrap_policy", None)  # or Lightning warns that it ignores it

    def configure_optimizers(self) -> Any:
        """Build what the config names, and refuse what cannot work together."""
        groups = split_parameters(self.model, self.optimization)
        # In place: the stepper was given this very list.
        self._updaters.clear()
        for name, config in self.optimization.optimizers.items():
            optimizer = build_optimizer(name, self.optimization, groups[name])
            schedule = self.optimization.schedulers.get(name)
            scheduler = None
            if schedule is not None:
                length = TrainingLength.of(self.trainer)
                scheduler = build_scheduler(name, self.optimization, optimizer, length)
            self._updaters.append(Updater(name, config, optimizer, scheduler, schedule))
        check_combination(self.trainer, self._updaters)
        self._built = settings_of(self._updaters)
        # Copied now, because Lightning is about to load the checkpoint over them.
        if self._changed:
            self._built_states = {one.name: BuiltState.of(one) for one in self._updaters}
        return [updater.for_lightning() for updater in self._updaters]

    def on_train_start(self) -> None:
        self._train_log.restore_metrics(self.trainer)
        path = self.trainer.ckpt_path
        if self.trainer.is_global_zero:
            self._frozen.warn_of_others(self.model)
        if path and self._changed:
            apply_changed(self._built_states, self._updaters, self._changed)
        if path and self.trainer.is_global_zero:
            warn_of_kept(self._built, self._updaters, path)

    def on_train_epoch_start(self) -> None:
        self._train_log.is_logged = False

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Let DDP send the buffers of rank 0, which it leaves out after manual steps."""
        if self._frozen.modules:
            self._frozen.hold()  # a callback may have set the model to train mode
        ddp = ddp_of(self.trainer)
        if ddp is not None and not self.has_open_window:
            ddp.require_forward_param_sync = True

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        """Run the model on a batch, and step the optimizers whose window it closes."""
        is_last = self.trainer.is_last_batch or batch_idx + 1 == self.trainer.num_training_batches
        moment = Moment(self.trainer.fit_loop.total_batch_idx, batch_idx, is_last)
        self._guard.start_batch()
        due = [updater for updater in self._updaters if updater.is_due(moment)]
        steps = self._steps(batch) if due else {}
        losses = self._backward_computed(due, steps, batch, moment)
        is_updated = False
        for updater in self._updaters:
            if updater in due and is_lazy(steps[updater.name]):
                with frozen_others(updater, self._updaters):
                    losses.append(self._backward(updater, steps[updater.name], batch, moment))
            if updater.closes(moment):
                is_updated |= self._stepper.update(updater, batch)
        self._guard.end_batch(is_updated)
        self._end_batch(moment)
        return losses[0] if losses else None

    def _steps(self, batch: Any) -> dict[str, Any]:
        return steps_of(self.model(**self._inputs.pick(batch)), self._names, self._model_name)

    def _backward_computed(
        self, due: list[Updater], steps: Mapping[str, Any], batch: Any, moment: Moment
    ) -> list[Tensor]:
        """Run all backward passes that need no earlier update: a step would spoil their graphs."""
        ready = [u for u in due if steps[u.name] is not None and not is_lazy(steps[u.name])]
        return [
            self._backward(u, steps[u.name], batch, moment, keep=u is not ready[-1]) for u in ready
        ]

    def _backward(
        self, updater: Updater, step: Any, batch: Any, moment: Moment, keep: bool = False
    ) -> Tensor:
        """Run one backward pass, unless its loss is not finite on some rank."""
        output = self._parse(step, batch)
        if self._guard.is_bad_loss(output.loss, batch, self.trainer):
            return output.loss.detach()
        if not output.loss.requires_grad:
            raise TrainingError(
                f"The loss of {self._model_name} depends on no parameter of {updater.name!r}. "
                "Return it without .detach() or .item(), and computed outside of torch.no_grad()."
            )
        # After the guard: one NaN in the sums would spoil the mean up to the next log point.
        self._train_log.stats.add(output.stats, output.weight, self._prefix(updater.name))
        self._stepper.backward(updater, output.loss, closes=updater.closes(moment), keep=keep)
        return output.loss.detach()

    def _parse(self, step: Any, batch: Any) -> ModelOutput:
        return parse_output(compute(step), self._model_name, batch_size(self._inputs.fields(batch)))

    def _prefix(self, name: str) -> str:
        return f"{name}/" if name and len(self._names) > 1 else ""

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self._stepper.before_step()

    def _end_batch(self, moment: Moment) -> None:
        for updater in self._updaters if moment.is_last else ():
            updater.advance("epoch")
        if is_log_point(self.trainer):
            self._log_train(on_step=True)

    def _log_train(self, on_step: bool) -> None:
        self._train_log.is_logged = True
        self._log("train", self._train_log.stats, on_step)

    def _log(self, split: str, stats: "StatMeter", on_step: bool) -> None:
        values = {f"{split}/{name}": value for name, value in stats.take().items()}
        # All ranks have the same values. The maximum keeps them to the last digit, a mean may not.
        self.log_dict(
            values, on_step=on_step, on_epoch=not on_step, sync_dist=not on_step, reduce_fx="max"
        )

    def on_train_epoch_end(self) -> None:
        """Log an epoch that was too short for a log point; step schedulers that follow a metric."""
        if not self._train_log.is_logged:
            self._log_train(on_step=False)
        self._advance_plateaus(after_validation=False)

    def on_validation_model_zero_grad(self) -> None:
        """Keep the gradients of an accumulation that continues after the validation."""
        if not self.has_open_window:
            super().on_validation_model_zero_grad()

    def on_validation_start(self) -> None:
        """Let all ranks validate the buffers of rank 0, which are those that are saved."""
        ddp = ddp_of(self.trainer)
        if ddp is not None:
            # Else DDP would do it in each step, and hang where ranks have not equally many.
            ddp.require_forward_param_sync = False
            for buffer in self.buffers() if ddp.broadcast_buffers else ():
                torch.distributed.broadcast(buffer, 0)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Add the statistics of a batch; with several optimizers one output for all will do."""
        output = self.model(**self._inputs.pick(batch))
        named = is_named(output, self._names)
        steps = steps_of(output, self._names, self._model_name) if named else {"": output}
        for name, step in steps.items():
            if step is not None:
                parsed = self._parse(step, batch)
                self._valid_stats.add(parsed.stats, parsed.weight, self._prefix(name))

    def on_validation_epoch_end(self) -> None:
        """Log the means over all batches of all ranks."""
        self._log("valid", self._valid_stats, on_step=False)
        # The sanity check sees a few batches only, whose metric says nothing of the training.
        if not self.trainer.sanity_checking:
            self._advance_plateaus(after_validation=True)

    def _advance_plateaus(self, after_validation: bool) -> None:
        metrics = self.trainer.callback_metrics
        for updater in self._updaters:
            monitor = updater.monitor or ""
            if monitor in metrics and monitor.startswith("valid/") == after_validation:
                updater.advance_with(float(metrics[monitor]), self.trainer.is_last_batch)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint[_STATE] = self._guard.state_dict()
        checkpoint[_LOG] = self._train_log.state_dict(self.trainer)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        # `fit.ckpt_path` may name a checkpoint of an older version, which lacks these entries.
        if _STATE in checkpoint:
            self._guard.load_state_dict(checkpoint[_STATE])
        if _LOG in checkpoint:
            self._train_log.load_state_dict(checkpoint[_LOG], self.trainer)


class TrainLog:
    """The statistics of training batches since the last log point, and the metrics from it.

    A run that resumes from a checkpoint logs what it would have logged without the interruption:
    schedules and the choice of checkpoints may go by it.

    Args:
        norms: of the gradients, by optimizer, which are logged as well.
    """

    def __init__(self, norms: dict[str, float]) -> None:
        self.stats = StatMeter()
        self.is_logged = False
        """Whether the epoch at hand had a log point."""
        self._norms = norms
        self._restored: dict[str, float] = {}

    def state_dict(self, trainer: Trainer) -> dict[str, Any]:
        """Return it for a checkpoint; all ranks must call it."""
        metrics = trainer.callback_metrics
        return {
            "sums": self.stats.state_dict(),
            "is_logged": self.is_logged,
            "norms": dict(self._norms),
            "metrics": {n: float(v) for n, v in metrics.items() if n.startswith("train/")},
        }

    def load_state_dict(self, state: dict[str, Any], trainer: Trainer) -> None:
        """Restore from a checkpoint; `restore_metrics` is the second half."""
        self.is_logged, self._restored = state["is_logged"], state["metrics"]
        self._norms.update(state["norms"])
        # The sums are those of all ranks; restored on each, they would count several times.
        if trainer.is_global_zero:
            self.stats.load_state_dict(state["sums"])

    def restore_metrics(self, trainer: Trainer) -> None:
        """Let callbacks see what was logged last; at the train start, after the sanity check."""
        values = {name: torch.tensor(value) for name, value in self._restored.items()}
        trainer.callback_metrics.update(values)
        self._restored = {}


class StatMeter:
    """Adds up statistics where they are; a statistic counts only in batches that report it."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[Number, Number]] = {}

    def add(self, stats: Mapping[str, Number], weight: Number, prefix: str = "") -> None:
        """Add a batch, without waiting for a device."""
        weight = _long(weight)
        for name, value in stats.items():
            key = f"{prefix}{name}"
            total, weights = self._sums.get(key, (0.0, 0.0))
            self._sums[key] = (total + _long(value) * weight, weights + weight)

    def take(self) -> dict[str, float]:
        """Return the means over all ranks, by name, and reset; all ranks must call it."""
        totals = self.state_dict()
        self._sums = {}
        # Where all weights are 0 there is no mean, and no value is better than a made-up one.
        return {name: value / weight for name, (value, weight) in totals.items() if weight}

    def state_dict(self) -> Sums:
        """Return the sums over all ranks; all ranks must call it."""
        own = {name: (float(total), float(weight)) for name, (total, weight) in self._sums.items()}
        totals: Sums = {}
        for sums in _of_all_ranks(own):
            for name, (value, weight) in sums.items():
                before = totals.get(name, (0.0, 0.0))
                totals[name] = (before[0] + value, before[1] + weight)
        return totals

    def load_state_dict(self, sums: Sums) -> None:
        """Continue from sums over all ranks; to be called on one of them."""
        self._sums = dict(sums)


def _long(value: Number) -> Number:
    """Return it in 64 bits: sums of a long epoch in 32, let alone 16, would round visibly."""
    if not isinstance(value, Tensor):
        return float(value)
    if value.device.type == "cpu":  # nothing to wait for, and numbers add up faster than tensors
        return float(value.item())
    value = value.detach()
    # MPS has no float64.
    return value.float() if value.device.type == "mps" else value.double()


def _of_all_ranks(own: Sums) -> list[Sums]:
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    if not distributed or torch.distributed.get_world_size() == 1:
        return [own]
    # Objects, not tensors: the ranks may have seen different statistics.
    gathered: list[Sums] = [{}] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(gathered, own)
    return gathered
