"""Every private attribute of Lightning that we read or set, and why; seen in Lightning 2.6.6.

Nothing else in the package may touch them: after an upgrade of Lightning this is the file to check.
"""

import subprocess
import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Any, get_args

import lightning.pytorch as pl
from lightning.fabric.utilities.data import sized_len
from lightning.pytorch.profilers import PassThroughProfiler
from typing_extensions import override

_BATCH_HOOKS = (
    "on_train_batch_start", "on_before_backward", "on_after_backward", "on_before_optimizer_step",
    "on_before_zero_grad", "on_train_batch_end",
)  # fmt: skip
_NOTHING = nullcontext()


class LowOverheadModule(pl.LightningModule):
    """LightningModule with fewer hook calls per batch: a tenth less overhead, else the same."""

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


def hide_empty_hooks(callback: pl.Callback) -> None:
    """Replace per-batch hooks that do nothing by None: Lightning calls only what is callable."""
    for name in _BATCH_HOOKS:
        own = vars(callback)
        if name not in own and getattr(type(callback), name) is getattr(pl.Callback, name):
            own[name] = None


class _NoProfiler(PassThroughProfiler):
    """Lightning's own builds a generator each time it measures nothing."""

    @override
    def profile(self, action_name: str) -> AbstractContextManager[None]:  # type: ignore[override]
        return _NOTHING


def step_optimizer(trainer: pl.Trainer, index: int) -> None:
    """Step an optimizer so that `trainer.global_step` goes up."""
    # `trainer.optimizers` are torch's; only Lightning's wrappers count steps, and
    # `LightningModule.optimizers()` would wrap them again for each batch.
    trainer.strategy._lightning_optimizers[index].step()


def is_log_point(trainer: pl.Trainer) -> bool:
    """Tell whether the metrics of this batch go to the loggers, by Lightning's own rule."""
    # The rule counts batches that stepped, which no public attribute has.
    return bool(trainer._logger_connector.should_update_logs)


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
    if None in lengths or limits == loader.limits:
        return
    loader.limits = limits
    iter(fetcher)
    fit_loop.max_batches = max(limits)
    if isinstance(trainer.val_check_interval, float) and trainer.val_check_batch is not None:
        trainer.val_check_batch = max(1, int(max(limits) * trainer.val_check_interval))


def _limited(n_batches: int, limit: float | None) -> int | float:
    if limit is None:
        return n_batches
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
        if thread.name == "child-process-observer" and children:
            taken = list(children)
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
