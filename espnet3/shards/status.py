"""Status and speed of a run, finished or not, from its folder alone."""

import itertools
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from espnet3.errors import FileSystemError, RunFolderError
from espnet3.io.shared_files import look_time, warn_once
from espnet3.shards.commit import Done, read_done, read_position
from espnet3.shards.layout import origin_of_attempt, shard_of_attempt
from espnet3.shards.lease import LeaseLook, LeaseView
from espnet3.shards.manifest import Manifest, load_manifest, read_run_id, require_manifest
from espnet3.shards.merge import read_coverage, read_success
from espnet3.shards.pack import read_pack
from espnet3.shards.records import RecordPaths, StopMark, read_stop

_RECENT_SHARDS = 64
_POSITIONS_A_LOOK = 16
_GAP_SECONDS = 1.0
_BUILDING_SECONDS = 1.0  # an attempt begins some milliseconds after its claim
_BACKUP = ".twin"


@dataclass(frozen=True)
class RunningShard:
    """A running shard."""

    shard: int
    owner: str
    n_done: int
    n_items: int
    owner_id: str = ""
    seconds: float = 0.0
    """Since it was taken."""
    is_twin: bool = False
    """A second attempt runs as well, and the first to finish wins; so it counts once."""


@dataclass(frozen=True)
class BuildingShard:
    """A shard that waits until its worker has built the environment."""

    shard: int
    owner: str
    owner_id: str
    seconds: float
    """Since it was taken."""


@dataclass(frozen=True)
class RunStatus:
    """Progress of a run. Rates are over the most recent shards; None where nothing is known."""

    run_dir: str
    name: str
    state: str
    n_items: int
    n_done: int
    n_failed: int
    n_shards: int
    n_shards_done: int
    running: list[RunningShard]
    items_per_second: float | None
    eta_seconds: float | None
    seconds: float | None
    stop: StopMark | None = None
    """Why detached workers should end, and take no more."""
    is_detached: bool = False
    """Whether its workers need no driver."""
    building: list[BuildingShard] = field(default_factory=list)
    """Shards that were taken a moment ago or longer, and not begun: the model is being loaded."""

    @property
    def n_done_so_far(self) -> int:
        """Items done, those of unfinished shards included."""
        return self.n_done + sum(shard.n_done for shard in self.running if not shard.is_twin)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for `--json`."""
        return asdict(self)


def read_status(run_dir: Path) -> RunStatus:
    """Count what is done, running and failed, and estimate the time left."""
    return StatusReader(run_dir).read()


class StatusReader:
    """Reports the state of a run repeatedly; the record of each committed shard is read once."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self._load()

    def _load(self) -> None:
        self.manifest = require_manifest(self.run_dir)
        self._layout = self.manifest.layout(self.run_dir)
        self.committed: dict[int, Done] = {}
        """The shards that were committed at the last look."""
        self._known: dict[tuple[str, int], Done | None] = {}
        self._packed: tuple[int, dict[int, Done]] = (0, {})
        self._lease_view = LeaseView(self._layout.leases)
        self.leases = LeaseLook()
        """The owners and claims at the last look."""
        self.now = 0.0
        """When that was, by the clock of the file system."""
        self._positions: dict[Path, tuple[int, int] | None] = {}

    def read(self) -> RunStatus:
        """Look at the folder again."""
        if read_run_id(self.run_dir) != self.manifest.run_id:  # restarted
            self._load()
        manifest, layout = self.manifest, self._layout
        working = self._scan()
        done = list(self.committed.values())
        is_complete = len(self.committed) == manifest.n_shards
        success = read_success(layout, manifest.run_id)
        self.now = look_time(self.run_dir)
        self.leases = self._lease_view.look(self.now)
        owners = {owner_id: str(owner) for owner_id, owner in self.leases.owners.items()}
        running = self._running(working, owners) if owners and not is_complete else []
        # Once merged, the shards may have been removed to save room.
        n_done = manifest.n_items if success else sum(shard.n_items for shard in done)
        n_failed = success["n_failed"] if success else sum(shard.n_failed for shard in done)
        rate = _recent_rate(done, len(running))
        left = manifest.n_items - n_done - sum(s.n_done for s in running if not s.is_twin)
        records = RecordPaths(self.run_dir)
        stop = read_stop(records)
        return RunStatus(
            run_dir=str(self.run_dir),
            name=manifest.name,
            state=_state(success is not None, bool(owners), is_complete, stop),
            n_items=manifest.n_items,
            n_done=n_done,
            n_failed=n_failed,
            n_shards=manifest.n_shards,
            n_shards_done=manifest.n_shards if success else len(done),
            running=running,
            items_per_second=rate,
            eta_seconds=left / rate if rate and owners and not success else None,
            seconds=success["seconds"] if success else self._seconds(done, bool(owners)),
            stop=stop,
            is_detached=records.run.exists(),
            building=self._building(running, owners) if owners and not is_complete else [],
        )

    def _seconds(self, done: list[Done], has_owner: bool) -> float:
        """Return how long the run took: one that stopped last week did not take a week."""
        end = self.now if has_owner or not done else max(shard.finished for shard in done)
        # Plans of earlier versions have the time of the machine that made them.
        return max(end - self.manifest.created, 0.0)

    def _scan(self) -> dict[int, list[Path]]:
        """Note the committed shards, and return the folders of attempts, from one listing."""
        committed: dict[int, Done] = {}
        working: dict[int, list[Path]] = {}
        known = {}
        for group, entry in self._entries():
            if entry.name == self._layout.packed_index.name:
                committed |= self._read_packed(entry.inode())
            attempted = shard_of_attempt(entry.name)
            if attempted is not None:
                working.setdefault(attempted, []).append(Path(entry.path))
            shard = self._layout.shard_in(group, entry.name)
            if shard is None:
                continue
            # A shard that was computed again has the same name, but its folder is another one.
            key = (entry.name, entry.inode())
            done = self._known.get(key) or _read_done(entry.path)
            known[key] = done
            if done is not None and self._is_of_plan(done, shard):
                committed[shard] = done
        self._known, self.committed = known, committed
        return working

    def _entries(self) -> Iterator[tuple[int, os.DirEntry[str]]]:
        """Yield what the folders with shards hold, with the number of the group."""
        groups = {self._layout.group_name(group): group for group in range(self._layout.n_groups)}
        present = []
        for entry in os.scandir(self.run_dir):
            if entry.name in groups:
                present.append((groups[entry.name], entry.path))
            else:
                yield (-1 if groups else 0), entry
        for group, path in present:
            with suppress(FileNotFoundError):  # emptied and removed just now, by `tidy`
                yield from ((group, entry) for entry in os.scandir(path))

    def _read_packed(self, inode: int) -> dict[int, Done]:
        """Return the shards that were packed once the run was merged; read once."""
        if self._packed[0] != inode:
            try:
                pack = read_pack(self._layout, self.manifest.run_id)
                self._packed = (inode, pack.committed() if pack else {})
            except RunFolderError as error:  # a look must not end there
                warn_once(f"{error}")
                self._packed = (inode, {})
        return self._packed[1]

    def _is_of_plan(self, done: Done, shard: int) -> bool:
        manifest = self.manifest
        if shard >= manifest.n_shards or done.shard != shard or done.run_id != manifest.run_id:
            return False
        return [done.start, done.stop] == manifest.bounds[shard : shard + 2]

    def _running(
        self, working: dict[int, list[Path]], owners: dict[str, str]
    ) -> list[RunningShard]:
        claimed = self.leases.claims
        self._read_positions(folder for folders in working.values() for folder in folders)
        running = []
        for shard, folders in sorted(working.items()):
            if shard >= self.manifest.n_shards:
                continue
            name = self._layout.shard_name(shard)
            held = [claimed[claim] for claim in (name, name + _BACKUP) if claim in claimed]
            held = [(owner, since) for owner, since in held if owner in owners]
            for number, (owner, since) in enumerate(held):
                n_done, n_items = self._progress(shard, folders, owner)
                seconds = max(self.now - since, 0.0)
                running.append(
                    RunningShard(
                        shard, owners[owner], n_done, n_items, owner, seconds, is_twin=number > 0
                    )
                )
        return running

    def _building(self, running: list[RunningShard], owners: dict[str, str]) -> list[BuildingShard]:
        """Return the claimed shards without an attempt, of owners that have none at all.

        Of one that has, they are what its next workers will begin with, or those of a driver's
        pool that come later.
        """
        at_work = {shard.owner_id for shard in running}
        found = [
            BuildingShard(shard, owners[owner], owner, self.now - since)
            for name, (owner, since) in self.leases.claims.items()
            if owner in owners and owner not in at_work and self.now - since >= _BUILDING_SECONDS
            if (shard := self._layout.shard_named(name)) is not None and shard not in self.committed
        ]
        return sorted(found, key=lambda each: each.shard)

    def _read_positions(self, folders: Iterable[Path]) -> None:
        """Read how far attempts are: all new ones, and those that were not read for longest.

        Nothing tells from outside whether one has changed, so a look reads a few of many.
        """
        present = set(folders)
        known = {folder: at for folder, at in self._positions.items() if folder in present}
        due = [*itertools.islice(known, _POSITIONS_A_LOOK), *(present - known.keys())]
        for folder in due:
            known.pop(folder, None)  # to the end, as the last one that was read
            known[folder] = read_position(folder)
        self._positions = known

    def _progress(self, shard: int, folders: list[Path], owner: str) -> tuple[int, int]:
        """Return how many items of a shard an owner has done, and how many there are."""
        start, stop = self.manifest.bounds[shard : shard + 2]
        origins = {folder: origin_of_attempt(folder.name) for folder in folders}
        # Attempts of a driver's workers do not name their owner.
        own = [folder for folder, origin in origins.items() if origin is None or origin[0] == owner]
        positions = [position for folder in own if (position := self._positions.get(folder))]
        # An attempt that is left over from another run of this folder may be anywhere.
        n_done = max((p[0] - start for p in positions if start <= p[0] <= stop), default=0)
        return n_done, stop - start


def _read_done(shard_dir: str) -> Done | None:
    """Return what a shard says of itself; None if nothing that makes sense can be read from here.

    A look at a run must not end at one of its shards.
    """
    try:
        return read_done(shard_dir)
    except FileSystemError as error:
        warn_once(f"{error} It counts as not done here.")
    return None


def _state(is_merged: bool, has_owner: bool, is_complete: bool, stop: StopMark | None) -> str:
    if is_merged:
        return "complete"
    if has_owner:
        return "stopping" if stop else "running"
    if stop and (stop.kind == "failed" or not is_complete):
        return stop.kind
    return "not merged" if is_complete else "stopped"


def _recent_rate(done: list[Done], n_running: int) -> float | None:
    """Return items per second over the shards that finished last.

    The time between a stop and the resume does not count: while shards run, it is their number
    times the rate of one; afterwards, it goes back only as far as there is no gap.
    """
    recent = sorted(done, key=lambda shard: shard.finished)[-_RECENT_SHARDS:]
    if not n_running:
        recent = _last_burst(recent)
    n_items = sum(shard.n_items for shard in recent)
    seconds = sum(shard.seconds for shard in recent)
    elapsed = seconds / n_running if n_running else _wall_time(recent)
    return n_items / elapsed if elapsed > 0 else None


def _last_burst(shards: list[Done]) -> list[Done]:
    """Return the last shard of the latest uninterrupted period of work."""
    burst: list[Done] = []
    for shard in reversed(shards):
        if burst and shard.finished < min(s.finished - s.seconds for s in burst) - _GAP_SECONDS:
            break
        burst.append(shard)
    return burst


def _wall_time(shards: list[Done]) -> float:
    begun = min((shard.finished - shard.seconds for shard in shards), default=0.0)
    return max((shard.finished for shard in shards), default=0.0) - begun


@dataclass(frozen=True)
class Rate:
    """Time of a worker per item, loading apart."""

    seconds_per_item: float
    real_time_factor: float | None = None
    """Seconds of a worker for a second of audio; None where durations are not known."""
    load_seconds: float | None = None
    """Start-up time of one worker; None if unknown."""
    n_items: int = 0
    hosts: tuple[str, ...] = ()
    finished: float = 0.0
    """When the last of these items was done, in seconds since 1970."""


def read_rate(run_dir: Path) -> Rate | None:
    """Return how fast the shards went that are done in a folder; None if there are none.

    Raises:
        RunFolderError: if the manifest is damaged.
    """
    manifest = load_manifest(run_dir)
    if manifest is None or manifest.n_items == 0:
        return None
    done = list(read_coverage(run_dir, manifest).committed.values())
    return _of_shards(manifest, done) if done else _of_success(run_dir, manifest)


def _of_shards(manifest: Manifest, done: list[Done]) -> Rate:
    n_items = sum(shard.n_items for shard in done)
    seconds = sum(shard.seconds for shard in done)
    cost = sum(manifest.costs[shard.shard] for shard in done)
    # Only the first shard of a worker waits for the model.
    loads = [shard.load_seconds for shard in done if shard.load_seconds > 0]
    total = sum(manifest.costs)
    share = cost / total if total > 0 else n_items / manifest.n_items
    return Rate(
        seconds / n_items,
        _factor(seconds, manifest.audio_seconds, share),
        sum(loads) / len(loads) if loads else None,
        n_items,
        tuple(sorted({shard.host for shard in done})),
        max(shard.finished for shard in done),
    )


def _of_success(run_dir: Path, manifest: Manifest) -> Rate | None:
    """Return the rate of a run whose shards were removed after the merge to save room."""
    success = read_success(manifest.layout(run_dir), manifest.run_id)
    if success is None:
        return None
    seconds = success["worker_seconds"]
    return Rate(
        seconds / manifest.n_items,
        _factor(seconds, manifest.audio_seconds),
        n_items=manifest.n_items,
        hosts=tuple(success["hosts"]),
        finished=success["finished"],
    )


def _factor(seconds: float, audio_seconds: float | None, share: float = 1.0) -> float | None:
    return seconds / (audio_seconds * share) if audio_seconds and share > 0 else None
