"""Progress of a run: a bar on a terminal, a line a minute in a log."""

import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from espnet3.text import duration

logger = logging.getLogger(__name__)
_BAR_SECONDS = 0.25
_LINE_SECONDS = 60.0  # a log is read later, and should show more than progress


class Progress:
    """A thread that asks `count` how many of `total` items are done, and shows it.

    Args:
        total: items in all.
        count: returns how many are done; called from the thread.
        label: what is running.
        audio_seconds: of all items; gives the speed relative to real time.
    """

    def __init__(
        self,
        total: int,
        count: Callable[[], int],
        label: str,
        audio_seconds: float | None = None,
    ) -> None:
        self._total = total
        self._count = count
        self._label = label
        self._seconds_per_item = (audio_seconds or 0.0) / max(total, 1)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._show, name="progress", daemon=True)
        self._begin = time.monotonic()
        self._at_begin = 0

    def __enter__(self) -> "Progress":
        self._at_begin = self._count()
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()

    def _show(self) -> None:
        if sys.stderr.isatty():
            self._show_bar()
        else:
            self._show_lines()

    def _show_lines(self) -> None:
        while not self._stop.wait(_LINE_SECONDS):
            done = self._count()
            logger.info("%s: %s", self._label, self._line(done))

    def _line(self, done: int) -> str:
        rate = self._rate(done)
        left = f", {duration((self._total - done) / rate)} left" if rate > 0 else ""
        return f"{done} of {self._total} items, {self._speed(rate)}{left}"

    def _rate(self, done: int) -> float:
        return (done - self._at_begin) / (time.monotonic() - self._begin)

    def _speed(self, rate: float) -> str:
        # Of mean items: the longest ones run first, so it is somewhat too high then.
        times = rate * self._seconds_per_item
        return f"{rate:.1f} items/s" + (f", {times:.1f} times real time" if times > 0 else "")

    def _show_bar(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        speed: Any = TextColumn("{task.fields[rate]}")
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), speed)
        with Bar(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
            task = bar.add_task(self._label, total=self._total, rate="")
            while True:
                stopping = self._stop.wait(_BAR_SECONDS)
                done = self._count()
                bar.update(task, completed=done, rate=self._speed(self._rate(done)))
                if stopping:
                    return
