"""Which shard a worker takes next, or why it takes none."""

import random
import time
from collections.abc import Callable
from pathlib import Path

from espnet3.errors import ResourceError
from espnet3.parallel.detached.ending import HandBack
from espnet3.parallel.detached.stragglers import Stragglers
from espnet3.parallel.detached.walltime import Pace, Walltime, too_long
from espnet3.shards.board import Board
from espnet3.shards.lease import Lease

_FIRST_PAUSE, _MAX_PAUSE = 0.5, 10.0
_TROUBLE_PAUSE, _MAX_TROUBLE_PAUSE = 2.0, 30.0
_MIN_PATIENCE, _MAX_PATIENCE = 600.0, 3600.0
_STANDBY = ("standby.0", "standby.1")


class Choice:
    """Takes shards from the board as far as the worker's time and machine allow.

    Args:
        root: the run folder.
        board: what is left, and in whose hands.
        lease: the worker's presence in the folder.
        walltime: until when it may work.
        pace: how long shards take.
        stragglers: finds slow shards.
        is_patient: whether to wait for shards in other hands.
        before_look: called before each look at the board; it may raise.
    """

    def __init__(
        self,
        root: Path,
        board: Board,
        lease: Lease,
        *,
        walltime: Walltime,
        pace: Pace,
        stragglers: Stragglers,
        is_patient: bool = True,
        before_look: Callable[[], object] = bool,
    ) -> None:
        self._root, self._board, self._lease = root, board, lease
        self._walltime, self._pace, self._stragglers = walltime, pace, stragglers
        self._is_patient, self._before_look = is_patient, before_look
        self._avoided: dict[int, float] = {}
        self._next_look = 0.0
        self._pause = _FIRST_PAUSE
        self._standby = ""
        self._n_troubles = self._n_taken = 0
        self.is_loaded = False
        """Whether the model is loaded: the next shard will not wait for it."""
        self.is_finished = False
        """Whether all shards were committed at the last look."""

    def next(self) -> int | None:
        """Claim a shard; None if there is none for us now.

        Raises:
            HandBack: if there will be none for this worker.
            ResourceError: if what is left fits into no worker's time.
        """
        if self.is_finished or time.monotonic() < self._next_look:
            return None
        self._before_look()
        shard = self._board.take(self._fits)
        if shard is None:
            shard = self._second_look()
        if shard is None:
            # Many workers may have begun to wait in the same moment.
            self._next_look = time.monotonic() + self._pause * random.uniform(0.7, 1.3)
            self._pause = min(self._pause * 1.5, _MAX_PAUSE)
            return None
        self._pause = _FIRST_PAUSE
        self._n_taken += 1
        self._leave_standby()
        return shard

    def succeeded(self) -> None:
        """Note that a shard was finished here: the machine is well."""
        self.is_loaded = True
        self._n_troubles = 0

    def avoid(self, shard: int, seconds: float) -> None:
        """Leave a shard to others for a while, and be slower to take the next one."""
        self._n_troubles += 1
        self._avoided[shard] = time.monotonic() + seconds
        pause = min(_TROUBLE_PAUSE * self._n_troubles, _MAX_TROUBLE_PAUSE)
        self._next_look = time.monotonic() + pause

    def patience(self) -> float:
        """Return for how long a shard is left to others, who may be busy with another one."""
        longest = self._pace.longest()
        return _MAX_PATIENCE if longest is None else max(_MIN_PATIENCE, 3 * longest)

    def _fits(self, shard: int) -> bool:
        if self._is_avoided(shard):
            return False
        return self._pace.needed(shard, is_loaded=self.is_loaded) <= self._walltime.left()

    def _is_avoided(self, shard: int) -> bool:
        return self._avoided.get(shard, 0.0) > time.monotonic()

    def _second_look(self) -> int | None:
        self._board.refresh()
        shard = self._board.take(self._fits)
        if shard is not None:
            return shard
        if self._board.is_complete():
            self.is_finished = True
            return None
        if free := self._board.free():
            ours = [shard for shard in free if not self._is_avoided(shard)]
            # Those that fit are about to be somebody else's: we met others at them.
            is_too_late = not ours or any(self._fits(shard) for shard in ours)
            return None if is_too_late else self._squeeze(ours)
        return self._help_others()

    def _squeeze(self, free: list[int]) -> int | None:
        """Take a shard that seems too long if a new worker had no more time for it either."""
        left = self._walltime.left()
        is_first = not self._n_taken and left > self._walltime.usable / 2  # it was slow to start
        if not is_first and not self._walltime.is_fresh():
            raise HandBack(f"none of {len(free)} shards fits into the {max(left, 0):.0f} s left")
        hopeful = [shard for shard in free if not self._pace.is_hopeless(shard)]
        if hopeful:
            shortest = min(hopeful, key=lambda s: self._pace.needed(s, is_loaded=self.is_loaded))
            return self._board.take(lambda shard: shard == shortest)
        if self._board.in_hands():
            raise HandBack(f"{len(free)} shards are too long for the walltime; others go on")
        raise ResourceError(too_long(self._root, self._pace, free[0], self._walltime))

    def _help_others(self) -> int | None:
        """Run the slowest shard in other hands a second time, or wait until one is given back."""
        n_left = self._board.n_left()
        if not self._is_patient:
            raise HandBack(f"nothing to take: {n_left} shards are in other hands", ends_all=False)
        twin = self._stragglers.choose(self._walltime.left(), is_loaded=self.is_loaded)
        if twin is not None:
            return twin
        if not self.stands_by():
            raise HandBack(
                f"nothing to take: {n_left} shards are in other hands, and others stand by",
                ends_all=False,
            )
        return None

    def stands_by(self) -> bool:
        """Become one of the few that wait; False if there are enough."""
        if not self._standby:
            self._standby = next((name for name in _STANDBY if self._lease.claim(name)), "")
        return bool(self._standby)

    def _leave_standby(self) -> None:
        if self._standby:
            self._lease.release(self._standby)
            self._standby = ""
