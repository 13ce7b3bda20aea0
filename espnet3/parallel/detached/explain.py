"""Diagnose a stalled run from its folder and the scheduler; most serious finding first."""

import json
import re
import shlex
import shutil
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from espnet3.errors import FileSystemError
from espnet3.findings import Finding, Level
from espnet3.io.shared_files import look_time
from espnet3.parallel.clusters.job_logs import words_of_daemon
from espnet3.parallel.detached.logs import log_of, option_of, output_of
from espnet3.parallel.detached.overview import Overview, look
from espnet3.parallel.detached.workforce import Job, Worker
from espnet3.schedulers import CLOSED_ADVICE, FORGOTTEN, scheduler_of
from espnet3.shards.commit import Done
from espnet3.shards.merge import read_failures
from espnet3.shards.records import CrashNote, RecordPaths, find_damaged, read_deaths
from espnet3.shards.status import RunningShard
from espnet3.text import count, duration, end_of_log, first_few, first_line, part_of, read_end

_LEVELS = {"problem": 0, "warning": 1, "ok": 2}
_LITTLE_BYTES = 200 << 20
_LATE_SECONDS = 90.0
_NO_SUCCESSOR = "no successor:"
_LONG_SECONDS = 120.0  # and so many times the median of the others, for a shard that is too slow
_LONG_TIMES = 5.0
_N_LINES = 8
_KEY_TO_CHANGE = re.compile(r"\bparallel\.(options\.\w+=\S+)$")
_IN_VAIN = ("options.walltime", "options.account", "options.queue")
"""Keys for which jobs may wait for ever."""
_MOST = 5


@dataclass(frozen=True)
class _End:
    """A kind of end, in words, and what to do."""

    kind: str
    words: str
    advice: str


_ENDS = (
    _End(
        "memory",
        "used more memory than asked for",
        "Ask for more: espnet3 resume {dir} options.memory=... ; or use smaller batches",
    ),
    _End(
        "walltime",
        "ran until the walltime was over",
        "Only the running shard is lost, and the next job continues. If shards do "
        "not fit at all, ask for a longer walltime: espnet3 resume {dir} options.walltime='...'",
    ),
    _End(
        "node",
        "lost the node",
        "Others take over their shards; tell the administrators if it is the same node again",
    ),
    _End(
        "preempted",
        "made room for jobs of higher priority",
        "Others take over their shards; another queue or account may be left in peace",
    ),
    _End(
        "cancelled",
        "was cancelled by a user",
        "If that was not meant: espnet3 resume {dir}",
    ),
    _End(
        "killed",
        "got killed (signal 9), mostly because memory ran out",
        "Ask for more memory, or use smaller batches: espnet3 resume {dir} options.memory=...",
    ),
    _End(
        "missing",
        "did not find a program or a file",
        "The Python of the run, or what its prologue calls, must be there on the nodes, too: "
        "espnet3 resume {dir} options.python={python}",
    ),
    _End(
        "gone",
        "ended without a word: killed, or the machine was restarted",
        "Other workers take over their shards; if none is left: espnet3 resume {dir}",
    ),
    _End(
        "forgotten",
        "ended, and the scheduler keeps no record of how",
        "See the log: espnet3 logs {dir} --worker {job}",
    ),
    _End(
        "failed",
        "ended with an error",
        "See the log: espnet3 logs {dir} --worker {job}",
    ),
)


def explain_run(run_dir: Path) -> list[Finding]:
    """Look at all that may keep a run from making progress.

    Raises:
        RunFolderError: if there is no run in the folder.
    """
    seen = look(run_dir)
    found = list(_Explainer(run_dir, seen).findings())
    return sorted(found, key=lambda finding: _LEVELS[finding.level])


class _Explainer:
    def __init__(self, run_dir: Path, seen: Overview) -> None:
        self._run_dir = run_dir
        self._seen = seen
        self._quoted = shlex.quote(str(run_dir))
        self._now = look_time(run_dir)

    def findings(self) -> Iterator[Finding]:
        """Yield what was found: the causes before what follows from them."""
        causes = list(self._causes())
        # Where no worker is left, the reason comes first: resuming alone would bring it back.
        is_explained = any(finding.level == "problem" and finding.fix for finding in causes)
        state = list(self._state(is_explained=is_explained))
        idle = self._seen.state in ("stopped", "queued", "starting", "unknown")
        yield from (*causes, *state) if idle else (*state, *causes)

    def _causes(self) -> Iterator[Finding]:
        seen = self._seen
        yield from self._disk()
        yield from self._failures()
        yield from self._damaged()
        yield from self._drivers()
        if seen.state != "complete":
            yield from self._waiting()
            yield from explain_submitting(seen.workforce.jobs, self._run_dir)
            yield from self._starting()
            yield from self._silent_schedulers()
            yield from self._silent_workers()
            yield from self._avoided()
            yield from _explain_slow(seen.status.running, seen.committed.values(), self._quoted)
            if seen.status.stop is None:
                yield from self._no_successor()
        yield from self._unreachable()
        jobs = [job for job in seen.workforce.jobs if not self._is_told(job)]
        is_over = seen.is_over and seen.state != "complete"
        yield from explain_ends(jobs, self._run_dir, quoted=self._quoted, is_over=is_over)
        yield from self._lost_workers()
        # Once merged, the shards may have been removed to save room.
        is_merged = seen.state == "complete"
        done = range(seen.status.n_shards) if is_merged else seen.committed
        yield from _explain_deaths(self._run_dir, done, self._quoted)

    def _is_told(self, job: Job) -> bool:
        """Tell whether the end of a job is covered by other findings, or does not matter."""
        stop = self._seen.status.stop
        if job.workers:
            return stop is not None and job.workers[-1].ended is not None
        is_wanted = stop is not None or self._seen.state == "complete"
        if is_wanted and job.state == FORGOTTEN:
            return True  # cancelled with the others, and no record is left of it
        return job.is_successor or ((is_wanted or bool(job.record.after)) and job.was_cancelled)

    def _waiting(self) -> list[Finding]:
        """Tell why jobs wait; whether the queue is closed at all is asked only if some do."""
        waiting = self._seen.workforce.waiting
        n_jobs = sum(job.is_there and not job.is_successor for job in self._seen.workforce.jobs)
        closed = {}
        for env in {job.record.env for job in waiting}:
            scheduler, queue = scheduler_of(env), option_of(env, self._run_dir, "queue")
            # One question per backend, not per job: schedulers serve many.
            closed[env] = scheduler.closed_queue(queue or None) if scheduler else ""
        found = explain_waiting(waiting, self._now, n_jobs=n_jobs, closed=closed)
        return [self._with_line(finding, waiting) for finding in found]

    def _with_line(self, finding: Finding, waiting: Sequence[Job]) -> Finding:
        """Add the line that submits other jobs in place of those that wait in vain."""
        key = next((key for key in _IN_VAIN if f"parallel.{key}" in finding.fix), None)
        if finding.level != "problem" or key is None:
            return finding
        env = waiting[0].record.env
        scheduler, queue = scheduler_of(env), option_of(env, self._run_dir, "queue")
        longest = scheduler.longest_walltime(queue or None) if scheduler else ""
        value = longest if longest and key.endswith("walltime") else "..."
        told = f"; the longest there is {longest}" if value == longest else ""
        line = f"espnet3 cancel {self._quoted} && espnet3 resume {self._quoted} {key}='{value}'"
        return replace(finding, fix=f"{finding.fix}{told}: {line}")

    def _state(self, *, is_explained: bool) -> Iterator[Finding]:
        seen = self._seen
        state, status = seen.state, seen.status
        done = f"{part_of(status.n_done_so_far, status.n_items, 'item', 'is')} done"
        if state == "complete":
            yield Finding("ok", "run", "it is complete")
        elif state in ("running", "stopping"):
            yield Finding("ok", "run", f"{self._at_work()}; {done}{self._speed()}")
        elif seen.behind:
            first = ", ".join(seen.behind)
            yield Finding("ok", "run", f"its workers work on {first} first, then they come here")
        elif state in ("queued", "starting"):
            yield Finding("warning", "run", f"no worker has started, but jobs are queued; {done}")
        elif state == "unknown":
            yield Finding(
                "warning", "run", f"no worker is active; whether jobs wait: see below; {done}"
            )
        elif state == "not merged":
            message = "all shards are done, but no worker is left to merge them"
            yield Finding("problem", "run", message, f"espnet3 merge {self._quoted}")
        elif state == "stopped":
            message = f"no worker is active, and no job waits; {done}"
            fix = "When that is changed, as it says above" if is_explained else self._resume()
            yield Finding("problem", "run", message, fix)
        if status.stop is not None and state != "complete":
            yield self._stop()

    def _at_work(self) -> str:
        n_owners = len(self._seen.workforce.living) or 1
        n_pool = sum(worker.is_alive for worker in self._seen.workforce.pool)
        pool = f", with {n_pool} worker{'' if n_pool == 1 else 's'} started by a driver"
        return f"{n_owners} {'works' if n_owners == 1 else 'work'} on it{pool if n_pool else ''}"

    def _drivers(self) -> Iterator[Finding]:
        """Tell what drivers say of workers that do not come."""
        for driver in self._seen.workforce.living:
            if driver.record.waiting:
                message = f"the driver {driver.name} waits for workers: {driver.record.waiting}"
                yield Finding("warning", "workers", message)

    def _speed(self) -> str:
        status = self._seen.status
        if status.items_per_second is None:
            return ""
        left = status.eta_seconds
        ends = f", about {duration(left)} left" if left is not None else ""
        return f", {status.items_per_second:.3g} items/s{ends}"

    def _resume(self) -> str:
        if self._seen.status.is_detached:
            return f"espnet3 resume {self._quoted}"
        if self._seen.status.stop is not None:
            return f"espnet3 resume {self._quoted} , then run the command that began it again"
        return "Run the command that began it again: finished shards are kept"

    def _stop(self) -> Finding:
        stop = self._seen.status.stop
        assert stop is not None
        ago = duration(max(self._now - stop.time, 0.0))
        if stop.kind == "cancelled":
            reason = "" if stop.reason.startswith("cancelled by") else f": {stop.reason}"
            message = f"it was cancelled by {stop.by or 'an unknown user'} {ago} ago{reason}"
            return Finding("problem", "stop", message, self._resume())
        message = f"it was stopped by an error {ago} ago ({stop.by or 'a worker'}):\n{stop.reason}"
        if key := _KEY_TO_CHANGE.search(stop.reason):
            return Finding("problem", "stop", message, f"{self._resume()} {key[1]}")
        if "espnet3 resume" in stop.reason:  # it says itself how to continue
            return Finding("problem", "stop", message)
        fix = (
            f"If it is about data or a machine, fix that, then: {self._resume()} ; if it is about "
            "your code, fix it and run the command that began the run again"
        )
        if re.search(r"on_error(=| to )skip", stop.reason) and self._seen.status.is_detached:
            skip = f"espnet3 resume {self._quoted} runner.on_error=skip"
            fix = f"To continue without such items: {skip} ; i{fix[1:]}"
        return Finding("problem", "stop", message, fix)

    def _disk(self) -> Iterator[Finding]:
        free = shutil.disk_usage(self._run_dir).free
        if free < _LITTLE_BYTES:
            message = f"only {free >> 20} MB are free where {self._run_dir} is"
            yield Finding(
                "problem", "disk", message, "Make room: workers cannot publish their shards"
            )

    def _failures(self) -> Iterator[Finding]:
        failures = read_failures(self._run_dir)
        if not failures:
            return
        errors = Counter(str(failure.get("error", "")) for failure in failures)
        error, number = errors.most_common(1)[0]
        times = f" ({number} times)" if number > 1 else ""
        stopped = self._seen.state == "failed"
        fix = f"espnet3 failed {self._quoted}"
        if self._seen.status.is_detached:
            fix += f" ; to try them again: espnet3 retry {self._quoted} --failed"
        mostly = ", mostly with" if len(errors) > 1 else ""
        items = [failure for failure in failures if failure.get("index") is not None]
        what = count(len(items), "item") if items else "the provider"
        names = [str(id) for failure in items for id in failure.get("ids") or ()]
        which = f" ({first_few(names, 3)})" if names else ""
        message = f"{what}{which} failed{mostly}: {error}{times}"
        yield Finding("problem" if stopped else "warning", "items", message, fix)

    def _damaged(self) -> Iterator[Finding]:
        """Tell of records that do not hold what they should: all others leave them out."""
        found = find_damaged(RecordPaths(self._run_dir))
        if found:
            more = f" (and {len(found) - 1} more such files)" if len(found) > 1 else ""
            fix = "A newer version or another program wrote it. Its content is ignored"
            yield Finding("warning", "records", f"{found[0]}{more}", fix)

    def _starting(self) -> Iterator[Finding]:
        late = [
            job
            for job in self._seen.workforce.starting
            if self._now - job.record.submitted > _LATE_SECONDS and job.state.phase == "running"
        ]
        if late:
            ids = ", ".join(job.record.job_id for job in late[:_MOST])
            run, theirs = (
                ("runs", "its worker has") if len(late) == 1 else ("run", "their workers have")
            )
            message = f"{count(len(late), 'job')} {run}, but {theirs} not signed in (job {ids})"
            message += end_of_log(log_of(late[-1], self._run_dir), 8)
            fix = "If this lasts, the nodes cannot start the Python of the run, or do not see this "
            yield Finding("warning", "jobs", message, f"{fix}folder")

    def _silent_schedulers(self) -> Iterator[Finding]:
        unknown = [job for job in self._seen.workforce.jobs if _is_unknown(job)]
        for env, jobs in groupby(sorted(unknown, key=_env), key=_env):
            n_jobs = len(list(jobs))
            scheduler = scheduler_of(env)
            if scheduler is None:
                started = f"{count(n_jobs, 'process')} {'was' if n_jobs == 1 else 'were'} started"
                of = "it" if n_jobs == 1 else "them"
                message = f"{started} on another machine; what became of {of} "
                fix = "espnet3 status lists the active workers"
                yield Finding("warning", "jobs", f"{message}cannot be seen from here", fix)
                continue
            command = scheduler.status_command
            if shutil.which(command.split()[0]) is None:
                jobs_of = f"{count(n_jobs, 'job')} of {env}"
                message = f"{command.split()[0]} is not here, so what became of {jobs_of}"
                fix = f"Run this where you submitted the run, or there: {command}"
                yield Finding("warning", "jobs", f"{message} is not known", fix)

    def _silent_workers(self) -> Iterator[Finding]:
        for worker in self._seen.workforce.living:
            if worker.is_silent:
                silent = duration(worker.silent_seconds)
                message = f"worker {worker.name} on {worker.record.host} is silent for {silent}"
                fix = "After a minute it counts as dead, and another one takes its shard"
                yield Finding("warning", "workers", message, fix)

    def _avoided(self) -> Iterator[Finding]:
        for node, why in self._seen.avoided.items():
            fix = "New jobs avoid it, where the scheduler lets them. Tell your administrators"
            yield Finding("warning", "node", f"{node} is avoided: {why}", fix)

    def _unreachable(self) -> Iterator[Finding]:
        """Tell of workers that left because their node could not reach the run folder."""
        left = {w.record.host: w for w in self._seen.workforce.workers if _could_not_reach(w)}
        for host, worker in left.items():
            message = f"worker {worker.name} left {host}: {worker.record.reason}"
            if self._seen.state == "complete":
                yield Finding("ok", "node", message)
                continue
            fix = f"Others continue. Tell your administrators; if none is left: {self._resume()}"
            yield Finding("problem" if self._seen.is_over else "warning", "node", message, fix)

    def _no_successor(self) -> Iterator[Finding]:
        # Of the last ones only: an earlier refusal may have been overcome since.
        for worker in reversed(self._seen.workforce.workers[-_MOST:]):
            text = read_end(self._run_dir / worker.record.log) if worker.record.log else ""
            at = text.rfind(_NO_SUCCESSOR)
            if at >= 0:
                reason = text[at + len(_NO_SUCCESSOR) :].splitlines()[0].strip()
                message = f"worker {worker.name} could not submit its successor: {reason}"
                fix = f"When the jobs that run have ended: {self._resume()}"
                yield Finding("warning", "chain", message, fix)
                return

    def _lost_workers(self) -> Iterator[Finding]:
        """Report workers that vanished, unless the end of their job explains it."""
        told_of = {
            w.owner_id for job in self._seen.workforce.jobs if _has_ended(job) for w in job.workers
        }
        lost = [
            w
            for w in self._seen.workforce.workers
            if w.is_lost and w.record.owner_id not in told_of
        ]
        if lost:
            yield self._lost(lost)

    def _lost(self, lost: list[Worker]) -> Finding:
        last = lost[-1]
        names = ", ".join(f"{worker.name} on {worker.record.host}" for worker in lost[-_MOST:])
        is_one = len(lost) == 1
        message = f"{len(lost)} worker{'' if is_one else 's'} went without a word: {names}"
        log = self._run_dir / last.record.log if last.record.log else None
        fix = "Killed, or their machine is gone: others take over their shards"
        is_open = self._seen.is_over and self._seen.state != "complete"
        return Finding(
            "problem" if is_open else "warning", "workers", message + end_of_log(log, 8), fix
        )


def _could_not_reach(worker: Worker) -> bool:
    return worker.record.reason.startswith(FileSystemError.__name__)


def _is_unknown(job: Job) -> bool:
    is_unknown = job.state.phase == "unknown" and not job.record.is_submitting
    return is_unknown and not job.has_living_worker and not job.workers


def _has_ended(job: Job) -> bool:
    return job.state.phase == "ended"


def _env(job: Job) -> Any:
    return job.record.env


def _explain_deaths(run_dir: Path, committed: Collection[int], quoted: str) -> Iterator[Finding]:
    """Yield what happened at shards that are not done yet, and how many were made up for."""
    by_shard: dict[int, list[CrashNote]] = {}
    for note in read_deaths(RecordPaths(run_dir)):
        by_shard.setdefault(note.shard, []).append(note)
    open_shards = {shard: notes for shard, notes in by_shard.items() if shard not in committed}
    worst = sorted(open_shards.items(), key=lambda entry: -len(entry[1]))
    for shard, notes in worst[:_MOST]:
        yield _shard_deaths(shard, notes, quoted)
    if len(worst) > _MOST:
        message = f"attempts at {len(worst) - _MOST} more shards came to nothing"
        yield Finding("warning", "deaths", message, f"espnet3 logs {quoted} --failed")
    n_done = len(by_shard) - len(open_shards)
    if n_done:
        message = (
            f"attempts at {count(n_done, 'shard')} came to nothing, but others have done them since"
        )
        yield Finding("ok", "deaths", message)


def _shard_deaths(shard: int, notes: list[CrashNote], quoted: str) -> Finding:
    last = notes[-1]
    times = "once" if len(notes) == 1 else f"{len(notes)} times"
    if last.kind == "walltime":
        spent = duration(last.seconds)
        message = f"shard {shard} was cut off by the walltime {times}, after {spent}"
        fix = f"If it does not fit at all: espnet3 resume {quoted} options.walltime='...'"
        return Finding("warning", "walltime", message, fix)
    what = "its machine was at fault" if last.kind == "machine" else "its worker died"
    where = "" if last.start is None else f" at {_items(last.start, last.stop)}"
    message = f"shard {shard} came to nothing {times}: {what}{where} on {last.host}: {last.reason}"
    return Finding("warning", "deaths", message, f"espnet3 logs {quoted} --shard {shard}")


def _items(start: int, stop: int | None) -> str:
    if stop is None or stop - start <= 1:
        return f"position {start}"
    return f"positions {start} to {stop - 1}"


def _explain_slow(
    running: Sequence[RunningShard], done: Collection[Done], quoted: str
) -> Iterator[Finding]:
    """Yield shards that take much longer than others did."""
    if not done:
        return
    # The median: one straggler among the finished must not make all others look normal.
    usual = statistics.median(shard.seconds for shard in done)
    for shard in sorted(running, key=lambda shard: -shard.seconds)[:_MOST]:
        if shard.seconds < max(_LONG_SECONDS, _LONG_TIMES * usual):
            continue
        message = (
            f"shard {shard.shard} runs for {duration(shard.seconds)} on {shard.owner}, others took "
            f"{duration(usual)}; it is at item {shard.n_done:,} of {shard.n_items:,}"
        )
        fix = (
            f"espnet3 logs {quoted} --shard {shard.shard} ; if an item hangs, end it after some "
            f"seconds: espnet3 cancel {quoted} && espnet3 resume {quoted} item_timeout=600"
        )
        yield Finding("warning", "shard", message, fix)


def explain_ends(
    jobs: Iterable[Job], run_dir: Path, *, quoted: str, is_over: bool
) -> list[Finding]:
    """Return a finding for each kind of bad end; jobs whose worker ended well are left out."""
    groups: dict[str, list[Job]] = {}
    for job in jobs:
        if job.state.phase == "ended" and not _ended_well(job):
            groups.setdefault(_kind(job).kind, []).append(job)
    level: Level = "problem" if is_over else "warning"
    return [Finding(level, "jobs", *_describe(jobs, run_dir, quoted)) for jobs in groups.values()]


def _ended_well(job: Job) -> bool:
    if job.workers:
        return job.workers[-1].ended is not None and job.workers[-1].exit_code == 0
    # Ended before its worker signed in, with nothing to say: a successor that was not needed.
    return job.scheduler.ended_well(job.state)


def _kind(job: Job) -> _End:
    if job.workers and job.workers[-1].ended is not None:
        reason = first_line(job.workers[-1].reason)
        return _End(
            reason, f"ended with an error, {reason}", "See: espnet3 logs {dir} --worker {job}"
        )
    kind = job.scheduler.kind_of_end(job.state)
    # A scheduler of another package may have kinds that have no words here.
    ended = next((end for end in _ENDS if end.kind == kind), None)
    message = f"{job.state.word} {job.state.reason}"
    return ended or _End(message, "ended without a word of their worker", "See the log")


def _describe(jobs: list[Job], run_dir: Path, quoted: str) -> tuple[str, str]:
    last = jobs[-1]
    kind = _kind(last)
    ids = ", ".join(job.record.job_id for job in jobs[-_MOST:])
    what = "process" if last.record.machine else "job"
    state = ", ".join(part for part in (last.state.word, last.state.reason) if part)
    said = f" ({state})" if state and not last.record.machine else ""
    message = f"{count(len(jobs), what)} {kind.words}{said}: {ids}"
    log = log_of(last, run_dir)
    scheduler = scheduler_of(last.record.env)
    daemon = words_of_daemon(log, scheduler)
    # A worker has its own log, but the scheduler's daemons write to the job's output.
    daemon = daemon or words_of_daemon(output_of(last.record, run_dir), scheduler)
    message += f". The scheduler wrote: {daemon}" if daemon else ""
    message += end_of_log(log, _N_LINES)
    return message, kind.advice.format(
        dir=quoted, job=last.record.job_id, python=_submitting_python(run_dir)
    )


def _submitting_python(run_dir: Path) -> str:
    """Return the interpreter of the program that began the run: nodes mostly have the same."""
    try:
        found = json.loads(RecordPaths(run_dir).run.read_bytes()).get("python", "")
    except (OSError, ValueError, AttributeError):  # another user's, or none
        found = ""
    return shlex.quote(str(found)) if found else "PATH"


def explain_submitting(jobs: Iterable[Job], run_dir: Path) -> list[Finding]:
    """Return a finding for each job that may exist, though its number was never noted."""
    from espnet3.parallel.detached.submit import describe_submitting

    found = []
    for job in jobs:
        if job.record.is_submitting and not job.is_new:
            record = RecordPaths(run_dir).jobs / f"{job.record.key}.json"
            fix = (
                "One that starts notes its number, and works. If there is none: rm "
                f"{shlex.quote(str(record))}"
            )
            found.append(Finding("warning", "jobs", describe_submitting(job.record), fix))
    return found


def explain_waiting(
    jobs: list[Job], now: float, *, n_jobs: int, closed: Mapping[str, str]
) -> list[Finding]:
    """Return why jobs are in the queue, a finding for each reason.

    Args:
        jobs: those that wait.
        now: by the clock of the file system.
        n_jobs: how many there are in all.
        closed: why a backend's queue starts no jobs.
    """
    groups: dict[tuple[str, str], list[Job]] = {}
    for job in jobs:
        reason = closed.get(job.record.env) or job.state.reason or job.state.word
        reason = reason or "no reason given"
        groups.setdefault((job.record.env, reason), []).append(job)
    return [
        _waiting(env, reason, found, now, n_jobs, is_closed=bool(closed.get(env)))
        for (env, reason), found in groups.items()
    ]


def _waiting(
    env: str, reason: str, jobs: list[Job], now: float, n_jobs: int, *, is_closed: bool
) -> Finding:
    scheduler = scheduler_of(env)
    command = scheduler.status_command if scheduler else ""
    waited = duration(max(now - job.record.submitted for job in jobs))
    ids = ", ".join(job.record.job_id for job in jobs[:_MOST])
    waiting = part_of(len(jobs), n_jobs, "job")
    message = f"{waiting} in the queue, for {waited} so far: {reason} (job {ids})"
    if is_closed:
        return Finding("warning", "queue", message, CLOSED_ADVICE)
    advice = (scheduler.advice(reason) if scheduler else "") or f"See: {command}"
    is_vain = scheduler is not None and scheduler.never_starts(reason)
    return Finding("problem" if is_vain else "warning", "queue", message, advice)
