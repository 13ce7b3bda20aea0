"""Logging set-up: the only module that adds handlers."""

import logging
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

FORMAT = "%(asctime)s %(levelname)s %(message)s"
LONG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_DATE = "%H:%M:%S"
_TALKATIVE = ("distributed", "dask", "dask_jobqueue", "dask_cuda", "ray", "tornado", "bokeh")
_OWN_LOGGERS = ("__main__", "src", "dataset")
"""Of the recipe itself, whose info lines are shown as well."""


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to what `sys.stderr` is now: a progress bar may stand in for it for a while."""

    def __init__(self) -> None:
        # Not that of StreamHandler, which assigns `stream`.
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        """The current stderr."""
        return sys.stderr


def make_visible(prefix: str = "", level: int = logging.INFO) -> None:
    """Show the progress of a run on stderr, unless the program has set up logging itself.

    Args:
        prefix: of each line, such as the rank of the process.
        level: lines below it are not shown; a log file has them all the same.
    """
    ours = logging.getLogger("espnet3")
    if ours.hasHandlers():
        return
    handler = _StderrHandler()
    handler.setFormatter(logging.Formatter(prefix + FORMAT, _DATE))
    handler.setLevel(level)
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)


@contextmanager
def said_if_long(logger: logging.Logger, text: str, seconds: float = 2.0) -> Iterator[None]:
    """Log a line if what is inside takes longer than some seconds; it needs no line otherwise."""
    timer = threading.Timer(seconds, logger.info, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def log_to_stderr() -> None:
    """Set up logging of a worker process, whose stderr is its log file."""
    logging.basicConfig(level=logging.INFO, format=LONG_FORMAT)


def _others_on_stderr() -> logging.Handler:
    """Return what shows other packages' lines, as Python does while there is no handler."""
    handler = _StderrHandler()
    handler.addFilter(_is_for_the_terminal)
    handler.setFormatter(logging.Formatter(FORMAT, _DATE))
    return handler


def _is_for_the_terminal(record: logging.LogRecord) -> bool:
    """Leave out what has a handler of its own, and what Dask says of every connection."""
    package = record.name.partition(".")[0]
    if package in _TALKATIVE:
        return record.levelno >= logging.WARNING
    return package != "espnet3"


@contextmanager
def quiet(name: str) -> Iterator[None]:
    """Silence the loggers of a package, but for critical errors.

    For a cluster that is being closed: workers that leave in the middle of a message, or are slow
    to leave, are warnings and errors to Dask, with a traceback each.
    """
    log = logging.getLogger(name)
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


class StageLog:
    """An open log file.

    Args:
        path: it is appended to.
        hidden: texts that must not be written, each with what to write instead.
    """

    def __init__(self, path: Path, hidden: Mapping[str, str]) -> None:
        self.path = path
        # A name that is not UTF-8 must not cost the whole line.
        self.handler = _FileHandler(path, encoding="utf-8", errors="backslashreplace")
        self.handler.setFormatter(_HidingFormatter(hidden))

    def write_traceback(self, name: str, error: BaseException) -> None:
        """Write an error with its traceback, which the terminal is spared."""
        info = (type(error), error, error.__traceback__)
        record = logging.LogRecord(name, logging.ERROR, "", 0, "Traceback:", (), info)
        self.handler.handle(record)


class _FileHandler(logging.FileHandler):
    """Is silent where the disk is full: what fails for that says so itself, and on the terminal."""

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


class _HidingFormatter(logging.Formatter):
    def __init__(self, hidden: Mapping[str, str]) -> None:
        super().__init__(LONG_FORMAT)
        self._hidden = hidden

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        for secret, shown in self._hidden.items():
            text = text.replace(secret, shown)
        return text


@contextmanager
def open_stage_log(path: Path, hidden: Mapping[str, str] | None = None) -> Iterator[StageLog]:
    """Write what is logged inside the block to a file; the terminal sees what it saw before.

    Python's own warnings are logged as well, and so are info lines of the recipe's modules.
    """
    log = StageLog(path, hidden or {})
    root = logging.getLogger()
    with ExitStack() as stack:
        # Registered first, so that it runs last.
        stack.callback(log.handler.close)
        handlers: list[logging.Handler] = [log.handler]
        # Python prints warnings by itself only as long as the root has no handler.
        if not root.handlers:
            handlers.append(_others_on_stderr())
        for handler in handlers:
            root.addHandler(handler)
            stack.callback(root.removeHandler, handler)
        for logger in map(logging.getLogger, _OWN_LOGGERS):
            if logger.level == logging.NOTSET:
                logger.setLevel(logging.INFO)
                stack.callback(logger.setLevel, logging.NOTSET)
        logging.captureWarnings(True)
        stack.callback(logging.captureWarnings, False)
        yield log
