"""Open shards of a run, from one listing of its folder.

A worker among many must not touch thousands of files to find its next shard. The names say nearly
all: a folder `split.7` is a committed shard, a file `split.7.claim` a claimed one. They may
be seen late, so a name that is not there proves nothing: the claim decides which worker runs a
shard, and the commit whose results count.
"""

import random
import time
from collections import deque
from collections.abc import Callable
from itertools import chain
from pathlib import Path

from espnet3.shards.file_access import is_there, list_names
from espnet3.shards.layout import claimed_name, shard_of, shard_of_attempt
from espnet3.shards.lease import Lease
from espnet3.shards.manifest import Manifest
from espnet3.shards.plan import run_order

# A listing costs as much as the folder has entries, so it is used until it misleads: until so many
# claims were lost to others, or nothing in it is free. Its age matters only for finding the dead.
_MAX_LOST = 2
_FRESH_SECONDS, _FRESH_SECONDS_PER_SHARD = 60.0, 0.05
_SETTLED_SECONDS = 120.0  # longer than any file system keeps names that are not true any more
_MET_SECONDS = 10.0
_KEEP_SECONDS = 15.0
_MAX_KEPT = 8
_MAX_TRIES = 20
# How many shards of others one look is spent on. Few are enough, however many workers there are:
# each looks at others at random, and when the living finish, the dead are all that is left.
_MAX_LOOKS = 2
_LOOK_SECONDS = 5.0


def _any(shard: int) -> bool:
    return True


class OpenShards:
    """The shards of a run as one worker sees them: committed, in others' hands, or free.

    What is asked without `refresh` is answered from the last listing. Most shards are taken without
    a new one, at the cost of a few files, however many shards there are; see docs/file-systems.md.

    Example:
        ```python
        board = OpenShards(root, manifest, lease)
        while (shard := board.take()) is not None:
            ...  # run and commit it
            board.finished(shard)
        ```
    """

    def __init__(self, root: Path, manifest: Manifest, lease: Lease) -> None:
        self._root = root
        self._layout = manifest.layout(root)
        self._lease = lease
        self._order = run_order(manifest.costs)
        self._left = list(self._order)
        self._bounds, self._costs = manifest.bounds, manifest.costs
        # By owner: workers that start at once must not all reach for the same shard.
        self._random = random.Random(lease.owner.owner_id)
        self._listed, self._n_lost = float("-inf"), 0
        self._fresh_seconds = max(_FRESH_SECONDS, _FRESH_SECONDS_PER_SHARD * len(self._order))
        self._looked = time.monotonic()
        self._committed: set[int] = set()
        self._noted: dict[int, float] = {}
        self._claimed: set[int] = set()
        self._met: dict[int, float] = {}
        self._mine: set[int] = set()
        self._kept: deque[tuple[int, float]] = deque()
        self._n_owners = 1
        self._attempts: dict[int, list[str]] = {}
        self.n_items_done = 0
        """Items of the committed shards; a number, so that another thread may show it."""

    def refresh(self, max_age: float = 0.0) -> None:
        """List the folder, unless the last listing is younger than `max_age` seconds."""
        if time.monotonic() - self._listed <= max_age:
            return
        self._list_leases()  # first: what is released meanwhile is in the other list
        self._list_shards()
        self._listed, self._n_lost = time.monotonic(), 0

    def _list_leases(self) -> None:
        # An owner that we met at a shard is there, even if the list does not show it yet.
        now = time.monotonic()
        self._met = {s: t for s, t in self._met.items() if now - t < _MET_SECONDS}
        self._claimed, self._n_owners = self._mine.union(self._met), 0
        for name in list_names(self._lease.folder):
            if name.endswith(".owner"):
                self._n_owners += 1
            elif (shard := shard_of(claimed_name(name))) is not None:
                self._claimed.add(shard)

    def _list_shards(self) -> None:
        found: set[int] = set()
        self._attempts = {}
        for name in list_names(self._root):
            if (shard := shard_of(name)) is not None and name == self._layout.shard_name(shard):
                if shard < self._layout.n_shards:
                    found.add(shard)
            elif (shard := shard_of_attempt(name)) is not None:
                self._attempts.setdefault(shard, []).append(name)
        # What we know to be published may be missing in the list for a while; not for ever, as it
        # may have been set aside.
        now = time.monotonic()
        self._noted = {s: t for s, t in self._noted.items() if now - t < _SETTLED_SECONDS}
        self._committed = found.union(self._noted)
        self._left = [shard for shard in self._order if shard not in self._committed]
        self.n_items_done = sum(map(self._n_items, self._committed))

    def _n_items(self, shard: int) -> int:
        return self._bounds[shard + 1] - self._bounds[shard]

    @property
    def committed(self) -> frozenset[int]:
        """Shards whose folder is there. Only the merge looks whether they are intact."""
        return frozenset(self._committed)

    def n_left(self) -> int:
        """Return how many shards are not committed."""
        return len(self._order) - len(self._committed)

    def n_queued(self) -> int:
        """Return how many shards are neither committed nor ours."""
        return self.n_left() - len(self._mine)

    def is_complete(self) -> bool:
        """Tell whether all shards are committed, as far as their names tell."""
        return self.n_left() == 0

    def free(self) -> list[int]:
        """Return the unclaimed shards, the costliest first."""
        return [s for s in self._left if s not in self._committed and s not in self._claimed]

    def in_hands(self) -> list[int]:
        """Return the uncommitted shards that others have, dead or alive, the costliest first."""
        return [
            s
            for s in self._left
            if s in self._claimed and s not in self._committed and s not in self._mine
        ]

    def some_in_hands(self) -> list[int]:
        """Return a few of these at random."""
        held = self.in_hands()
        return self._random.sample(held, min(len(held), _MAX_LOOKS))

    def held(self) -> dict[int, str]:
        """Return the uncommitted shards in the hands of living owners, with the owner's id."""
        found = {s: self._lease.holder(self._layout.shard_name(s)) for s in self.in_hands()}
        return {shard: owner_id for shard, owner_id in found.items() if owner_id}

    def attempts(self, shard: int) -> list[Path]:
        """Return the folders of unfinished attempts at a shard, the dead ones' too."""
        return [self._root / name for name in self._attempts.get(shard, [])]

    def take(self, fits: Callable[[int], bool] = _any) -> int | None:
        """Claim a shard that is free, or whose owner died, preferring costly ones.

        Args:
            fits: whether to take a shard at all; the others are left to other workers.

        Returns:
            None if there is none for us now: nothing is left, fits, or is in dead hands.
        """
        self._release_kept()
        self.refresh(self._fresh_seconds)
        for _ in range(_MAX_TRIES):
            dead = self._of_the_dead(fits)
            shard = self._choose(fits) if dead is None else dead
            if shard is None:
                return None
            is_ours = self._claim(shard)
            if dead is not None or self._n_lost >= _MAX_LOST:
                self.refresh()  # with what the dead one left, or what others took
            if is_ours:
                return shard
        return None

    def _choose(self, fits: Callable[[int], bool]) -> int | None:
        """Choose one of the costliest free shards; among many workers, one of half of the free.

        Workers that all take the first few lose most of their claims to each other.
        """
        n_left = len(self._left)
        n_reach = max(n_left // 2, min(self._n_owners, n_left)) if self._n_owners > 1 else 1
        while n_reach > 1 and self._costs[self._left[n_reach - 1]] < self._costs[self._left[0]] / 2:
            n_reach //= 2
        start = self._random.randrange(n_reach) if n_reach > 1 else 0
        for place in chain(range(start, n_left), range(start)):
            shard = self._left[place]
            if shard not in self._committed and shard not in self._claimed and fits(shard):
                return shard
        return None

    def _of_the_dead(self, fits: Callable[[int], bool]) -> int | None:
        """Return a shard whose owner died.

        As long as others are free one look at one of them is enough, now and then: with each
        worker looking, the dead are found soon. Later more are looked at.
        """
        if time.monotonic() - self._looked < _LOOK_SECONDS:
            return None
        self._looked = time.monotonic()
        held = [shard for shard in self.some_in_hands() if fits(shard)]
        if len(held) > 1 and self._choose(fits) is not None:
            del held[1:]
        return next((s for s in held if not self._lease.is_held(self._layout.shard_name(s))), None)

    def _claim(self, shard: int) -> bool:
        name = self._layout.shard_name(shard)
        if not self._lease.claim(name):
            self._claimed.add(shard)
            self._met[shard] = time.monotonic()
            self._n_lost += 1
            return False
        if is_there(self._layout.shard(shard)):  # committed and released since the listing
            self.finished(shard)
            self._n_lost += 1
            return False
        self._mine.add(shard)
        self._claimed.add(shard)
        return True

    def finished(self, shard: int) -> None:
        """Note that a shard is committed, by us or by another.

        The claim is given back a little later: one that does not see the commit yet cannot get it,
        and so does not run the shard again.
        """
        if shard not in self._committed:
            self._committed.add(shard)
            self.n_items_done += self._n_items(shard)
        self._noted[shard] = time.monotonic()
        self._mine.discard(shard)
        self._kept.append((shard, time.monotonic()))

    def _release_kept(self) -> None:
        while self._kept:
            shard, since = self._kept[0]
            if len(self._kept) <= _MAX_KEPT and time.monotonic() - since < _KEEP_SECONDS:
                break
            self._kept.popleft()
            self.release(shard)

    def release(self, shard: int) -> None:
        """Release a shard, done or not, so that others can take it at once."""
        self._mine.discard(shard)
        self._claimed.discard(shard)
        self._lease.release(self._layout.shard_name(shard))
