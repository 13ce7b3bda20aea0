"""Open shards of a run, from listings of its folder; and how long they take.

A worker among many must not touch thousands of files to find its next shard. The names say nearly
all: a folder `split.7` is a committed shard, a file `split.7.claim` a claimed one. They may
be seen late, so a name that is not there proves nothing: the claim decides which worker runs a
shard, and the commit whose results count.

In a plan with groups, what misled is listed again group by group: the one in which a claim was
lost, or from which a shard of others is about to be taken.
"""

import bisect
import hashlib
import random
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from espnet3.io.shared_files import is_there, list_names
from espnet3.shards.commit import Done, names_by_group
from espnet3.shards.layout import claimed_name, shard_of, shard_of_attempt
from espnet3.shards.lease import Lease
from espnet3.shards.manifest import Manifest, run_order
from espnet3.shards.records import CrashNote

# A listing costs as much as the folder has entries, so it is used until it misleads: until so many
# claims were lost to others, or nothing in it is free. Its age matters only for finding the dead.
_MAX_LOST = 2
_RECENT_SECONDS = 2.0  # so young it is used again when a worker's own shards are done
_RING, _GOLDEN = 1 << 32, 2654435769
_SIMILAR = 0.5  # of the cost of the costliest: what may begin before it
_FRESH_SECONDS, _FRESH_SECONDS_PER_SHARD = 60.0, 0.05
_SETTLED_SECONDS = 120.0  # longer than any file system keeps names that are not true any more
_MET_SECONDS = 10.0
_KEEP_SECONDS = 15.0
_MAX_KEPT = 8  # with short shards, kept claims must not pile up
_MAX_TRIES = 10
# How many shards of others one look is spent on. Few are enough, however many workers there are:
# each looks at others at random, and when the living finish, the dead are all that is left.
_MAX_LOOKS = 2
_LOOK_SECONDS = 5.0
_REMEMBERED = 8  # finished shards by which the next ones are judged
_SAFETY = 1.2
_WHOLE_TIME = 0.75
_MIN_CUTS = 2


def _any(shard: int) -> bool:
    return True


def own_part(order: Sequence[int], owner_id: str, owner_ids: Iterable[str]) -> Sequence[int]:
    """Return the shards with which an owner begins; each is in the part of one of the owners.

    Owners that see the same list do not compete, and one that comes or goes changes the parts
    of the others by little: owners have points on a ring, a shard belongs to the next point
    (consistent hashing). Steps of the golden ratio along the ring spread shards of similar cost
    over all owners.
    """
    owners = {point: each for each in owner_ids for point in _points(each)}
    if set(owners.values()) == {owner_id}:
        return order
    points = sorted(owners)

    def is_own(place: int) -> bool:
        after = bisect.bisect_left(points, place * _GOLDEN % _RING)
        return owners[points[after % len(points)]] == owner_id

    return [shard for place, shard in enumerate(order) if is_own(place)]


def _points(owner_id: str) -> tuple[int, ...]:
    # Many, so that parts are of similar size.
    return struct.unpack("<64I", hashlib.shake_128(owner_id.encode()).digest(256))


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
        self._layout = manifest.layout(root)
        self._lease = lease
        self._order = run_order(manifest.costs)
        self._left = list(self._order)
        self._bounds, self._costs = manifest.bounds, manifest.costs
        # By owner: workers that start at once must not all reach for the same shard.
        self._random = random.Random(lease.owner.owner_id)
        self._listed, self._n_lost = float("-inf"), 0
        self._leases_listed = float("-inf")
        # When each group was listed last; without groups, the run folder is the only one.
        groups = range(max(self._layout.n_groups, 1))
        self._groups_listed = dict.fromkeys(groups, float("-inf"))
        # The more shards, the longer a listing takes, and the longer it has to serve.
        self._fresh_seconds = max(_FRESH_SECONDS, _FRESH_SECONDS_PER_SHARD * len(self._order))
        self._looked = time.monotonic()
        self._committed: set[int] = set()
        self._noted: dict[int, float] = {}
        self._claimed: set[int] = set()
        self._met: dict[int, float] = {}
        self._mine: set[int] = set()
        self._kept: deque[tuple[int, float]] = deque()
        self._n_owners = 1
        self._own: Sequence[int] = self._order
        self._attempts: dict[int, list[Path]] = {}
        self.n_items_done = 0
        """Items of the committed shards; a number, so that another thread may show it."""

    def refresh(self, max_age: float = 0.0) -> None:
        """List the folder, unless the last listing is younger than `max_age` seconds."""
        if time.monotonic() - self._listed <= max_age:
            return
        self._list_leases()  # first: what is released meanwhile is in the other list
        self._list_shards(list(filter(self._is_due, self._groups_listed)))
        self._listed, self._n_lost = time.monotonic(), 0

    def _refresh_at(self, shard: int) -> None:
        """Do the same for the group of a shard alone."""
        # Not again for each of several groups: claims that we lost are known anyway.
        if time.monotonic() - self._leases_listed > _RECENT_SECONDS or not self._layout.n_groups:
            self._list_leases()
        self._list_shards([self._layout.group_of(shard)])
        self._n_lost = 0
        if not self._layout.n_groups:
            self._listed = time.monotonic()

    def _is_due(self, group: int) -> bool:
        """Tell whether a listing of a group may show anything new: it is not complete, or was."""
        if time.monotonic() - self._groups_listed[group] > _SETTLED_SECONDS:
            return True  # shards may have been set aside
        shards = self._layout.shards_of_group(group)
        return not self._layout.n_groups or not self._committed.issuperset(shards)

    def _is_recent(self, shard: int) -> bool:
        listed = self._groups_listed[self._layout.group_of(shard)]
        return time.monotonic() - listed <= _RECENT_SECONDS

    def _list_leases(self) -> None:
        # An owner that we met at a shard is there, even if the list does not show it yet.
        self._leases_listed = now = time.monotonic()
        self._met = {s: t for s, t in self._met.items() if now - t < _MET_SECONDS}
        self._claimed = self._mine.union(self._met)
        owner_id = self._lease.owner.owner_id
        owner_ids = {owner_id}
        for name in list_names(self._lease.folder):
            if name.endswith(".owner"):
                owner_ids.add(name.removesuffix(".owner"))
            elif (shard := shard_of(claimed_name(name))) is not None:
                self._claimed.add(shard)
        self._n_owners = len(owner_ids)
        self._own = own_part(self._order, owner_id, owner_ids)

    def _list_shards(self, groups: Sequence[int]) -> None:
        found, self._attempts = self._kept_of_others(groups)
        for group, names in names_by_group(self._layout, groups).items():
            self._groups_listed[group] = time.monotonic()
            folder = Path(self._layout.group_path(group))
            for name in names:
                if (shard := self._layout.shard_in(group, name)) is not None:
                    if shard < self._layout.n_shards:
                        found.add(shard)
                elif (shard := shard_of_attempt(name)) is not None:
                    self._attempts.setdefault(shard, []).append(folder / name)
        # What we know to be published may be missing in the list for a while; not for ever, as it
        # may have been set aside.
        now = time.monotonic()
        self._noted = {s: t for s, t in self._noted.items() if now - t < _SETTLED_SECONDS}
        self._committed = found.union(self._noted)
        self._left = [shard for shard in self._order if shard not in self._committed]
        self.n_items_done = sum(map(self._n_items, self._committed))

    def _kept_of_others(self, groups: Sequence[int]) -> tuple[set[int], dict[int, list[Path]]]:
        """Return the committed shards and the attempts of the groups that are not listed now."""
        if not self._layout.n_groups:
            return set(), {}
        listed = {shard for group in groups for shard in self._layout.shards_of_group(group)}
        attempts = {shard: each for shard, each in self._attempts.items() if shard not in listed}
        return self._committed - listed, attempts

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
        return [shard for shard in self._left if self._is_free(shard)]

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
        return list(self._attempts.get(shard, []))

    def take(self, fits: Callable[[int], bool] = _any) -> int | None:
        """Claim a shard that is free, or whose owner died, preferring costly ones.

        Args:
            fits: whether to take a shard at all; the others are left to other workers.

        Returns:
            None if there is none for us now: nothing is left, fits, or is in dead hands.
        """
        self._release_kept()
        self.refresh(self._fresh_seconds)
        max_lost = _MAX_LOST
        for _ in range(_MAX_TRIES):
            dead = self._of_the_dead(fits)
            shard = self._own_or_other(fits) if dead is None else dead
            if shard is None:
                return None
            is_ours = self._claim(shard)
            if dead is not None or (self._n_lost >= max_lost and max_lost == _MAX_LOST):
                self._refresh_at(shard)  # with what the dead one left, or what others took
                max_lost *= 2
            elif self._n_lost >= max_lost:
                self.refresh()  # others came, and took of all groups
                max_lost *= 2  # if that misleads as well, names are seen late here
            if is_ours:
                return shard
        return None

    def _own_or_other(self, fits: Callable[[int], bool]) -> int | None:
        """Choose the costliest of our own shards; if it is too small, or none is left, another one.

        Others' shards are as the last listing showed them, so before one is taken there is a new
        one.
        """
        first = self._first(self._left, fits)
        if first is None or self._n_owners == 1:
            return first
        shard = self._choose_own(fits)
        while shard is None and (other := self._choose(self._left, fits)) is not None:
            if self._is_recent(other):
                return other
            self._refresh_at(other)
            shard = self._choose_own(fits)
            if shard is None:
                group = self._layout.shards_of_group(self._layout.group_of(other))
                shard = self._choose((s for s in self._left if s in group), fits)
        return shard

    def _choose_own(self, fits: Callable[[int], bool]) -> int | None:
        own, first = self._first(self._own, fits), self._first(self._left, fits)
        if own is None or first is None:
            return None
        # A long one of a slow or dead worker that starts late would hold up the whole run.
        return own if self._costs[own] >= self._costs[first] * _SIMILAR else None

    def _first(self, shards: Iterable[int], fits: Callable[[int], bool]) -> int | None:
        return next((shard for shard in shards if self._is_free(shard) and fits(shard)), None)

    def _is_free(self, shard: int) -> bool:
        return shard not in self._committed and shard not in self._claimed

    def _choose(self, shards: Iterable[int], fits: Callable[[int], bool]) -> int | None:
        """Choose one of the costliest free shards at random.

        Workers that all take the first few lose most of their claims to each other. Only among
        those of similar cost: a long one that starts late holds up the whole run.
        """
        free = [shard for shard in shards if self._is_free(shard) and fits(shard)]
        if not free:
            return None
        least = self._costs[free[0]] * _SIMILAR
        return self._random.choice([shard for shard in free if self._costs[shard] >= least])

    def _of_the_dead(self, fits: Callable[[int], bool]) -> int | None:
        """Return a shard whose owner died.

        As long as others are free one look at one of them is enough, now and then: with each
        worker looking, the dead are found soon. Later more are looked at.
        """
        if time.monotonic() - self._looked < _LOOK_SECONDS:
            return None
        self._looked = time.monotonic()
        held = [shard for shard in self.some_in_hands() if fits(shard)]
        if len(held) > 1 and self._first(self._left, fits) is not None:
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


@dataclass
class Pace:
    """Duration of shards, from those that are done and those that were cut off."""

    manifest: Manifest
    seconds_per_cost: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    load_seconds: float = 0.0
    at_least: dict[int, float] = field(default_factory=dict)
    """Seconds after which an attempt was cut off by the walltime, by shard."""
    n_cuts: dict[int, int] = field(default_factory=dict)

    def learn(self, done: Done) -> None:
        """Take a finished shard into account."""
        cost = self.manifest.costs[done.shard]
        if cost > 0:
            self.seconds_per_cost.append(done.seconds / cost)
        if done.load_seconds:
            self.load_seconds = done.load_seconds

    def learn_cuts(self, notes: Iterable[CrashNote], usable: float) -> None:
        """Take into account what the walltime cut off, `usable` being that of a new worker."""
        self.at_least, self.n_cuts = {}, {}
        for note in notes:
            if note.kind == "walltime":
                shard = note.shard
                self.at_least[shard] = max(self.at_least.get(shard, 0.0), note.seconds)
                if note.seconds > _WHOLE_TIME * usable:
                    self.n_cuts[shard] = self.n_cuts.get(shard, 0) + 1

    def expected(self, shard: int) -> float | None:
        """Return how long a shard is expected to take, once loaded; None if nothing is known."""
        if not self.seconds_per_cost:
            return self.at_least.get(shard)
        mean = sum(self.seconds_per_cost) / len(self.seconds_per_cost)
        return max(mean * self.manifest.costs[shard], self.at_least.get(shard, 0.0))

    def longest(self) -> float | None:
        """Return how long the costliest shard may take, with loading; None if nothing is known."""
        if not self.seconds_per_cost:
            return None
        return max(self.seconds_per_cost) * max(self.manifest.costs) + self.load_seconds

    def needed(self, shard: int, *, is_loaded: bool) -> float:
        """Return the time to keep free for a shard, loading included."""
        load = 0.0 if is_loaded else self.load_seconds
        # By the slowest shard seen: one that is cut off by the walltime is lost as a whole.
        slowest = max(self.seconds_per_cost, default=0.0) * self.manifest.costs[shard]
        return max(_SAFETY * (self.expected(shard) or 0.0), slowest) + load

    def is_hopeless(self, shard: int) -> bool:
        """Tell whether a shard was cut off again and again after a whole walltime."""
        return self.n_cuts.get(shard, 0) >= _MIN_CUTS
