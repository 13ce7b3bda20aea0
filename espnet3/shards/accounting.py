"""Accounting of a run: time of its workers, per worker, per node and in total.

Made of what is in the folder: each committed shard tells what it took and which owner ran it;
detached workers also tell when they were submitted, began and ended, and what came to nothing.
"""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from espnet3.io.shared_files import Count, Seconds, Share, parse_value
from espnet3.shards.commit import Done, attempts
from espnet3.shards.layout import RunLayout, origin_of_attempt
from espnet3.shards.lease import owner_path
from espnet3.shards.manifest import Manifest
from espnet3.shards.records import (
    CrashNote,
    RecordPaths,
    WorkerRecord,
    look_at_jobs,
    read_deaths,
    read_workers,
)
from espnet3.text import count, duration

_MAX_ROWS = 64


@dataclass(frozen=True)
class Usage:
    """Times, by purpose: of a worker, of a node, or of all.

    Load, compute, write, running, lost and idle add up to `seconds`; the wait in the queue is
    before that.
    """

    name: str = ""
    n_workers: Count = 1
    host: str = ""
    job_id: str = ""
    n_shards: Count = 0
    n_items: Count = 0
    seconds: Seconds = 0.0
    """For how long the workers were there."""
    load_seconds: Seconds = 0.0
    """Building what `forward` needs, before the first shard."""
    compute_seconds: Seconds = 0.0
    """In the items of committed shards."""
    write_seconds: Seconds = 0.0
    """Closing the writers, forcing files to disk, checksums."""
    running_seconds: Seconds = 0.0
    """In attempts that are not finished; 0 once the run is complete."""
    lost_seconds: Seconds = 0.0
    """In failed attempts, and in shards that were later recomputed."""
    queue_seconds: Seconds | None = None
    """Between submission and begin; None where it is not known."""
    audio_seconds: Seconds | None = None
    """Of the shards, as far as their costs tell; None where durations are not known."""
    n_deaths: Count = 0

    @property
    def idle_seconds(self) -> float:
        """The rest: starting Python, and having nothing to do while others finish."""
        return max(self.seconds - self.busy_seconds, 0.0)

    @property
    def busy_seconds(self) -> float:
        """All but idle."""
        used = self.load_seconds + self.compute_seconds + self.write_seconds
        return used + self.running_seconds + self.lost_seconds

    @property
    def idle_share(self) -> float:
        """Idle share of the time, from 0 to 1."""
        return self.idle_seconds / self.seconds if self.seconds else 0.0

    @property
    def real_time_factor(self) -> float | None:
        """Seconds of computing for a second of audio."""
        return self.compute_seconds / self.audio_seconds if self.audio_seconds else None

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, with what follows from it; what is not known or empty is left out."""
        values = {
            **asdict(self),
            "idle_seconds": self.idle_seconds,
            "idle_share": self.idle_share,
            "real_time_factor": self.real_time_factor,
        }
        return {key: _rounded(value) for key, value in values.items() if value not in (None, "")}


@dataclass(frozen=True)
class Accounting:
    """Cost of a run, in total and per worker."""

    total: Usage
    nodes: list[Usage] = field(default_factory=list)
    workers: list[Usage] = field(default_factory=list)
    """In the order in which they began."""
    padded_share: Share | None = None
    """Which part of what was computed is padding; None without `batch_seconds`."""
    n_queued: Count = 0
    """Workers whose wait is known."""
    longest_queue_seconds: Seconds | None = None
    deaths: dict[str, Count] = field(default_factory=dict)
    """Attempts that ended without a result, by kind: died, machine, walltime."""
    n_generations: Count = 0
    """The longest chain of jobs that followed each other; 0 without detached workers."""

    @property
    def worker_hours(self) -> float:
        """Time of all workers."""
        return self.total.seconds / 3600

    def as_dict(self) -> dict[str, Any]:
        """Return plain data of bounded size: what many workers did is summed up."""
        facts = {
            "padded_share": self.padded_share,
            "longest_queue_seconds": self.longest_queue_seconds,
        }
        return {
            "worker_hours": _rounded(self.worker_hours),
            **self.total.as_dict(),
            **{key: _rounded(value) for key, value in facts.items() if value is not None},
            "n_nodes": len(self.nodes),
            "n_queued": self.n_queued,
            "n_generations": self.n_generations,
            "deaths": self.deaths,
            "nodes": [usage.as_dict() for usage in _bounded(self.nodes)],
            "workers": [usage.as_dict() for usage in _bounded(self.workers)],
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any], path: str | os.PathLike[str] = "") -> "Accounting":
        """Undo `as_dict`, but for what it summed up.

        Raises:
            DamagedFileError: naming `path`, the file that the values are from.
        """
        return parse_value({**values, "total": values}, cls, path)


def add_up(name: str, usages: Sequence[Usage]) -> Usage:
    """Return one for all; of what is known of some only, the sum of these."""
    sums: dict[str, Any] = {"n_workers": 0}
    for usage in usages:
        for key, value in asdict(usage).items():
            if value is not None and not isinstance(value, str):
                sums[key] = sums.get(key, 0) + value
    return Usage(name, **sums)


def _bounded(usages: list[Usage]) -> list[Usage]:
    rest = usages[_MAX_ROWS:]
    return [*usages[:_MAX_ROWS], *([add_up(f"{len(rest)} more", rest)] if rest else [])]


def _rounded(value: Any) -> Any:
    return float(f"{value:.9g}") if isinstance(value, float) else value


def account(run_dir: Path, manifest: Manifest, committed: Iterable[Done]) -> Accounting:
    """Add up what the workers of a run did.

    Args:
        run_dir: the run folder.
        manifest: its plan.
        committed: what its shards say.
    """
    committed = list(committed)
    notes = read_deaths(RecordPaths(run_dir))
    records = _Records(manifest.layout(run_dir), notes, {done.shard for done in committed})
    known = {record.owner_id for record in records.workers}
    # By shard where two began at once: a listing has the order of its file system.
    in_order = sorted(committed, key=lambda done: (_start(done), done.shard))
    detached, others = _split(in_order, known)
    rows = [
        (record.started, records.usage(record, _sums(detached.get(record.owner_id, []), manifest)))
        for record in records.workers
    ]
    rows = [*_joined(rows), *_of_drivers(others, manifest)]
    workers = [usage for _, usage in sorted(rows, key=lambda row: row[0])]
    waits = [usage.queue_seconds for usage in workers if usage.queue_seconds is not None]
    deaths = Counter(note.kind for note in notes)
    noted = Counter(note.shard for note in notes if note.kind == "died")
    for done in (done for shards in others.values() for done in shards):
        deaths["died"] += max(done.n_deaths - noted[done.shard], 0)  # of older runs: not noted
    return Accounting(
        total=add_up("", workers),
        nodes=_by_node(workers),
        workers=workers,
        padded_share=manifest.padded_share,
        n_queued=len(waits),
        longest_queue_seconds=max(waits, default=None),
        deaths={str(kind): number for kind, number in sorted(deaths.items()) if number},
        n_generations=max((record.generation + 1 for record in records.workers), default=0),
    )


def _joined(rows: list[tuple[float, Usage]]) -> list[tuple[float, Usage]]:
    """Put together what one worker did here at several times, between which it served other runs.

    Only its first start in its first run has a queue time.
    """
    joined: list[tuple[float, Usage]] = []
    places: dict[tuple[str, str], int] = {}
    for began, usage in rows:
        key = (usage.name, usage.job_id)
        if usage.queue_seconds is None and key in places:
            first, known = joined[places[key]]
            both = add_up(usage.name, [known, usage])
            both = replace(both, n_workers=1, host=usage.host, job_id=usage.job_id)
            joined[places[key]] = (first, both)
        else:
            places[key] = len(joined)
            joined.append((began, usage))
    return joined


class _Records:
    """Records of detached workers and their jobs."""

    def __init__(self, layout: RunLayout, notes: Sequence[CrashNote], committed: set[int]) -> None:
        paths = RecordPaths(layout.root)
        # What a driver's workers did, their shards tell.
        self.workers = [worker for worker in read_workers(paths) if not worker.driver]
        self._leases = layout.leases
        self._notes = notes
        self._running = _running_attempts(layout, committed) if self.workers else {}
        self._by_job: dict[tuple[str, str], list[WorkerRecord]] = {}
        for worker in self.workers:
            if worker.job_id:
                self._by_job.setdefault((worker.env, worker.job_id), []).append(worker)
        self._after = {(job.env, job.job_id): job.after for job in look_at_jobs(paths)}

    def usage(self, record: WorkerRecord, sums: "_Sums") -> Usage:
        """Return what a worker did: of its shards what these say, of the rest what it says."""
        last_sign = self._last_sign(record)
        running, wasted = self._unfinished(record, last_sign)
        lost = record.lost_seconds + self._lost_at_its_end(record) + wasted
        if record.n_shards > sums.n_shards:  # some were set aside since, to be recomputed
            then = record.load_seconds + record.compute_seconds
            lost += max(then - sums.load_seconds - sums.compute_seconds, 0.0)
        seconds = max(last_sign, sums.finished) - record.started
        return Usage(
            f"{record.host}:{record.pid}",
            host=record.host,
            job_id=record.job_id,
            # Times by several clocks are compared here: the parts must not exceed the whole.
            seconds=max(seconds, sums.busy_seconds + lost + running),
            running_seconds=running,
            lost_seconds=lost,
            queue_seconds=self._queue_seconds(record),
            n_deaths=sum(note.owner_id == record.owner_id for note in self._notes),
            **sums.as_usage(),
        )

    def _last_sign(self, record: WorkerRecord) -> float:
        """Return until when a worker is known to have been there: while it lives, its heart beats
        more often than it writes its record."""
        beat = 0.0
        if record.ended is None:
            with suppress(OSError):
                beat = owner_path(self._leases, record.owner_id).stat().st_mtime
        return max(_end(record), beat)

    def _unfinished(self, record: WorkerRecord, last_sign: float) -> tuple[float, float]:
        """Return seconds in the attempt that runs, and in one at a shard that is done already."""
        if record.ended is not None:
            return 0.0, 0.0
        seconds = {False: 0.0, True: 0.0}
        for began, is_late in self._running.get(record.owner_id, []):
            seconds[is_late] += max(last_sign - max(began, record.started), 0.0)
        return seconds[False], seconds[True]

    def _lost_at_its_end(self, record: WorkerRecord) -> float:
        """Return what others noted of a worker that could not say itself that it was killed."""
        if record.ended is not None:
            return 0.0
        mine = (note for note in self._notes if note.owner_id == record.owner_id)
        return sum(note.seconds for note in mine if note.time > _end(record))

    def _queue_seconds(self, record: WorkerRecord) -> float | None:
        if record.submitted is None:
            return None
        # A successor may not begin before its predecessor ends, nor a job that is queued again
        # before its first run does: that is no wait for a machine.
        job = (record.env, record.job_id)
        before = self._by_job.get((record.env, self._after.get(job, "")), [])
        earlier = [w for w in self._by_job.get(job, []) if w.started < record.started]
        eligible = max([record.submitted, *map(_end, [*before, *earlier])])
        return max(record.started - eligible, 0.0)


def _running_attempts(layout: RunLayout, committed: set[int]) -> dict[str, list[tuple[int, bool]]]:
    """Return when the attempts of each owner began that are there, and whether they come late."""
    found: dict[str, list[tuple[int, bool]]] = {}
    for shard, folders in attempts(layout).items():
        for folder in folders:
            if origin := origin_of_attempt(folder.name):
                found.setdefault(origin[0], []).append((origin[1], shard in committed))
    return found


@dataclass
class _Sums:
    """Sums over the shards of a worker."""

    n_shards: int = 0
    n_items: int = 0
    load_seconds: float = 0.0
    compute_seconds: float = 0.0
    write_seconds: float = 0.0
    audio_seconds: float | None = None
    finished: float = 0.0

    @property
    def busy_seconds(self) -> float:
        return self.load_seconds + self.compute_seconds + self.write_seconds

    def as_usage(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "finished"}


def _sums(shards: Sequence[Done], manifest: Manifest) -> _Sums:
    sums = _Sums(audio_seconds=_audio_seconds(shards, manifest))
    for done in shards:
        sums.n_shards += 1
        sums.n_items += done.n_items
        sums.load_seconds += done.load_seconds
        sums.compute_seconds += done.seconds
        span = done.finished - _start(done)
        # `started` is by the clock of the worker, `finished` by that of the file system.
        sums.write_seconds += max(span - done.load_seconds - done.seconds, 0.0)
        sums.finished = max(sums.finished, done.finished)
    return sums


def _audio_seconds(shards: Sequence[Done], manifest: Manifest) -> float | None:
    # Asked first: to add up the costs of all shards for each worker takes its time.
    if not manifest.audio_seconds or (total := sum(manifest.costs)) <= 0:
        return None
    return manifest.audio_seconds * sum(manifest.costs[done.shard] for done in shards) / total


def _split(
    committed: Iterable[Done], known: set[str]
) -> tuple[dict[str, list[Done]], dict[str, list[Done]]]:
    """Return the shards of detached workers and those of drivers, both by owner."""
    detached: dict[str, list[Done]] = {}
    others: dict[str, list[Done]] = {}
    for done in committed:
        group = detached if done.owner_id in known else others
        group.setdefault(done.owner_id, []).append(done)
    return detached, others


def _of_drivers(by_owner: dict[str, list[Done]], manifest: Manifest) -> list[tuple[float, Usage]]:
    """Return when the workers of drivers began, and what they did."""
    rows = []
    for shards in by_owner.values():
        end = max(done.finished for done in shards)
        longest = max(done.finished - _start(done) for done in shards)
        for (host, pid), own in _by_process(shards).items():
            sums, begin = _sums(own, manifest), min(map(_start, own))
            # It waits for the last shards of the others, which began before its own last one
            # ended. One that is not heard of for longer was gone.
            seconds = min(end, sums.finished + longest) - begin
            usage = Usage(f"{host}:{pid}", host=host, seconds=seconds, **sums.as_usage())
            rows.append((begin, usage))
    return rows


def _by_process(shards: Iterable[Done]) -> dict[tuple[str, int], list[Done]]:
    found: dict[tuple[str, int], list[Done]] = {}
    for done in shards:
        found.setdefault((done.host, done.pid), []).append(done)
    return found


def _by_node(workers: Iterable[Usage]) -> list[Usage]:
    by_host: dict[str, list[Usage]] = {}
    for usage in workers:
        by_host.setdefault(usage.host, []).append(usage)
    return [add_up(host, by_host[host]) for host in sorted(by_host)]


def _start(done: Done) -> float:
    if done.started is not None:
        return done.started
    return done.finished - done.seconds - done.load_seconds


def _end(record: WorkerRecord) -> float:
    return record.ended or record.seen or record.started


def cost_facts(accounting: Accounting) -> list[tuple[str, str]]:
    """Return what a run cost in words: names and facts, as lines of a log or of a table."""
    facts = []
    if accounting.total.n_workers:
        facts.append(("Worker time", _worker_time(accounting)))
    if accounting.n_queued:
        facts.append(("Queue wait", _queue_wait(accounting)))
    if accounting.deaths:
        facts.append(("Lost attempts", _deaths(accounting.deaths)))
    if (factor := accounting.total.real_time_factor) is not None:
        audio = duration(accounting.total.audio_seconds or 0.0)
        facts.append(("Speech", f"{audio} of audio, real-time factor {factor:.3g}"))
    if accounting.padded_share is not None:
        facts.append(("Padding", f"{accounting.padded_share:.1%} of the batches"))
    return facts


def time_parts(usage: Usage) -> dict[str, float]:
    """Return the shares of a worker's time, by name; they add up to 1 unless there is none."""
    parts = {
        "compute": usage.compute_seconds,
        "load": usage.load_seconds,
        "write": usage.write_seconds,
        "running": usage.running_seconds,
        "lost": usage.lost_seconds,
        "idle": usage.idle_seconds,
    }
    return {name: seconds / (usage.seconds or 1.0) for name, seconds in parts.items()}


def _worker_time(accounting: Accounting) -> str:
    total = accounting.total
    shares = [f"{name} {share:.0%}" for name, share in time_parts(total).items() if share >= 0.005]
    workers, nodes = count(total.n_workers, "worker"), count(len(accounting.nodes), "node")
    parts = f": {', '.join(shares)}" if shares else ""
    return f"{duration(total.seconds)} of {workers} on {nodes}{parts}"


def _queue_wait(accounting: Accounting) -> str:
    mean = (accounting.total.queue_seconds or 0.0) / accounting.n_queued
    longest = accounting.longest_queue_seconds or 0.0
    jobs = count(accounting.n_queued, "worker")
    return f"{duration(mean)} on average of {jobs}, {duration(longest)} at most"


def _deaths(deaths: dict[str, int]) -> str:
    words = {
        "died": "whose worker died",
        "machine": "that a machine could not bear",
        "walltime": "cut off by a walltime",
    }
    return ", ".join(f"{number} {words.get(kind, kind)}" for kind, number in deaths.items())
