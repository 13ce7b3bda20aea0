"""Save and end a training after a signal: SIGTERM, Ctrl-C, or the one before the walltime.

Signals are deferred to the end of a step, and all ranks save the same one. Lightning's own handlers
are replaced: its SIGTERM handler calls a collective from wherever the main thread is, and its
requeueing for Slurm knows neither `last.ckpt` nor other schedulers.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum, auto
from types import FrameType
from typing import Any, NoReturn

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.pytorch.trainer.states import TrainerFn
from typing_extensions import override

from espnet3.errors import RunInterrupted
from espnet3.schedulers import CONTINUE_CODE
from espnet3.trainer.launching.process_rank import process_rank
from espnet3.trainer.lightning_internals import skip_sigterm_broadcast
from espnet3.trainer.optimization.optimizer_steps import has_gradients

logger = logging.getLogger(__name__)

CONTINUE = CONTINUE_CODE
"""Exit code 75: a checkpoint was written, and the job is to be started again."""
# Slurm's `--signal=USR1@120` and SGE's `s_rt` send SIGUSR1, LSF and SGE's `-notify` SIGUSR2.
_CODES = {
    signal.SIGINT: 130,
    signal.SIGTERM: 143,
    signal.SIGUSR1: CONTINUE,
    signal.SIGUSR2: CONTINUE,
}
_CHECK_SECONDS = 1.0
_MOST_BATCHES = 50  # between two checks, in case that batches suddenly take longer
_PATIENCE_SECONDS = 20.0
_SAME_CTRL_C_SECONDS = 2.0
"""A terminal and a launcher may both pass on one Ctrl-C."""


class TrainingStopped(BaseException):
    """All ranks have saved and leave `fit` together.

    Not a `KeyboardInterrupt`: after one, Lightning kills its other processes and exits with 1.
    """

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Preemption(pl.Callback):
    """Saves and ends the training after a signal: a context around `fit`, and a callback of it.

    Before training has begun, a signal ends the process at once. In training, the ranks ask each
    other about once a second whether one of them got a signal: one small all-reduce.

    Args:
        save: writes the checkpoint; called on all ranks.

    Example:
        preemption = Preemption(keeper.save_last)
        with preemption.handling():
            pl.Trainer(callbacks=[preemption, keeper, ...], ...).fit(...)
    """

    def __init__(self, save: Callable[[pl.Trainer], None]) -> None:
        self._save = save
        self._signals = DeferredSignals(_CODES)
        self._pace = _Pace()
        self._agreed: int | None = None
        self._agreed_at = self._seconds_waited = 0.0
        self._n_waited = 0
        self._asks_in_validation = False

    @contextmanager
    def handling(self) -> Iterator[None]:
        """Handle signals inside the block.

        Raises:
            RunInterrupted: with the exit code, after a signal.
        """
        signals = self._signals
        previous = signals.install()
        try:
            yield
        except TrainingStopped as stop:
            # The default for a further one, before the process has ended, is another exit code.
            previous |= {n: signal.SIG_IGN for n, code in signals.codes.items() if code == CONTINUE}
            raise RunInterrupted(stop.code) from None
        except SystemExit:  # what Lightning makes of an interrupt
            if signals.code is None:
                raise
            raise RunInterrupted(signals.code) from None
        except RuntimeError as error:
            # A signal to the process group may end the loader's workers before this process saves.
            if signals.code is None or "DataLoader worker" not in str(error):
                raise
            logger.warning("The signal has ended workers of the loader: nothing could be saved.")
            raise RunInterrupted(signals.code) from error
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        if signals.code is not None:  # it came when training was at its end
            raise RunInterrupted(signals.code)

    @override
    def on_sanity_check_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._signals.install()  # Lightning has just put its own in place

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._signals.install()
        self._signals.phase = Phase.TRAINING
        skip_sigterm_broadcast(trainer)
        self._pace.restart(_CHECK_SECONDS)

    @override
    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        if not isinstance(exception, TrainingStopped):
            # The other ranks may hang in a collective: nothing can be saved any more.
            self._signals.phase = Phase.FAILED

    @override
    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        if self._pace.is_due(trainer) and self._agreed is None:
            self._ask(trainer)
        if self._agreed is None:
            return
        self._n_waited += 1
        # A checkpoint inside of an accumulation could not be resumed exactly: its gradients are not
        # saved.
        if not has_gradients(pl_module) or self._n_waited >= self._pace.patience:
            self._stop(trainer)

    @override
    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.sanity_checking or trainer.state.fn != TrainerFn.FITTING:
            return
        n_batches = float(sum(trainer.num_val_batches))
        most, least = _maxima(trainer, n_batches, -n_batches)
        # Ranks with different numbers of batches would hang in `_ask`, and a stream has no number.
        self._asks_in_validation = most == -least and most != float("inf")
        self._ask(trainer)
        self._stop_validation(trainer, pl_module)
        self._pace.restart(_CHECK_SECONDS)  # its batches have a pace of their own

    @override
    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._pace.restart(_CHECK_SECONDS)

    @override
    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if trainer.sanity_checking or not self._asks_in_validation:
            return
        if self._pace.is_due(trainer):
            self._ask(trainer)
            self._stop_validation(trainer, pl_module)

    def _ask(self, trainer: pl.Trainer) -> None:
        if self._signals.code is None and trainer.world_size == 1:
            return
        waited = 0.0 if self._agreed is None else time.monotonic() - self._agreed_at
        own = self._signals.code or 0, self._pace.seconds_per_batch(), waited
        # The largest code wins: that of a signal to end (130, 143) over that to continue (75).
        code, seconds, self._seconds_waited = _maxima(trainer, *own)
        self._pace.restart(seconds)
        if self._agreed is None:
            self._agreed_at = time.monotonic()
        self._agreed = int(code) or None

    def _stop(self, trainer: pl.Trainer) -> NoReturn:
        assert self._agreed is not None
        self._signals.phase = Phase.SAVING  # the checkpoint is on its way, and then the end
        # On all ranks, although only the first writes: sharded states are gathered.
        self._save(trainer)
        if trainer.is_global_zero:
            logger.info(
                "A signal has ended the training at step %d (exit code %d). The checkpoint is "
                "written: the same command resumes from it.",
                trainer.global_step,
                self._agreed,
            )
        raise TrainingStopped(self._agreed)

    def _stop_validation(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._agreed is None:
            return
        if has_gradients(pl_module) and self._seconds_waited < _PATIENCE_SECONDS:
            return  # the validation and the accumulation around it may end in time
        # As if the signal had come at the end of the batch before: a run that resumes from the
        # checkpoint then begins with this validation.
        progress = trainer.fit_loop.epoch_loop.batch_progress
        for part in (progress.total, progress.current):
            part.completed -= 1
        self._stop(trainer)


class _Pace:
    """Chooses the batches after which the ranks ask each other, the same on all of them."""

    def __init__(self) -> None:
        self.restart(_CHECK_SECONDS)

    def restart(self, seconds_per_batch: float) -> None:
        """Begin to count, at a pace on which the ranks agree."""
        seconds = max(seconds_per_batch, 1e-6)
        self._n_between = max(1, min(int(_CHECK_SECONDS / seconds), _MOST_BATCHES))
        self.patience = max(1, min(int(_PATIENCE_SECONDS / seconds), _MOST_BATCHES))
        """Batches that a save waits for a moment without half-summed gradients."""
        self._n_batches = 0
        self._start = time.monotonic()

    def is_due(self, trainer: pl.Trainer) -> bool:
        """Count a batch and return whether to ask; a single rank always may."""
        self._n_batches += 1
        return trainer.world_size == 1 or self._n_batches >= self._n_between

    def seconds_per_batch(self) -> float:
        """Return the pace of this rank since the last restart."""
        return (time.monotonic() - self._start) / max(1, self._n_batches)


def _maxima(trainer: pl.Trainer, *values: float) -> tuple[float, ...]:
    """Return the largest of each value over all ranks."""
    if trainer.world_size == 1 or not dist.is_initialized():
        return values
    device = trainer.strategy.root_device
    together = torch.tensor(values, dtype=torch.float32, device=device)
    dist.all_reduce(together, op=dist.ReduceOp.MAX)
    return tuple(together.tolist())


class Phase(Enum):
    """State of a training, which decides what a signal does."""

    STARTING = auto()  # there is nothing to save: end at once
    TRAINING = auto()  # take note of it
    SAVING = auto()  # the end has begun already
    FAILED = auto()  # likewise, but it may hang, so Ctrl-C ends at once


class DeferredSignals:
    """Signal handlers that only record a signal while training.

    Args:
        codes: the signals to handle, with the exit codes that they ask for.
    """

    def __init__(self, codes: Mapping[signal.Signals, int]) -> None:
        self.codes = codes
        self._owner = os.getpid()
        self._noted = 0.0
        self.phase = Phase.STARTING
        self.code: int | None = None
        """The exit code that the first signal asks for."""

    def install(self) -> dict[signal.Signals, Any]:
        """Put the handlers in place, and return those that were."""
        # Python lets only the main thread set handlers; a training elsewhere goes without.
        if threading.current_thread() is not threading.main_thread():
            return {}
        self._owner = os.getpid()
        return {number: signal.signal(number, self._handle) for number in self.codes}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._owner:
            _handle_in_worker(number)
            return
        is_ctrl_c, is_first = number == signal.SIGINT, self.code is None
        is_again = is_ctrl_c and time.monotonic() - self._noted > _SAME_CTRL_C_SECONDS
        if self.phase is Phase.SAVING or not (is_first or is_again):
            return
        if self.phase is Phase.FAILED and not is_ctrl_c:
            return
        self._noted = time.monotonic()
        self.code = self.code or self.codes[signal.Signals(number)]
        if self.phase is not Phase.TRAINING or not is_first:
            raise RunInterrupted(self.code)
        if is_ctrl_c and is_rank_0():
            # Not through logging or stderr, whose locks the main thread may hold.
            os.write(2, b"\nSaving after this step. Ctrl-C again: end at once, without saving.\n")


def _handle_in_worker(number: int) -> None:
    """Act in a forked process, such as a loader's: the training still needs it for a while."""
    if number == signal.SIGTERM:
        # By the default action, so that whoever waits for it sees a death by SIGTERM.
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def is_rank_0() -> bool:
    """Tell whether this process logs for all ranks."""
    return dist.get_rank() == 0 if dist.is_initialized() else process_rank().is_first
