"""Decide on all ranks together that it is time to save, almost without talking."""

from collections.abc import Callable

import lightning.pytorch as pl

_MOST_BATCHES = 1000


class SaveTimer:
    """Tells, batch by batch, whether the seconds since the last save are over.

    The clock of rank 0 decides. With several ranks it is asked only when about half of the
    remaining time has passed, judged by the pace so far: a few dozen messages per interval.
    """

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self.seconds = seconds
        self._clock = clock
        self.restart()

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
