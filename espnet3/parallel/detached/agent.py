"""A worker that needs no driver: it takes shards from a run folder until nothing is left."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from espnet3.parallel.detached.ending import EndSignals
from espnet3.parallel.pools import WorkerPool

OpenPool = Callable[[bytes, str], WorkerPool]
"""Starts the process that does the work, from the packed `RunSpec` and the path of its log."""


@dataclass(frozen=True)
class Identity:
    """What a worker knows of itself when it is started."""

    env: str = "local"
    job_id: str = ""
    generation: int = 0
    submitted: float | None = None
    walltime: float | None = None
    """Seconds after which the scheduler ends it, if nothing better is known."""


class Agent:
    """Works on one run folder.

    Args:
        root: the run folder.
        identity: who this worker is.
        signals: what may ask it to end.
        open_pool: starts the process that does the work; another one for tests.
        trust: the user whose code may be loaded, if not one's own.
    """

    def __init__(
        self,
        root: Path,
        identity: Identity,
        signals: EndSignals,
        *,
        open_pool: OpenPool | None = None,
        trust: str | None = None,
    ) -> None:
        self.root = root.resolve()
        self._identity = identity
        self._signals = signals
        self._open_pool = open_pool
        self._trust = trust

    def work(self, *, is_patient: bool = True) -> bool:
        """Work until nothing is left; return whether the run is complete and merged.

        An impatient one returns when what is left is in other hands.
        """
        raise NotImplementedError
