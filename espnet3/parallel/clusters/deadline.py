"""Time limit for cluster starts that may hang."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from espnet3.errors import ResourceError

_LOOK_SECONDS = 0.2


def start_within(
    seconds: float,
    start: Callable[[], Any],
    watch: Callable[[], None] = lambda: None,
    hint: Callable[[], str] = str,
) -> Any:
    """Return the cluster that `start` returns; one that comes too late is closed again.

    The start runs in a thread of its own, which is left alone after the deadline: it cannot be
    ended from outside.

    Args:
        seconds: the deadline, `parallel.start_timeout`.
        start: starts the cluster.
        watch: called several times a second meanwhile; what it raises ends the wait.
        hint: returns what to try, if the deadline is missed.

    Raises:
        ResourceError: after `seconds`.
        BaseException: whatever `start` or `watch` raises.
    """
    attempt = _Attempt(start)
    deadline = time.monotonic() + seconds
    try:
        while not attempt.ended.wait(_LOOK_SECONDS):
            watch()
            if time.monotonic() > deadline:
                raise ResourceError(
                    "The cluster did not start within parallel.start_timeout, "
                    f"{seconds:g} s. {hint()}".strip()
                )
    except BaseException:  # Ctrl-C as well
        attempt.abandon()
        raise
    if attempt.error is not None:
        raise attempt.error
    return attempt.cluster


class _Attempt:
    def __init__(self, start: Callable[[], Any]) -> None:
        self.ended = threading.Event()
        self.cluster: Any = None
        self.error: BaseException | None = None
        self._is_abandoned = False
        self._lock = threading.Lock()
        threading.Thread(target=self._run, args=[start], name="start", daemon=True).start()

    def _run(self, start: Callable[[], Any]) -> None:
        try:
            self.cluster = start()
        except BaseException as error:
            self.error = error
        with self._lock:
            self.ended.set()
            if not self._is_abandoned:
                return
        self._close()

    def abandon(self) -> None:
        with self._lock:
            self._is_abandoned = True
            if not self.ended.is_set():
                return
        self._close()

    def _close(self) -> None:
        if self.cluster is not None:
            with suppress(Exception):
                self.cluster.close()
