"""Every private attribute of Lightning that we read or set, and why; seen in Lightning 2.6.6.

Nothing else in the package may touch them: after an upgrade of Lightning this is the file to check.
"""

import subprocess
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, get_args

import lightning.pytorch as pl
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.fabric.utilities.data import sized_len
from lightning.pytorch.loops.fetchers import _DataFetcher, _DataLoaderIterDataFetcher
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.profilers import PassThroughProfiler
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, device
from typing_extensions import override

_BATCH_HOOKS = (
    "on_train_batch_start", "on_before_backward", "on_after_backward", "on_before_optimizer_step",
    "on_before_zero_grad", "on_train_batch_end",
)  # fmt: skip
_TRANSFER_HOOKS = (
    "on_before_batch_transfer",
    "transfer_batch_to_device",
    "on_after_batch_transfer",
)
_NOTHING = nullcontext()
_PLAIN = (str, int, float, bool, bytes, type(None))


class LowOverheadModule(pl.LightningModule):
    """LightningModule with fewer calls per batch, for `LeanEpochLoop`.

    One that optimizes manually takes `(batch, batch_idx)` in `training_step`, returns a tensor or
    None from it, and nothing from `on_train_batch_start`.
    """

    has_logged = True
    """Whether something was logged that the trainer's metrics do not have yet."""

    def __init__(self) -> None:
        super().__init__()
        self._callbacks_seen: list[pl.Callback] = []
        self._hooks_seen: dict[str, list[Callable[..., Any]]] = {}
        self._plain: frozenset[str] = frozenset()

    def call_hooks(self, name: str, *args: Any) -> None:
        """Call a per-batch hook of all callbacks that have it and then our own, as Lightning does.

        Which have it is looked up again only after callbacks were added or removed.
        """
        trainer: Any = self._trainer
        if trainer.callbacks != self._callbacks_seen:
            self._callbacks_seen = list(trainer.callbacks)
            self._hooks_seen = {n: _hooks_of(trainer.callbacks, n) for n in _BATCH_HOOKS}
        attributes = self.__dict__
        before, n_seen = attributes["_current_fx_name"], len(self._callbacks_seen)
        attributes["_current_fx_name"] = name  # `log` goes by it
        for hook in self._hooks_seen.get(name, ()):
            hook(trainer, self, *args)
        if len(trainer.callbacks) > n_seen:  # one of these has added some
            for hook in _hooks_of(trainer.callbacks[n_seen:], name):
                hook(trainer, self, *args)
        getattr(self, name)(*args)
        attributes["_current_fx_name"] = before

    @override
    def log(self, *args: Any, **kwargs: Any) -> None:
        """Log a value, and take note that there is one: callbacks log through this as well."""
        self.has_logged = True
        super().log(*args, **kwargs)

    @override
    def __getstate__(self) -> dict[str, Any]:
        # A copy of the module, such as an average of weights, is not to copy the callbacks.
        return {**super().__getstate__(), "_callbacks_seen": [], "_hooks_seen": {}}

    @override
    def __setattr__(self, name: str, value: Any) -> None:
        # Lightning sets the name of the current hook over thirty times per batch, and
        # `nn.Module.__setattr__` checks each value for being a parameter, a buffer or a module.
        if name == "_current_fx_name":
            self.__dict__[name] = value
        else:
            super().__setattr__(name, value)

    @override
    def on_fit_start(self) -> None:
        """Hide the empty hooks of callbacks, and skip profiling if no profiler was asked for."""
        for callback in self.trainer.callbacks:  # type: ignore[attr-defined]
            hide_empty_hooks(callback)
        if type(self.trainer.profiler) is PassThroughProfiler:  # type: ignore[attr-defined]
            self.trainer.profiler = _NoProfiler()  # type: ignore[attr-defined]
        self._plain = _plain_methods(self.trainer)


def hide_empty_hooks(callback: pl.Callback) -> None:
    """Replace per-batch hooks that do nothing by None: Lightning calls only what is callable."""
    for name in _BATCH_HOOKS:
        own = vars(callback)
        if name not in own and getattr(type(callback), name) is getattr(pl.Callback, name):
            own[name] = None


def _hooks_of(callbacks: list[pl.Callback], name: str) -> list[Callable[..., Any]]:
    hooks = [getattr(callback, name) for callback in callbacks]
    return [hook for hook in hooks if callable(hook)]


def _profile_nothing() -> None:
    """Stand for what a profiler does around the fetching of a batch."""


class _NoProfiler(PassThroughProfiler):
    """Lightning's own builds a generator each time it measures nothing."""

    @override
    def profile(self, action_name: str) -> AbstractContextManager[None]:  # type: ignore[override]
        return _NOTHING


class LeanEpochLoop(_TrainingEpochLoop):
    """Loop over the batches of an epoch, without what a batch of `LowOverheadModule` can spare.

    Hooks are called with the same arguments and in the same order as by Lightning's own loop, which
    does the first batch after a resume, and all batches of other modules and with a profiler.
    """

    _is_lean = False
    _is_alone = False
    """Whether there are no other ranks."""
    _is_unwrapped = False
    """Whether the strategy would call `training_step` of the module itself, and do nothing else."""

    @override
    def on_run_start(self, data_fetcher: _DataFetcher) -> None:
        super().on_run_start(data_fetcher)
        self._is_lean = _can_be_lean(self.trainer, data_fetcher)
        self._is_alone = self.trainer.world_size == 1
        strategy, module = self.trainer.strategy, self.trainer.lightning_module
        plain: frozenset[str] = getattr(module, "_plain", frozenset())
        self._is_unwrapped = "training_step" in plain and strategy.model is module
        if self._is_lean:  # without a profiler
            data_fetcher._start_profiler = data_fetcher._stop_profiler = _profile_nothing

    @property
    @override
    def global_step(self) -> int:
        # Lightning finds out each time, and several times per batch, who steps the optimizers.
        if self._is_lean:
            return self.manual_optimization.optim_step_progress.total.completed
        return super().global_step

    @override
    def advance(self, data_fetcher: _DataFetcher) -> None:
        if self.restarting or not self._is_lean:
            super().advance(data_fetcher)
            return
        if self.val_loop.restarting:
            self.val_loop.restarting = False
        trainer, progress = self.trainer, self.batch_progress
        if not self._is_alone:
            self._broadcast_sigterm_tensor()
        batch, batch_idx = next(data_fetcher)[0], self.batch_idx + 1
        progress.is_last_batch = data_fetcher.done
        batch = _moved_for(trainer.strategy, batch)
        progress.increment_ready()
        self._start_metrics(batch)
        output = self._train_on(batch, batch_idx)
        progress.increment_processed()
        module: Any = trainer.lightning_module
        module.call_hooks("on_train_batch_end", output, batch, batch_idx)
        self._take_metrics(module)
        progress.increment_completed()
        if is_log_point(trainer) or trainer.fast_dev_run:
            trainer._logger_connector.update_train_step_metrics()

    def _train_on(self, batch: Any, batch_idx: int) -> Any:
        if batch is None:
            self._warning_cache.warn("The loader's batch is None: nothing is trained on it.")
            return None
        module: Any = self.trainer.lightning_module
        strategy, optimization = self.trainer.strategy, self.manual_optimization
        module.call_hooks("on_train_batch_start", batch, batch_idx)
        strategy.on_train_batch_start(batch, batch_idx)
        self.batch_progress.increment_started()
        optimization.on_run_start()
        module.__dict__["_current_fx_name"] = "training_step"
        loss = (module if self._is_unwrapped else strategy).training_step(batch, batch_idx)
        module.__dict__["_current_fx_name"] = None
        optimization._restarting = False
        optimization.on_run_end()
        return {} if loss is None else {"loss": loss}

    @override
    def on_advance_end(self, data_fetcher: _DataFetcher) -> None:
        trainer = self.trainer
        # The loop of Lightning does the rest of a batch around which something happens.
        if (
            not self._is_lean
            or self._skip_next_val
            or trainer.received_sigterm
            or self._should_check_val_fx(data_fetcher)
        ):
            super().on_advance_end(data_fetcher)
            return
        if trainer.accumulate_grad_batches == 1 or not self._should_accumulate():
            self._batches_that_stepped += 1
        self._save_loggers_on_train_batch_end()

    @override
    def _should_check_val_fx(self, data_fetcher: _DataFetcher) -> bool:
        trainer, every = self.trainer, self.trainer.val_check_batch
        by_batch = isinstance(every, int) and trainer._val_check_time_interval is None
        if by_batch and not self.batch_progress.is_last_batch and not trainer.should_stop:
            is_by_epoch = trainer.check_val_every_n_epoch is not None
            n_batches = (self.batch_idx if is_by_epoch else self.total_batch_idx) + 1
            # Before the question whether there is a validation at all, which takes longer.
            if n_batches % every:
                return False
        return super()._should_check_val_fx(data_fetcher)

    @override
    def update_lr_schedulers(self, interval: str, update_plateau_schedulers: bool) -> None:
        if not self._is_lean:  # else our module does it
            super().update_lr_schedulers(interval, update_plateau_schedulers)

    @override
    def _save_loggers_on_train_batch_end(self) -> None:
        if is_log_point(self.trainer):
            super()._save_loggers_on_train_batch_end()

    def _start_metrics(self, batch: Any) -> None:
        """Do what `on_batch_start` of Lightning's logger connector does."""
        connector = self.trainer._logger_connector
        if connector._first_loop_iter is not False:
            connector._first_loop_iter = connector._first_loop_iter is None
        self._results.batch, self._results.batch_size = batch, None

    def _take_metrics(self, module: Any) -> None:
        """Hand on what was logged, and forget the batch."""
        if module.has_logged:
            module.has_logged = False
            self.trainer._logger_connector.on_batch_end()
        self._results.batch = self._results.batch_size = None


def _can_be_lean(trainer: pl.Trainer, fetcher: _DataFetcher) -> bool:
    module = trainer.lightning_module
    return (
        isinstance(module, LowOverheadModule)
        and not module.automatic_optimization
        and isinstance(trainer.profiler, _NoProfiler)  # type: ignore[attr-defined]
        and not isinstance(fetcher, _DataLoaderIterDataFetcher)
        and not any(is_overridden(name, module) for name in _TRANSFER_HOOKS)
    )


def _moved_for(strategy: Strategy, batch: Any) -> Any:
    batch = strategy.precision_plugin.convert_input(batch)
    if type(strategy).batch_to_device is Strategy.batch_to_device:
        return _moved(batch, strategy.root_device)
    return strategy.batch_to_device(batch)


def _moved(value: Any, to: device) -> Any:
    """Do what `move_data_to_device` does, which takes ten times as long for a batch on the CPU."""
    kind = type(value)
    if kind is Tensor and value.device == to:
        return value
    if kind is dict:
        return {name: _moved(one, to) for name, one in value.items()}
    if kind is list or kind is tuple:
        return kind(_moved(one, to) for one in value)
    return value if kind in _PLAIN else move_data_to_device(value, to)


def use_lean_loop(trainer: pl.Trainer) -> None:
    """Let a trainer that has just been built train with `LeanEpochLoop`."""
    loop = trainer.fit_loop.epoch_loop
    trainer.fit_loop.epoch_loop = LeanEpochLoop(trainer, loop.min_steps, loop.max_steps)


def step_optimizer(module: LowOverheadModule, index: int) -> None:
    """Step an optimizer so that `trainer.global_step` goes up."""
    # `trainer.optimizers` are torch's; only Lightning's wrappers count steps, and
    # `LightningModule.optimizers()` would wrap them again for each batch.
    optimizer = module.trainer.strategy._lightning_optimizers[index]
    if "optimizer_step" not in module._plain:
        optimizer.step()
        return
    optimizer._on_before_step()
    # In the closure, as Lightning does it: after the hooks of torch that stand before a step.
    hooks: Any = partial(module.call_hooks, "on_before_optimizer_step", optimizer.optimizer)
    optimizer.optimizer.step(closure=hooks)
    optimizer._on_after_step()


def run_backward(module: LowOverheadModule, loss: Tensor, **arguments: Any) -> None:
    """Run a backward pass as `LightningModule.manual_backward` does."""
    strategy: Any = module.trainer.strategy
    if "backward" not in module._plain:
        strategy.backward(loss, None, **arguments)
        return
    strategy.pre_backward(loss)
    module.call_hooks("on_before_backward", loss)
    loss.backward(**arguments)  # type: ignore[no-untyped-call]
    module.call_hooks("on_after_backward")
    strategy.post_backward(loss.detach())


def _plain_methods(trainer: pl.Trainer) -> frozenset[str]:
    """Return which of the strategy's methods do nothing but call hooks and torch."""
    profiler: Any = trainer.profiler  # type: ignore[attr-defined]
    if type(trainer.precision_plugin) is not Precision or type(profiler) is not _NoProfiler:
        return frozenset()
    names, kind = ("backward", "optimizer_step", "training_step"), type(trainer.strategy)
    return frozenset(name for name in names if getattr(kind, name) is getattr(Strategy, name))


def is_log_point(trainer: pl.Trainer) -> bool:
    """Tell, in training, whether the metrics of this batch go to the loggers."""
    # Lightning's own rule counts batches that stepped, which no public attribute has, and finds out
    # each time what the trainer is doing.
    every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]
    if not every:
        return False
    n_batches = trainer.fit_loop.epoch_loop._batches_that_stepped + 1
    return n_batches % every == 0 or bool(trainer.should_stop)


def logged_step(trainer: pl.Trainer) -> int:
    """Return the step that loggers see: batches, not steps of optimizers."""
    # Passed to `Logger.log_metrics` as `step`, and public nowhere else.
    return trainer.fit_loop.epoch_loop._batches_that_stepped


def is_validation_due(trainer: pl.Trainer) -> bool:
    """Tell, at the end of a batch, whether a validation follows at once."""
    # It depends on five arguments of the trainer and on the length of the loader.
    fit_loop = trainer.fit_loop
    fetcher = fit_loop._data_fetcher
    return fetcher is not None and fit_loop.epoch_loop._should_check_val_fx(fetcher)


def is_last_batch(trainer: pl.Trainer) -> bool:
    """Tell whether the current batch is the last one of its epoch."""
    # `trainer.is_last_batch` is set only after the hooks in which it is needed here.
    return trainer.fit_loop.epoch_loop._num_ready_batches_reached()


def is_ending(trainer: pl.Trainer) -> bool:
    """Tell whether a callback has asked for the end, such as early stopping, and gets it."""
    # `should_stop` alone does not end a training before `min_epochs` and `min_steps`.
    return bool(trainer.should_stop and trainer.fit_loop._can_stop_early)


def restore_loader_position(trainer: pl.Trainer) -> None:
    """Give the loaders the position from the checkpoint, where Lightning has not; at train start.

    A module that reads `trainer.estimated_stepping_batches`, as those with a schedule do, has the
    loaders set up before the checkpoint is read, and Lightning then forgets their position.
    """
    fit_loop = trainer.fit_loop
    if fit_loop._combined_loader_states_to_load and fit_loop._data_fetcher is not None:
        fit_loop._load_combined_loader_states()
        # The iterator at hand was made for the old position.
        iter(fit_loop._data_fetcher)


def update_epoch_length(trainer: pl.Trainer) -> None:
    """Read the number of batches of the current epoch from the loader; at the start of the epoch.

    Lightning asks once, before it restores the position of the loader. After a resume with another
    number of ranks the rest of that epoch has other steps, and the epochs after it have others
    again; so may the batches of a sampler of the user's own.
    """
    fit_loop = trainer.fit_loop
    loader, fetcher = fit_loop._combined_loader, fit_loop._data_fetcher
    if loader is None or fetcher is None:
        return
    lengths = [sized_len(one) for one in loader.flattened]
    limits = [_limited(n, trainer.limit_train_batches) for n in lengths if n is not None]
    # A stream has no length, and runs until it ends.
    if None in lengths or limits == loader.limits:
        return
    loader.limits = limits
    # The iterator at hand still has the old limits.
    iter(fetcher)
    fit_loop.max_batches = max(limits)
    # A share of an epoch was turned into batches once, with the old length.
    if isinstance(trainer.val_check_interval, float) and trainer.val_check_batch is not None:
        trainer.val_check_batch = max(1, int(max(limits) * trainer.val_check_interval))


def _limited(n_batches: int, limit: float | None) -> int | float:
    if limit is None:
        return n_batches
    # By type, as Lightning does: 1 is one batch, 1.0 is all of them.
    return min(n_batches, limit) if isinstance(limit, int) else int(n_batches * limit)


def skip_sigterm_broadcast(trainer: pl.Trainer) -> None:
    """Leave signals to `Preemption`; at train start."""
    # Lightning broadcasts in every step whether rank 0 got a SIGTERM, and waits for the device.
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = _do_nothing  # type: ignore[method-assign]


def _do_nothing() -> None:
    pass


def take_over_children() -> list["subprocess.Popen[bytes]"]:
    """Return the ranks that Lightning started by `Popen`, and make it forget them.

    A thread of Lightning would kill all ranks, this one included, as soon as one of them fails,
    so that no message of ours gets out. Empty if there are none, or they were taken before.
    """
    taken: list[subprocess.Popen[bytes]] = []
    for thread in threading.enumerate():
        children = getattr(thread, "_child_processes", None)
        # By name: Lightning keeps no reference to the thread that it started.
        if thread.name == "child-process-observer" and children:
            taken = list(children)
            # With nothing left to watch, its loop ends by itself.
            thread._child_processes = []  # type: ignore[attr-defined]
    return taken


def precision_names() -> list[str]:
    """Return the values that `trainer.precision` may have."""
    # Lightning has them as the type of the argument only.
    from lightning.fabric.plugins.precision.precision import _PRECISION_INPUT

    names = [
        name for literal in get_args(_PRECISION_INPUT) for name in get_args(literal) or (literal,)
    ]
    return list(dict.fromkeys(map(str, names)))
