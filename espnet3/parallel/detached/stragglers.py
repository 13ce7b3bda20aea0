"""Start a slow shard a second time when there is nothing else to do: the first commit wins."""

import logging
from pathlib import Path

from espnet3.parallel.detached.walltime import Pace
from espnet3.shards.board import Board
from espnet3.shards.lease import Lease
from espnet3.shards.manifest import Manifest
from espnet3.shards.position import read_position
from espnet3.shards.records import RecordPaths, read_deaths

logger = logging.getLogger(__name__)
_WORTH_IT = 1.5  # a second one must be expected to be done so much sooner
_MIN_SECONDS = 10.0
_HANGS, _HANGS_SECONDS = 3.0, 30.0


class Stragglers:
    """Finds shards in living hands that would be done sooner if one began them anew."""

    def __init__(
        self, root: Path, manifest: Manifest, board: Board, lease: Lease, pace: Pace
    ) -> None:
        self._layout = manifest.layout(root)
        self._paths = RecordPaths(root)
        self._manifest = manifest
        self._board = board
        self._lease = lease
        self._pace = pace
        self._claimed: set[int] = set()

    def _twin_name(self, shard: int) -> str:
        return f"{self._layout.shard_name(shard)}.twin"

    def release(self, shard: int) -> None:
        """Give the claim of a second attempt back, if there is one of ours."""
        if shard in self._claimed:
            self._claimed.discard(shard)
            self._lease.release(self._twin_name(shard))

    def choose(self, seconds_left: float, *, is_loaded: bool) -> int | None:
        """Claim the second attempt at the shard that needs longest; None if none is worth it."""
        slow: list[tuple[float, int]] = []
        for shard in self._board.in_hands():
            anew = self._anew(shard, is_loaded)
            if anew is None or anew > seconds_left:
                continue
            remaining = self.remaining(shard)
            if remaining > _WORTH_IT * anew + _MIN_SECONDS and not self._kills(shard):
                slow.append((remaining, shard))
        for remaining, shard in sorted(slow, reverse=True):
            if self._lease.claim(self._twin_name(shard)):
                self._claimed.add(shard)
                logger.info(
                    "Shard %d would take its worker another %s; it is started a second time",
                    shard, "while" if remaining == float("inf") else f"{remaining:.0f} s",
                )  # fmt: skip
                return shard
        return None

    def _kills(self, shard: int) -> bool:
        """Tell whether workers died at a shard: its owner is about to find out at which item."""
        return any(note.kind == "died" for note in read_deaths(self._paths, shard))

    def _anew(self, shard: int, is_loaded: bool) -> float | None:
        expected = self._pace.expected(shard)
        if expected is None:
            return None
        return expected + (0.0 if is_loaded else self._pace.load_seconds)

    def remaining(self, shard: int) -> float:
        """Return what its owner is expected to need for the rest of a shard, in seconds."""
        try:
            claimed = self._layout.claim(self._layout.shard_name(shard)).stat().st_mtime
        except OSError:
            return 0.0  # given back just now, or not to be told: then it is left to its owner
        elapsed = max(self._lease.now() - claimed, 0.0)
        start, stop = self._manifest.bounds[shard : shard + 2]
        share = max((self._position(a, start) for a in self._board.attempts(shard)), default=0)
        if share > 0:
            return elapsed * (stop - start - share) / share
        expected = (self._pace.expected(shard) or 0.0) + self._pace.load_seconds
        # Without any sign of progress it may hang; but not all machines are as quick to start.
        hangs = elapsed > _HANGS * expected + _HANGS_SECONDS
        return float("inf") if hangs else max(expected - elapsed, 0.0)

    def _position(self, attempt: Path, start: int) -> int:
        position = read_position(attempt)
        return max(position[0] - start, 0) if position else 0
