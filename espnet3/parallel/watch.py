"""Notices attempts that make no progress."""

import logging
import time

from espnet3.parallel.pools import WorkerPool
from espnet3.parallel.tasks import ShardTask

logger = logging.getLogger(__name__)
_SLOW_SECONDS = 60.0


class Watch:
    """Looks how far each worker is, and replaces one that hangs.

    Args:
        item_timeout: seconds that one item, or batch, may take.
    """

    def __init__(self, item_timeout: float | None) -> None:
        self._item_timeout = item_timeout
        self._last: dict[str, tuple[int, float]] = {}
        self._warned: dict[str, float] = {}

    def begin(self, worker: str) -> None:
        """Note that a worker begins an attempt."""
        self._last[worker] = (-1, time.monotonic())

    def look(self, pool: WorkerPool, running: dict[str, ShardTask]) -> None:
        """Compare positions with those of the last look."""
        now = time.monotonic()
        for worker, position in pool.positions().items():
            known, since = self._last.get(worker, (-1, now))
            if position != known or worker not in running:
                self._last[worker] = (position, now)
            elif position >= 0:
                self._judge(pool, worker, running[worker], position, now - since)

    def _judge(
        self, pool: WorkerPool, worker: str, task: ShardTask, position: int, seconds: float
    ) -> None:
        if self._item_timeout is not None and seconds > self._item_timeout:
            pool.kill(worker, f"no item was finished in {self._item_timeout:g} s (item_timeout)")
            self.begin(worker)
        elif seconds - self._warned.get(worker, 0.0) > _SLOW_SECONDS or seconds < 1:
            self._warned[worker] = seconds
            if seconds > _SLOW_SECONDS:
                logger.warning(
                    "Item at position %d of shard %d has been running for %.0f s on worker %s. "
                    "To have such workers replaced, set parallel.item_timeout: 600.",
                    position, task.shard, seconds, worker,
                )  # fmt: skip
