"""The queue of shards of a run folder, shared by any number of drivers and detached workers.

All that others must know is in the folder: claims, commits, stop marks, notes of deaths. So runs
differ in nothing but their pool, and any mixture of processes can share one. A worker with a
walltime takes only what fits into it.
"""

import logging
import os
import random
import shlex
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from espnet3.errors import FileSystemError, ItemError, ResourceError
from espnet3.io.shared_files import steady_time
from espnet3.parallel.faults import (
    Death,
    FaultPolicy,
    avoided_nodes,
    check_stop,
    deaths_at,
    record_deaths,
    too_many_message,
)
from espnet3.parallel.folder_run import count_failed
from espnet3.parallel.signals import EndSignals, ReleaseClaims
from espnet3.parallel.tasks import Failure, ShardAttempt, ShardResult
from espnet3.schedulers import Scheduler, possible_schedulers, scheduler_of
from espnet3.shards.commit import Done, attempts, discard_attempt, read_done, read_position
from espnet3.shards.layout import backup_name
from espnet3.shards.lease import Lease
from espnet3.shards.manifest import Manifest
from espnet3.shards.open_shards import OpenShards, Pace
from espnet3.shards.plan import batch_edges
from espnet3.shards.records import (
    CrashNote,
    DeathKind,
    OwnRecord,
    RecordPaths,
    read_deaths,
    sample_workers,
    write_death,
)
from espnet3.text import count

if TYPE_CHECKING:
    from espnet3.shards.manifest import Items


logger = logging.getLogger(__name__)
# When nothing is free, a look takes some ten operations: less than one a second.
_FIRST_BACKOFF, _MAX_BACKOFF = 0.5, 15.0
_MACHINE_BACKOFF, _MAX_MACHINE_BACKOFF = 2.0, 30.0
_MIN_FOR_OTHERS, _MAX_FOR_OTHERS = 600.0, 3600.0
_ELSEWHERE_SECONDS = 10.0
_HERE_SECONDS, _MAX_HERE_SECONDS = 5.0, 60.0
_NODE_SECONDS = 60.0
_SIGNAL_SECONDS = 2.0
# Without SIGKILL, which is also what the kernel sends when memory runs out.
_ENDED_BY_SCHEDULER = ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGINT")
_STANDBY = ("standby.0", "standby.1")
_SAMPLED = 8
_SAMPLED_RECORDS = 16
# A second attempt at a slow shard must be expected to be done so much sooner than the first.
_WORTH_IT, _MIN_TWIN_SECONDS = 1.5, 10.0
_HANGS, _HANGS_SECONDS = 3.0, 30.0


class ShardQueue:
    """The shards of a run folder, as one driver or one detached worker takes them.

    A driver has a pool of several workers, waits until all shards are done, and tries what died
    again. A detached worker has one child and its own end: it takes only what fits into its
    walltime, leaves to other nodes what its node cannot bear, and ends when others suffice.

    Args:
        root: the run folder.
        manifest: its plan.
        items: in dataset order; None to read those of a shard from the folder.
        lease: this process's presence in the folder.
        record: of this process.
        policy: what the run puts up with.
        signals: what may ask a detached worker to end; None for a driver.
        walltime: until when a detached worker may work.
        is_patient: whether a detached worker waits for shards claimed by others.
    """

    is_on_disk = True

    def __init__(  # noqa: PLR0913 - what one worker consists of
        self,
        root: Path,
        manifest: Manifest,
        items: "Items | None",
        lease: Lease,
        *,
        record: OwnRecord,
        policy: FaultPolicy,
        signals: EndSignals | None = None,
        walltime: "Walltime | None" = None,
        is_patient: bool = True,
    ) -> None:
        self._items, self._edges = manifest.open_items(root, items), manifest.load_edges(root)
        self._root, self._manifest, self._layout = root, manifest, manifest.layout(root)
        self._paths = RecordPaths(root)
        self._lease, self._record, self._policy = lease, record, policy
        self._signals, self._is_driver = signals, signals is None
        self._walltime, self._is_patient = walltime or Walltime(time.time()), is_patient
        self._board = OpenShards(root, manifest, lease)
        self.pace = Pace(manifest)
        """How long shards take."""
        self._begun: dict[int, float] = {}
        self._notes: list[CrashNote] = []
        self._backups: set[int] = set()
        self._avoided: dict[int, float] = {}
        self._next_look = self._next_node_look = 0.0
        self._backoff = _FIRST_BACKOFF
        self._standby = ""
        self._n_machine_errors = self._n_taken = self._n_own_items = self._n_miscounted = 0
        self._had_machine_error = self._is_loaded = self._is_waiting = False

    def prepare(self) -> None:
        """Learn from what is there: what dead workers left, and how long shards take.

        Raises:
            ItemError: if more items failed than may.
            FileSystemError: if this node cannot read what others published.
        """
        found = list(attempts(self._layout).items())
        # A few are enough: the worker that takes one of the other shards buries its dead attempt.
        for shard, folders in random.sample(found, min(len(found), _SAMPLED)):
            # Of shards without an owner only: a living one's may be seen before its owner file.
            if not self._lease.is_held(self._layout.shard_name(shard)):
                record_deaths(self._root, folders, self._lease)
        self._board.refresh()
        for shard in sorted(self._board.committed)[-_SAMPLED:]:
            # Not suppressed: a node that cannot read what others published must not begin.
            done = read_done(self._layout.shard(shard))
            if done is not None:
                self.pace.learn(done)
        self._check_failed()

    def is_finished(self) -> bool:
        """Tell whether all shards are committed, as far as their names tell."""
        return self._board.is_complete()

    def is_waiting(self) -> bool:
        """Tell whether what is left is claimed by others; a detached worker decides that itself."""
        return self._is_waiting or not self._is_driver

    def n_queued(self) -> int:
        """Return how many shards are neither committed nor ours: others may be gone tomorrow."""
        return self._board.n_queued()

    def n_items_of_others(self, n_before: int) -> int:
        """Return how many items others have done since there were `n_before`."""
        return max(self._board.n_items_done - n_before - self._n_own_items, 0)

    # Taking

    def take(self) -> ShardAttempt | None:
        """Claim the next shard, with what is known of it; None if there is none for us now.

        Raises:
            ReleaseClaims: if there will be none for this worker.
            ResourceError: if what is left fits into no worker's time.
        """
        shard = self._next()
        if shard is None:
            return None
        name = self._layout.shard_name(shard)
        if name in self._lease.taken_over:
            self._lease.taken_over.discard(name)
            self._board.refresh()  # its owner may have begun since the last listing
        # Before the notes are read: the owner before us may have died without leaving one.
        record_deaths(self._root, self._board.attempts(shard), self._lease)
        self._notes = read_deaths(self._paths, shard)
        if self._is_for_others(self._notes):
            self._leave(shard, _ELSEWHERE_SECONDS)
            return None
        start, stop = self._manifest.bounds[shard : shard + 2]
        return ShardAttempt(
            shard,
            start,
            self._items[start:stop],
            edges=None if self._edges is None else batch_edges(self._edges, start, stop),
            owner_id=self._lease.owner.owner_id,
            blames_item=self._blames_item(self._notes),
        )

    def _next(self) -> int | None:
        if self._board.is_complete() or time.monotonic() < self._next_look:
            return None
        # A driver is interrupted by its `StopWatch` instead.
        if not self._is_driver:
            check_stop(self._root)
            self._check_node()
        shard = self._board.take(self._fits)
        if shard is None:
            shard = self._second_look()
        if shard is None:
            # Many workers may have begun to wait in the same moment.
            self._next_look = time.monotonic() + self._backoff * random.uniform(0.7, 1.3)
            # Growing: a thousand waiting workers must not keep the file server busy.
            self._backoff = min(self._backoff * 1.5, _MAX_BACKOFF)
            return None
        self._backoff, self._is_waiting = _FIRST_BACKOFF, False
        self._n_taken += 1
        self._leave_standby()
        return shard

    def _fits(self, shard: int) -> bool:
        if self._is_avoided(shard):
            return False
        if self._walltime.limit is None:
            return True
        return self.pace.needed(shard, is_loaded=self._is_loaded) <= self._walltime.left()

    def _is_avoided(self, shard: int) -> bool:
        return self._avoided.get(shard, 0.0) > time.monotonic()

    def _second_look(self) -> int | None:
        self._board.refresh()
        shard = self._board.take(self._fits)
        if shard is not None or self._board.is_complete():
            return shard
        if free := self._board.free():
            ours = [shard for shard in free if not self._is_avoided(shard)]
            # Those that fit are about to be claimed by others: our claims lost.
            is_too_late = not ours or any(self._fits(shard) for shard in ours)
            return None if is_too_late else self._squeeze(ours)
        self._is_waiting = True
        return self._help_others()

    def _squeeze(self, free: list[int]) -> int | None:
        """Take a shard that seems too long if a new worker had no more time for it either."""
        left = self._walltime.left()
        is_first = not self._n_taken and left > self._walltime.usable / 2  # it was slow to start
        if not is_first and not self._walltime.is_fresh():
            seconds = f"{max(left, 0):.0f} s"
            raise ReleaseClaims(f"none of {len(free)} shards fits into the {seconds} left")
        hopeful = [shard for shard in free if not self.pace.is_hopeless(shard)]
        if hopeful:
            shortest = min(hopeful, key=lambda s: self.pace.needed(s, is_loaded=self._is_loaded))
            # Through `take`, because only making the claim tells whether it is still free.
            return self._board.take(lambda shard: shard == shortest)
        if self._board.in_hands():
            raise ReleaseClaims(f"{len(free)} shards exceed the walltime; other workers continue")
        raise ResourceError(too_long(self._root, self.pace, free[0], self._walltime))

    def _help_others(self) -> int | None:
        """Back up the slowest shard of others, or wait until one is released."""
        n_left = self._board.n_left()
        left = f"{count(n_left, 'shard')} {'is' if n_left == 1 else 'are'} claimed by others"
        if not self._is_patient:
            raise ReleaseClaims(f"nothing to take: {left}", ends_all=False)
        # A frozen node is noticed only after a minute; a backup attempt makes up for it (ADR 18).
        backup = self._take_backup()
        if backup is None and not self._is_driver and not self.stands_by():
            raise ReleaseClaims(f"nothing to take: {left}, and others stand by", ends_all=False)
        return backup

    def stands_by(self) -> bool:
        """Become one of the few that wait; False if there are enough."""
        if not self._standby:
            # A few stay to take over from the dead; the rest give their nodes back instead of
            # idling.
            self._standby = next((name for name in _STANDBY if self._lease.claim(name)), "")
        return bool(self._standby)

    def _leave_standby(self) -> None:
        if self._standby:
            self._lease.release(self._standby)
            self._standby = ""

    def _check_node(self) -> None:
        """Leave a node on which everything dies.

        Raises:
            ReleaseClaims: with the reason.
        """
        if not self._had_machine_error and time.monotonic() < self._next_node_look:
            return
        self._had_machine_error = False
        self._next_node_look = time.monotonic() + _NODE_SECONDS
        notes = read_deaths(self._paths)
        self.pace.learn_cuts(notes, self._walltime.usable)
        host, now = self._lease.owner.host, self._lease.now()
        here = [note for note in notes if note.host == host]
        if why := avoided_nodes(self._root, self._manifest, here, now).get(host):
            raise ReleaseClaims(f"{host} is avoided: {why}", code=1)

    # Twins of stragglers: the first commit wins

    def _take_backup(self) -> int | None:
        """Claim the second attempt at the shard that needs longest; None if none is worth it."""
        slow: list[tuple[float, int]] = []
        for shard in self._board.some_in_hands():
            expected = self.pace.expected(shard)
            if expected is None:
                continue
            again = expected + (0.0 if self._is_loaded else self.pace.load_seconds)
            # A second attempt that our own walltime cuts off would be of no use.
            remaining = self._remaining(shard) if again <= self._walltime.left() else 0.0
            is_worth_it = remaining > _WORTH_IT * again + _MIN_TWIN_SECONDS
            if is_worth_it and not self._kills(shard):
                slow.append((remaining, shard))
        for remaining, shard in sorted(slow, reverse=True):
            # Under a claim of its own: the first attempt keeps its claim, and two are enough.
            if self._lease.claim(backup_name(self._layout.shard_name(shard))):
                self._backups.add(shard)
                logger.info(
                    "Shard %d would take its worker another %s; it is started a second time",
                    shard, "while" if remaining == float("inf") else f"{remaining:.0f} s",
                )  # fmt: skip
                return shard
        return None

    def _kills(self, shard: int) -> bool:
        """Tell whether workers died at a shard: its owner is about to find out at which item."""
        return any(note.kind == "died" for note in read_deaths(self._paths, shard))

    def _remaining(self, shard: int) -> float:
        """Return what its owner is expected to need for the rest of a shard, in seconds."""
        try:
            # A claim is not touched after it is made, so its time is when the shard was taken.
            claimed = self._layout.claim(self._layout.shard_name(shard)).stat().st_mtime
        except OSError:
            return 0.0  # released just now, or unreadable: then it is left to its owner
        elapsed = max(self._lease.now() - claimed, 0.0)
        start, stop = self._manifest.bounds[shard : shard + 2]
        positions = (read_position(attempt) for attempt in self._board.attempts(shard))
        n_done = max((position[0] - start for position in positions if position), default=0)
        if n_done > 0:
            return elapsed * (stop - start - n_done) / n_done
        expected = (self.pace.expected(shard) or 0.0) + self.pace.load_seconds
        # Without any sign of progress it may hang; but not all machines are as quick to start.
        hangs = elapsed > _HANGS * expected + _HANGS_SECONDS
        return float("inf") if hangs else max(expected - elapsed, 0.0)

    # Attempts

    def new_attempt(self, task: ShardAttempt) -> str | None:
        """Return the name of a folder for an attempt; a detached worker's names its owner.

        A driver's does not: what is left does not tell which of its workers ran it.
        """
        if self._is_driver:
            attempt = self._layout.new_attempt(task.shard)
        else:
            self.settle("failed")
            owner_id, now = self._lease.owner.owner_id, self._lease.now()
            attempt = self._layout.new_attempt(task.shard, owner_id, now)
            logger.info(
                "shard %d begins (attempt %s, items %d to %d)",
                task.shard, attempt.name, task.start, task.stop - 1,
            )  # fmt: skip
        self._begun[task.shard] = time.monotonic()
        return str(attempt)

    def clean_up(self, task: ShardAttempt) -> None:
        """Remove the attempt's folder, if it is still there."""
        if task.attempt:
            discard_attempt(Path(task.attempt))

    def is_committed(self, task: ShardAttempt) -> bool:
        """Tell whether the shard was published, by this attempt or another."""
        done = read_done(self._layout.shard(task.shard))
        return done is not None and done.run_id == self._manifest.run_id

    def is_superseded(self, task: ShardAttempt) -> bool:
        """Tell whether another owner published the shard that a worker of ours is running."""
        done = self._peek(task.shard)
        if done is None or done.run_id != self._manifest.run_id:
            return False
        is_superseded = done.owner_id != self._lease.owner.owner_id
        self._is_loaded = self._is_loaded and not is_superseded  # its worker will be replaced
        return is_superseded

    def finished(self, task: ShardAttempt) -> None:
        """Give the claim back: the commit says all."""
        self._n_own_items += len(task.items)
        self._next_look, self._backoff = 0.0, _FIRST_BACKOFF
        self._board.finished(task.shard)
        self._release_backup(task.shard)

    def count(self, result: ShardResult) -> None:
        """Take a finished attempt into account.

        Raises:
            ItemError: if more items failed than may, those of other workers included.
        """
        done, shard = result.done, result.task.shard
        assert done is not None
        self._is_loaded, self._n_machine_errors = True, 0
        self.pace.learn(done)
        published = done if self._is_driver else read_done(self._layout.shard(shard))
        if published is not None and published.owner_id != done.owner_id:
            self._end(shard, "another worker was done sooner", is_lost=True)
        else:
            self._record.published(done)
            failed = f", failed: {done.n_failed}" if done.n_failed else ""
            self._end(shard, f"done, items: {done.n_items}, {done.seconds:.1f} s{failed}")
        if done.n_failed and not self._is_driver:  # a driver's dispatcher counts itself
            self._record.write()  # others add it up
            self._check_failed()

    def settle(self, how: str) -> None:
        """Note how the last attempt ended, if nothing did: by its commit, another's, or `how`."""
        for shard in list(self._begun):
            done = self._peek(shard)
            if done is None or done.run_id != self._manifest.run_id:
                self._end(shard, how, is_lost=True)
            elif done.owner_id == self._lease.owner.owner_id:  # it could not say so any more
                self._record.published(done)
                self._end(shard, "done")
            else:
                self._end(shard, "another worker was done sooner", is_lost=True)

    def release(self, shards: Sequence[int]) -> None:
        """Give shards free that were taken for done; claims of finished ones are kept a while."""
        for shard in shards:
            self._board.release(shard)

    def _check_failed(self) -> None:
        """Compare the failed items of all workers with `max_errors`, by a few of their records.

        The shards themselves are counted only where the records say too much. They do so after
        `retry`, which computes shards again, and too little if a worker died before it could write.
        """
        limit = self._policy.max_errors
        if limit is None or self._is_driver:
            return
        owner_id = self._lease.owner.owner_id
        others, n_others = sample_workers(self._paths, _SAMPLED_RECORDS, without=owner_id)
        of_others = sum(record.n_failed for record in others) * n_others / max(len(others), 1)
        counted = self._record.record.n_failed + round(of_others)
        if counted - self._n_miscounted > limit:
            self._n_miscounted = counted - self.check_all_failed()

    def check_all_failed(self) -> int:
        """Return how many items of committed shards failed, which takes a look at each of them.

        Raises:
            ItemError: if these are more than may.
        """
        n_failed = count_failed(self._layout, self._manifest)
        if self._policy.max_errors is not None and n_failed > self._policy.max_errors:
            raise ItemError(too_many_message(n_failed, self._policy))
        return n_failed

    def _peek(self, shard: int) -> Done | None:
        """Return what a shard says of itself where nothing depends on what cannot be read."""
        with suppress(FileSystemError):
            return read_done(self._layout.shard(shard))
        return None

    def _end(self, shard: int, how: str, *, is_lost: bool = False) -> None:
        if is_lost:
            self._record.lost(self._seconds(shard))
        self._begun.pop(shard, None)
        if not self._is_driver:  # the log of one child: `espnet3 logs --shard` cuts it there
            logger.info("shard %d ends: %s", shard, how)

    def _seconds(self, shard: int) -> float:
        begun = self._begun.get(shard)
        return time.monotonic() - begun if begun else 0.0

    # Deaths and machine errors

    def deaths(self, task: ShardAttempt) -> Sequence[Death]:
        """Return the deaths noted at the shard that was just taken, of whichever owner."""
        return deaths_at(self._notes, self._root)

    def died(self, task: ShardAttempt, death: Death) -> bool:
        """Note the death of a worker of ours; tell whether the shard is left to another node."""
        self._await_signal(death.reason)
        self._is_loaded = False
        kind: DeathKind = "died" if death.position else "machine"
        self._note(task, death.reason, kind, death.position, death.log, death.host)
        self._end(task.shard, f"its worker died: {death.reason}", is_lost=True)
        if self._is_driver:
            return False
        self._record.write()
        is_left = self._is_for_others(read_deaths(self._paths, task.shard))
        if is_left:
            self._leave(task.shard, _ELSEWHERE_SECONDS)
        return is_left

    def leave_to_others(self, task: ShardAttempt, failure: Failure) -> bool:
        """Give a shard back that this machine cannot bear; without others, it is tried later.

        A driver does not: another of its workers may have more luck.
        """
        if self._is_driver:
            return False
        position = (failure.position, failure.position + 1)
        self._note(task, failure.error, "machine", position, failure.log)
        self._end(task.shard, f"this machine cannot continue it: {failure.error}", is_lost=True)
        self._record.write()
        notes = read_deaths(self._paths, task.shard)
        n_errors = sum(note.kind == "machine" for note in notes)
        later = min(_HERE_SECONDS * 2 ** (n_errors - 1), _MAX_HERE_SECONDS)
        self._leave(task.shard, _ELSEWHERE_SECONDS if self._is_for_others(notes) else later)
        return True

    def could_not_load(self, task: ShardAttempt, failure: Failure) -> bool:
        """Leave a shard to another node if a worker there got one done: here a GPU may be gone.

        A driver does not: the user is there, and can mend it.
        """
        if self._is_driver or not self._others_elsewhere() or not self._is_done_elsewhere():
            return False
        self._note(task, failure.error, "machine", None, failure.log)
        self._end(task.shard, f"nothing can be loaded here: {failure.error}", is_lost=True)
        self._record.write()
        self._leave(task.shard, _ELSEWHERE_SECONDS)
        return True

    def cut_off(self, task: ShardAttempt) -> None:
        """Note that the walltime ended an attempt."""
        log = self._record.record.log
        log = str(self._root / log) if log else ""
        self._note(task, "the walltime was over", "walltime", None, log)

    def _note(
        self,
        task: ShardAttempt,
        reason: str,
        kind: DeathKind,
        position: tuple[int, int] | None,
        log: str,
        host: str | None = None,
    ) -> None:
        self._had_machine_error = self._had_machine_error or kind != "walltime"
        record = self._record.record
        start, stop = position or (None, None)
        note = CrashNote(
            task.shard,
            host if host is not None and self._is_driver else record.host,
            reason,
            start,
            stop,
            kind=kind,
            seconds=round(self._seconds(task.shard), 3),
            owner_id=record.owner_id,
            job_id=record.job_id,
            log=os.path.relpath(log, self._root) if log else "",
            time=self._lease.now(),
        )
        try:
            write_death(self._paths, note)
        except OSError:
            if not self._is_driver:  # which remembers it in any case
                raise

    def _await_signal(self, reason: str) -> None:
        """Give the scheduler's signal to this process the time to come, if one ended the child."""
        deadline = time.monotonic() + _SIGNAL_SECONDS
        while self._signals and any(name in reason for name in _ENDED_BY_SCHEDULER):
            self._signals.check()
            if time.monotonic() > deadline:
                return
            time.sleep(0.05)

    def _blames_item(self, notes: Sequence[CrashNote]) -> bool:
        """Tell whether a shard failed on so many machines that they cannot be the reason."""
        hosts = [note.host for note in notes if note.kind == "machine" and note.start is not None]
        # At least one: with `retries: 0`, one without an error would count.
        is_often = len(hosts) >= max(self._policy.retries, 1)
        return is_often and (len(set(hosts)) > 1 or not self._others_elsewhere())

    def _is_for_others(self, notes: Sequence[CrashNote]) -> bool:
        """Tell whether a shard died on this node, and less often on one where others work.

        It may be the node: so it must not be blamed on an item by deaths of one node alone, and
        a node on which all dies does so once at each of a few shards. Not for ever: one that hangs
        elsewhere will never take it.
        """
        notes = [note for note in notes if note.kind != "walltime"]
        host = self._lease.owner.host
        last = max((note.time for note in notes if note.host == host), default=0.0)
        if self._is_driver or self._lease.now() - last > self._seconds_for_others():
            return False
        n_deaths = Counter(note.host for note in notes)
        return any(n_deaths[owner.host] < n_deaths[host] for owner in self._lease.each_other())

    def _seconds_for_others(self) -> float:
        """Return for how long a shard is left to other workers."""
        longest = self.pace.longest()
        return _MAX_FOR_OTHERS if longest is None else max(_MIN_FOR_OTHERS, 3 * longest)

    def _others_elsewhere(self) -> bool:
        host = self._lease.owner.host
        return any(owner.host != host for owner in self._lease.each_other())

    def _is_done_elsewhere(self) -> bool:
        host = self._lease.owner.host
        found = (self._peek(shard) for shard in self._board.committed)
        return any(done is not None and done.host != host for done in found)

    def _leave(self, shard: int, seconds: float) -> None:
        """Skip a shard for some seconds, and back off."""
        self._n_machine_errors += 1
        self._avoided[shard] = time.monotonic() + seconds
        # Such a node fails fast, and would otherwise run through all shards of the run.
        pause = min(_MACHINE_BACKOFF * self._n_machine_errors, _MAX_MACHINE_BACKOFF)
        self._next_look = time.monotonic() + pause
        self._board.release(shard)
        self._release_backup(shard)

    def _release_backup(self, shard: int) -> None:
        if shard in self._backups:
            self._backups.discard(shard)
            self._lease.release(backup_name(self._layout.shard_name(shard)))


# A share of the time, so that jobs of minutes work as well; bounded, as a commit takes seconds.
_MIN_MARGIN, _MAX_MARGIN, _MARGIN_SHARE = 5.0, 60.0, 0.05


@dataclass(frozen=True)
class Walltime:
    """The time of one worker, in seconds since 1970; `limit` is None if there is no limit."""

    started: float
    limit: float | None = None
    env: str = ""
    """Backend of the worker, which decides how messages spell times."""

    @property
    def total(self) -> float:
        """For how long the worker may run."""
        return float("inf") if self.limit is None else max(self.limit - self.started, 0.0)

    @property
    def margin(self) -> float:
        """Seconds kept for commits and for handing over."""
        return min(max(self.total * _MARGIN_SHARE, _MIN_MARGIN), _MAX_MARGIN)

    @property
    def usable(self) -> float:
        """For how long the longest shard may run in a new worker."""
        return self.total - self.margin

    def left(self, now: float | None = None) -> float:
        """Return for how long a shard that begins now may run."""
        if self.limit is None:
            return float("inf")
        return self.limit - self.margin - (steady_time() if now is None else now)

    def is_over(self, now: float | None = None) -> bool:
        """Tell whether it is time to hand back what is not finished."""
        # Half of the margin may be used to finish; the rest is for giving claims back.
        return self.left(now) < -self.margin / 2

    def is_fresh(self, now: float | None = None) -> bool:
        """Tell whether a new worker would not have much more time."""
        return self.left(now) >= (1 - _MARGIN_SHARE) * self.usable - _MIN_MARGIN


def find_walltime(
    started: float,
    walltime: float | None,
    environ: Mapping[str, str] = os.environ,
    *,
    ahead: float = 0.0,
    env: str = "",
) -> Walltime:
    """Return when this process will be ended: as the scheduler says, else as it was asked.

    Args:
        started: when the process began.
        walltime: what the job asked for, in seconds.
        environ: of the job.
        ahead: how many seconds this machine's clock is ahead of that of others, such as the
            scheduler's, which says when the job ends.
        env: the backend of the process, if it is known.
    """
    for scheduler in possible_schedulers(env, environ):
        # What a variable or command has may be no number; the walltime that was asked for remains.
        with suppress(ValueError):
            if (end := scheduler.end_time(environ)) is not None:
                # What the scheduler granted wins: it may be less than what was asked for.
                return Walltime(started, end + ahead, env)
            if (seconds := scheduler.granted_seconds(environ)) is not None:
                return Walltime(started, started + seconds, env)
    return Walltime(started, None if walltime is None else started + walltime, env)


def process_start() -> float:
    """Return when this process began, which may be seconds ago on a busy machine."""
    try:
        with open("/proc/self/stat") as file:
            # From the last parenthesis: the name of a program may contain blanks and parentheses.
            ticks = int(file.read().rpartition(")")[2].split()[19])
        with open("/proc/uptime") as file:
            uptime = float(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return steady_time()
    return steady_time() - max(uptime - ticks / os.sysconf("SC_CLK_TCK"), 0.0)


def too_long(root: Path, pace: Pace, shard: int, walltime: Walltime) -> str:
    """Say that a shard cannot be done within the walltime."""
    # Twice as long is a guess, but a line to paste needs a value.
    spelled = (scheduler_of(walltime.env) or Scheduler()).spell_time(int(2 * walltime.total))
    return (
        f"Shard {shard} cannot be finished within the walltime of {walltime.total:.0f} s: "
        f"{pace.n_cuts[shard]} attempts were cut off, the longest after "
        f"{pace.at_least[shard]:.0f} s. Ask for a longer one, which keeps what is done: "
        f"espnet3 resume {shlex.quote(str(root))} options.walltime='{spelled}'; or start from "
        "scratch with more and smaller shards: parallel.shards_per_worker=64 and resume=False."
    )
