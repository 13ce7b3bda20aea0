"""Decide on all ranks together that it is time to save, almost without talking."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import lightning.pytorch as pl

_MOST_BATCHES = 1000
_SHORTEST, _LONGEST = 60.0, 1800.0
_SHARE = 0.01  # of the time that saving may take


class SaveTimer:
    """Tells, batch by batch, whether the seconds since the last save are over.

    The clock of rank 0 decides. With several ranks it is asked only when about half of the
    remaining time has passed, judged by the pace so far: a few dozen messages per interval.

    Args:
        seconds: Of an interval; None chooses it by what the last save took: a minute, or as much
            more as keeps saving below 1% of the time, up to half an hour.
        clock: Counts seconds.
    """

    def __init__(self, seconds: float | None, clock: Callable[[], float]) -> None:
        self.seconds = _SHORTEST if seconds is None else seconds
        self._is_chosen = seconds is None
        self._clock = clock
        self.restart()

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Enclose a save, so that what it takes is known."""
        begin = self._clock() if self._is_chosen else 0.0
        yield
        if self._is_chosen:
            self.seconds = min(max(_SHORTEST, (self._clock() - begin) / _SHARE), _LONGEST)

    def restart(self) -> None:
        """Begin a new interval."""
        self._start = self._clock()
        self._n_batches = 0
        self._ask_at = 1
        self._due = False

    def is_due(self, trainer: pl.Trainer) -> bool:
        """Count one batch and say whether a save is due; it stays due until `restart`."""
        self._n_batches += 1
        if trainer.world_size == 1:
            return self._clock() - self._start >= self.seconds
        if not self._due and self._n_batches >= self._ask_at:
            left = trainer.strategy.broadcast(self._batches_left())
            self._due = left <= 0
            self._ask_at = self._n_batches + max(1, min(left // 2, _MOST_BATCHES))
        return self._due

    def _batches_left(self) -> int:
        elapsed = self._clock() - self._start
        if elapsed >= self.seconds:
            return 0
        pace = self._n_batches / max(elapsed, 1e-6)
        return max(1, int((self.seconds - elapsed) * pace))
