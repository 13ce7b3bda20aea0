"""Keep down what Lightning says and nobody needs: adverts, banners, and what we say better."""

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

_LOGGERS = ("lightning", "lightning.pytorch", "lightning.fabric")
_NOISE = re.compile(
    r"💡|litlogger|litmodels|lightning\.ai"
    r"|(GPU|TPU|HPU) available"
    r"|Using .*Automatic Mixed Precision|Using default `ModelCheckpoint`"
    r"|Initializing distributed|distributed_backend="
    r"|LOCAL_RANK: \d+ - CUDA_VISIBLE_DEVICES"
    r"|Loading `train_dataloader` to estimate"
    r"|Restoring states from|Restored all states from"
    r"|`weights_only` was not set"
    r"|`Trainer\.fit` stopped: `max_"
    r"|`Trainer\(limit_.*was configured so"
)
_WARNINGS = (
    r".*Checkpoint directory .* exists and is not empty",  # of every run that goes on
    r".*The number of training batches .* is smaller than the logging interval",
    r".*You defined a `validation_step` but have no `val_dataloader`",
    r".*litlogger",
    r".*Found \d+ module\(s\) in eval mode at the start of training",  # see freezing
    r".*The `srun` command is available on your system but is not used",  # see launch_check
    r".*isinstance\(treespec, LeafSpec\)",
    r".*`?torch\.jit\.script",
)


def _is_wanted(record: logging.LogRecord) -> bool:
    return record.levelno > logging.INFO or _NOISE.search(record.getMessage()) is None


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Leave out Lightning's noise inside the block, and let the rest of it reach the log file.

    Warnings and errors are kept, and so is what callbacks and profilers report. It must be open
    while the `Trainer` is built and while it runs.
    """
    import lightning.pytorch  # noqa: F401  it adds a handler of its own, which we replace

    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        for message in _WARNINGS:
            warnings.filterwarnings("ignore", message=message)
        for logger in _all_loggers():
            logger.addFilter(_is_wanted)
            stack.callback(logger.removeFilter, _is_wanted)
        if logging.getLogger().handlers:
            # The parent prints to the terminal as well, though its children hand nothing to it.
            for name in ("lightning", *_LOGGERS):
                _hand_to_root(logging.getLogger(name), stack)
        yield


def _all_loggers() -> list[logging.Logger]:
    # A filter holds for its own logger only, not for those below it.
    known = sorted(logging.root.manager.loggerDict)
    return [logging.getLogger(name) for name in known if name.startswith(_LOGGERS)]


def _hand_to_root(logger: logging.Logger, stack: ExitStack) -> None:
    """Let the handlers of the program, such as that of `train.log`, show what Lightning says."""

    def restore(handlers: list[logging.Handler], propagate: bool) -> None:
        logger.handlers, logger.propagate = handlers, propagate

    stack.callback(restore, logger.handlers, logger.propagate)
    logger.handlers, logger.propagate = [], True
