"""How long others have been silent, by a listener that may have slept itself."""

import time
from collections.abc import Callable, Mapping


class SilenceMeter:
    """Adds up, for each rank, the time in which its heartbeat did not change.

    Clocks of other machines play no role. Time in which the listener itself stood still (Ctrl-Z, a
    suspended job) does not count: then all were silent.

    Args:
        longest_step: seconds that count at most between two calls of `hear`.
        clock: for tests.
    """

    def __init__(self, longest_step: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._longest_step = longest_step
        self._clock = clock
        self._last_call: float | None = None
        self._beats: dict[int, bytes] = {}
        self._seconds: dict[int, float] = {}

    def hear(self, beats: Mapping[int, bytes]) -> None:
        """Take in the present heartbeats; a rank that is not among them is forgotten."""
        now = self._clock()
        since = 0.0 if self._last_call is None else now - self._last_call
        self._last_call = now
        seconds = {}
        for rank, beat in beats.items():
            is_new = self._beats.get(rank) != beat
            waited = self._seconds.get(rank, 0.0) + min(since, self._longest_step)
            seconds[rank] = 0.0 if is_new else waited
        self._beats, self._seconds = dict(beats), seconds

    def longest(self) -> tuple[int, float]:
        """Return the rank that has been silent for longest, and its seconds."""
        if not self._seconds:
            return 0, 0.0
        return max(self._seconds.items(), key=lambda item: item[1])
