"""Logging set-up: the only module that adds handlers."""

import logging
import sys

FORMAT = "%(asctime)s %(levelname)s %(message)s"
_DATE = "%H:%M:%S"


def make_visible() -> None:
    """Show the progress of a run on stderr, unless the program has set up logging itself."""
    ours = logging.getLogger("espnet3")
    if ours.hasHandlers():
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(FORMAT, _DATE))
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)


def log_to_stderr(level: int = logging.INFO) -> None:
    """Set up logging of a worker process, whose stderr is its log file."""
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
