"""Logging set-up: the only module that adds handlers."""

import logging
import sys
from typing import TextIO

FORMAT = "%(asctime)s %(levelname)s %(message)s"
_DATE = "%H:%M:%S"


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to what `sys.stderr` is now: a progress bar may stand in for it for a while."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        """The current stderr."""
        return sys.stderr


def make_visible() -> None:
    """Show the progress of a run on stderr, unless the program has set up logging itself."""
    ours = logging.getLogger("espnet3")
    if ours.hasHandlers():
        return
    handler = _StderrHandler()
    handler.setFormatter(logging.Formatter(FORMAT, _DATE))
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)


def log_to_stderr(level: int = logging.INFO) -> None:
    """Set up logging of a worker process, whose stderr is its log file."""
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
