"""The bar on a terminal."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

_SECONDS_BETWEEN = 0.2
_WIDE = 100
ON_BAR = "espnet3_on_bar"
"""Attribute of log records that say what the bar shows: for log files only."""


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
        """Whether there is room for more than what matters most."""
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
