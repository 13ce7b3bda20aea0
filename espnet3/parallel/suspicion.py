"""Which item kills its workers: what is known of the deaths at a shard, and what follows."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from espnet3.parallel.tasks import ShardTask

Position = tuple[int, int]
"""The batch that was running: its first position, and the one behind its last."""


@dataclass(frozen=True)
class Death:
    """A worker that died at a shard, as far as one must know it to find the reason."""

    reason: str
    position: Position | None = None
    log: str = ""
    host: str = ""


@dataclass(frozen=True)
class Verdict:
    """What to do after a death: `again`, `halve` the batch, blame the `item`, or `give up`."""

    kind: Literal["again", "halve", "item", "give up"]
    start: int = -1
    stop: int = -1
    times: int = 0


@dataclass
class Suspicion:
    """What is known of the deaths of a shard's workers."""

    deaths: int = 0
    blamed: Counter[Position] = field(default_factory=Counter)
    is_isolating: bool = False
    machines: int = 0
    """Attempts that ended with trouble of their machine."""

    def judge(self, position: Position | None, task: ShardTask, retries: int) -> Verdict:
        """Count a death, and decide what to do next."""
        self.deaths += 1
        # At the end of the task the writers are being closed: no item is to blame.
        if position is None or position[0] >= task.stop:
            return Verdict("again" if self.deaths <= retries else "give up")
        self.blamed[position] += 1
        times = self.blamed[position]
        start, stop = position[0], min(position[1], task.stop)
        if times <= retries and not self.is_isolating:
            is_hopeless = self.deaths > 3 * (retries + 1)
            return Verdict("give up" if is_hopeless else "again", times=times)
        if stop - start > 1:
            self.is_isolating = True
            return Verdict("halve", start, stop, times)
        return Verdict("item", start, stop, times)
