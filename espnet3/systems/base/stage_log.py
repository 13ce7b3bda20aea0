"""The log file of a stage: all that is logged while it runs, with dates."""

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_OWN_LOGGERS = ("__main__", "src", "dataset")
"""Of the recipe itself, whose info lines are shown as well."""


class StageLog:
    """An open log file.

    Args:
        path: it is appended to.
        hidden: texts that must not be written, each with what to write instead.
    """

    def __init__(self, path: Path, hidden: Mapping[str, str]) -> None:
        self.path = path
        self.handler = logging.FileHandler(path, encoding="utf-8", errors="backslashreplace")
        self.handler.setFormatter(_HidingFormatter(hidden))

    def write_traceback(self, name: str, error: BaseException) -> None:
        """Write an error with its traceback, which the terminal is spared."""
        info = (type(error), error, error.__traceback__)
        record = logging.LogRecord(name, logging.ERROR, "", 0, "Traceback:", (), info)
        self.handler.handle(record)


class _HidingFormatter(logging.Formatter):
    def __init__(self, hidden: Mapping[str, str]) -> None:
        super().__init__(FORMAT)
        self._hidden = hidden

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        for secret, shown in self._hidden.items():
            text = text.replace(secret, shown)
        return text


class _OthersOnStderr(logging.StreamHandler[TextIO]):
    """Shows what other packages log, as Python does while the root logger has no handler."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.addFilter(lambda record: record.name.partition(".")[0] != "espnet3")
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        """The current stderr: a progress bar may stand in for it for a while."""
        return sys.stderr


@contextmanager
def open_stage_log(path: Path, hidden: Mapping[str, str] | None = None) -> Iterator[StageLog]:
    """Write what is logged inside the block to a file; the terminal sees what it saw before.

    Python's own warnings are logged as well, and so are info lines of the recipe's modules.
    """
    log = StageLog(path, hidden or {})
    root = logging.getLogger()
    with ExitStack() as stack:
        stack.callback(log.handler.close)
        handlers: list[logging.Handler] = [log.handler]
        if not root.handlers:
            handlers.append(_OthersOnStderr())
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
