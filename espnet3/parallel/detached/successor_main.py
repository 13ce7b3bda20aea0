"""Submit successor jobs and replace missing workers; a subprocess of each worker.

`python -m espnet3.parallel.detached.successor_main RUN_DIR ... --env ENV --job ID --generation N`

A job submits its own successor when it begins, to start when it has ended, however it ends: one
that is killed could not do so any more. The one whose turn it is, once a minute, also compares the
jobs in the folder with what the scheduler says, and submits what is missing.
"""

import argparse
import logging
import os
import shlex
import sys
from collections.abc import Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3 import logs
from espnet3.errors import EspnetError, FileSystemError, RunFolderError
from espnet3.io.atomic import write_json
from espnet3.io.shared_files import (
    DamagedFileError,
    FolderClock,
    folder_time,
    is_there,
    parse_record,
    read_record,
)
from espnet3.parallel.clusters.registry import ON_THIS_MACHINE
from espnet3.parallel.detached.description import load_trusted, read_own
from espnet3.parallel.detached.submit import (
    SubmissionRefusedError,
    cancel_jobs,
    check_clock,
    read_all_jobs,
    submit_workers,
)
from espnet3.parallel.detached.workforce import UNKNOWN, Job, Workforce, living_ids, read_workforce
from espnet3.parallel.faults import avoided_nodes
from espnet3.parallel.parallel import as_parallel_config
from espnet3.schedulers import FindsTags, JobState, ask_jobs, scheduler_of
from espnet3.shards.commit import named_shards
from espnet3.shards.layout import leases_folder
from espnet3.shards.lease import count_owners
from espnet3.shards.manifest import load_manifest
from espnet3.shards.records import (
    JobRecord,
    RecordPaths,
    WorkerRecord,
    read_deaths,
    read_job,
    read_stop,
    read_workers,
    takes_turn,
)
from espnet3.text import first_line, part_of

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig

logger = logging.getLogger("espnet3.parallel.detached.successor_main")  # also as __main__
_AGAIN_SECONDS = 600.0
# Several answers over minutes: a scheduler that restarts or is busy omits jobs for that long.
_MIN_LOOKS = 4
_UNSEEN_SECONDS = 150.0
_SIGNALLED = "it got SIG"
N_FRUITLESS = 3
"""Jobs in a row that may end without finishing a shard."""


class NoAnswer(Exception):
    """The scheduler says nothing that could be relied on: neither that jobs are there nor that they
    are not."""


@dataclass(frozen=True)
class Follower:
    """A worker's job, and what is submitted or cancelled on its behalf."""

    roots: tuple[Path, ...]
    env: str
    job: str
    generation: int = 0
    trust: str | None = None
    has_turn: bool = False
    """Whether its worker has this minute's turn to replace what is missing."""

    def run(self) -> Iterator[str]:
        """Do what is to be done, and yield what was done, a line each."""
        try:
            roots = [root for root in self.roots if _is_open(root)]
            if not roots:
                yield from self.cancel_waiting()
            # Processes have no walltime, hence no successors.
            elif self.env not in ON_THIS_MACHINE:
                yield from self._look_after(roots)
        except (SubmissionRefusedError, FileSystemError) as error:
            yield f"no successor: {error}"

    def _look_after(self, roots: list[Path]) -> Iterator[str]:
        # With a wrong clock, those at work may look dead, and would be replaced.
        check_clock(roots[0])
        for root in roots:
            # A mark that cannot be read may mean "cancelled": submitting then would revive the run.
            if os.path.lexists(RecordPaths(root).stop):
                raise SubmissionRefusedError(f"{RecordPaths(root).stop} cannot be read")
        config = load_config(roots[0], self.env, trust=self.trust)
        yield from self.submit_successor(roots, config)
        if self.has_turn or takes_turn(roots[0], FolderClock(roots[0]).now()):
            yield from self.complete_workforce(roots, config)

    def submit_successor(self, roots: list[Path], config: "ParallelConfig") -> Iterator[str]:
        """Submit the successor of this job, unless there is one, or nothing for it to do.

        Raises:
            SubmissionRefusedError: if the jobs of the run cannot be determined.
        """
        if not self.job or self._has_successor(roots[0]):
            return
        if _age(RecordPaths(roots[0]).refused(self.env, self.job)) < _AGAIN_SECONDS:
            return  # a node that may not submit will not be let in a minute either
        if self._is_needed(roots):
            yield from self._follow(roots, config, self.job, self.generation)

    def _has_successor(self, root: Path) -> bool:
        paths = RecordPaths(root)
        try:
            own = read_job(paths, self.env, self.job)
            # One look at a file, in place of reading the records of all jobs each time.
            if own is not None and own.marks_successor:
                return is_there(paths.successor(self.env, self.job))
        except OSError as error:
            raise SubmissionRefusedError(f"the run's jobs cannot be read: {error}") from error
        return any(record.after == self.job for record in self._records(root))

    def _is_needed(self, roots: list[Path]) -> bool:
        """Tell whether there is a shard for one more successor.

        Other workers may end at the same time, and their successors will be there. Each has one at
        most: while there are more open shards than workers, no record need be read.
        """
        n_open = _count_open_shards(roots)
        if count_owners(leases_folder(roots[0])) <= n_open:
            return True
        return len(waiting_successors(roots[0], self._records(roots[0]))) < n_open

    def _follow(
        self, roots: list[Path], config: "ParallelConfig", job: str, generation: int
    ) -> Iterator[str]:
        scheduler = scheduler_of(self.env)
        if scheduler is None or not scheduler.has_successors:
            return
        if config.max_successors is not None and generation >= config.max_successors:
            yield f"no successor: parallel.max_successors is {config.max_successors}"
            return
        chain = predecessors(roots[0], self.env, job)
        # A chain that fails at once (a bad option, a broken node) would never end otherwise.
        if is_fruitless(roots[0], chain) and not self._lost_a_node(chain):
            yield _fruitless(chain, roots)
            return
        try:
            jobs = self._submit(roots, config, 1, after=job, generation=generation + 1)
        # Ours, and may pass: only what the scheduler says is remembered as a refusal.
        except (SubmissionRefusedError, FileSystemError):
            raise
        except EspnetError as error:
            # On disk: each look is a process of its own, and remembers nothing.
            RecordPaths(roots[0]).refused(self.env, job).touch()
            yield f"no successor: {_reason(error)}. When job {job} ends, type: {_resume(roots)}"
            return
        yield f"job {jobs[0].job_id} follows when job {job} has ended"

    def complete_workforce(self, roots: list[Path], config: "ParallelConfig") -> Iterator[str]:
        """Submit workers in the place of those that are gone, and successors that are gone.

        Raises:
            SubmissionRefusedError: if the jobs of the run cannot be determined.
        """
        records = read_all_jobs(roots[0])  # one that cannot be read would be missing below
        now = _folder_time(roots[0])
        try:
            workforce = read_workforce(roots[0], ask=self._ask, now=now, jobs=records)
        except NoAnswer:
            return
        # Counted as present: a worker too few costs time, one too many costs somebody's quota.
        doubtful = self._not_given_up(roots[0], workforce, now)
        n_open = _count_open_shards(roots)
        n_waiting = sum(job.is_successor and job.state.phase == "pending" for job in workforce.jobs)
        for record in without_successor(workforce, self.env)[: max(n_open - n_waiting, 0)]:
            yield from self._follow(roots, config, record.job_id, record.generation)
        n_wanted = min(config.n_workers, n_open)
        n_missing = n_wanted - workforce.n_present - len(doubtful)
        if n_missing <= 0:
            return
        ended = last_ended(workforce, self.env)
        # Replacements continue the count, or max_successors would limit no chain that broke.
        generation = max((record.generation for record in ended), default=-1) + 1
        if config.max_successors is not None and generation > config.max_successors:
            return
        if is_fruitless(roots[0], ended) and not self._lost_a_node(ended):
            yield _fruitless(ended, roots)
            return
        try:
            jobs = self._submit(roots, config, n_missing, after="", generation=generation)
        except (SubmissionRefusedError, FileSystemError):
            raise
        except EspnetError as error:
            yield f"no successor: {_reason(error)}"
            return
        numbers = ", ".join(job.job_id for job in jobs)
        yield f"{part_of(n_missing, n_wanted, 'worker', 'was')} missing; submitted: {numbers}"

    def _lost_a_node(self, records: Sequence[JobRecord]) -> bool:
        """Tell whether the end of one of these jobs says nothing about the next one."""
        states = ask_jobs(self.env, [record.job_id for record in records])
        jobs = (Job(r, states[r.job_id]) for r in records if r.job_id in states)
        return any(job.is_blameless for job in jobs)

    def cancel_waiting(self) -> Iterator[str]:
        """Cancel the jobs that wait for work, now that there is none."""
        waiting: dict[str, JobRecord] = {}
        for root in self.roots:
            with suppress(NoAnswer):
                jobs = read_workforce(root, ask=self._ask_simply).jobs
                waiting.update({
                    job.record.key: job.record
                    for job in jobs
                    if _is_needless(job) and not _serves_another(job.record, root)
                })  # fmt: skip
        if not waiting:
            return
        problems = cancel_jobs(list(waiting.values()))
        yield f"cancelled jobs that waited: {', '.join(r.job_id for r in waiting.values())}"
        yield from problems

    def _submit(
        self, roots: list[Path], config: "ParallelConfig", n: int, *, after: str, generation: int
    ) -> list[JobRecord]:
        avoided = _nodes_to_avoid(roots)
        return submit_workers(
            roots,
            config,
            n,
            after=after,
            generation=generation,
            exclude=avoided,
            trust=self.trust,
            asked="by workers",
        )

    def _records(self, root: Path) -> list[JobRecord]:
        """Return the records of this scheduler's jobs, each of them.

        Raises:
            SubmissionRefusedError: if one cannot be read.
        """
        return [record for record in read_all_jobs(root) if record.env == self.env]

    def _not_given_up(self, root: Path, workforce: Workforce, now: float) -> list[Job]:
        """Return the jobs that may exist although neither scheduler nor worker says so.

        One answer without a job is no proof that it is gone: a busy scheduler omits some. It must
        be missing in several looks, by whichever workers, over some minutes, and be silent itself.
        """
        mine = workforce.doubtful
        path = RecordPaths(root).unseen(self.env)
        before = _read_unseen(path)
        looks = {}
        for job in mine:
            since, n_looks = before.get(job.record.key, (now, 0))
            # Of a time to come: the clock of the file system was set back.
            since = now if since > now else since
            looks[job.record.key] = (since, n_looks + 1)
        if looks != before:
            # Not synced: if it is lost, counting begins again, and a job is only given up later.
            write_json(path, looks, sync=False)
        return [job for job in mine if not _is_given_up(job, *looks[job.record.key], now)]

    def _ask(self, records: Sequence[JobRecord]) -> dict[str, JobState]:
        """Ask for jobs of this scheduler, and for the one in which this runs.

        An answer that does not have that is not about all jobs, whatever else it says.
        """
        answer = self._answer(records, also=[self.job] if self.job else [])
        if self.job and answer and answer.get(self.job, UNKNOWN).phase != "running":
            raise NoAnswer
        return {
            r.key: answer[r.job_id] for r in records if r.env == self.env and r.job_id in answer
        }

    def _ask_simply(self, records: Sequence[JobRecord]) -> dict[str, JobState]:
        """Do the same where nothing is submitted on account of the answer."""
        answer = self._answer(records)
        return {
            r.key: answer[r.job_id] for r in records if r.env == self.env and r.job_id in answer
        }

    def _answer(
        self, records: Sequence[JobRecord], also: Sequence[str] = ()
    ) -> dict[str, JobState]:
        """Return what the scheduler says, by number; of jobs elsewhere nothing is known here."""
        mine = [r.job_id for r in records if r.env == self.env and not r.machine and r.job_id]
        if not mine or scheduler_of(self.env) is None:
            return {}
        answer = ask_jobs(self.env, list(dict.fromkeys([*mine, *also])))
        if not answer:
            raise NoAnswer
        return answer


def _reason(error: EspnetError) -> str:
    """Return what a scheduler said, without the advice, which is for users and not for the log."""
    return first_line(error.__cause__ or error).rstrip(".")


def _age(path: Path) -> float:
    """Return for how long a file is as it is; infinite if it is not there."""
    try:
        written = path.stat().st_mtime
    except FileNotFoundError:
        return float("inf")
    return _folder_time(path.parent) - written


def _folder_time(folder: Path) -> float:
    try:
        return folder_time(folder)
    except OSError as error:
        raise SubmissionRefusedError(
            f"nothing can be written to {folder}: {error.strerror or error}"
        ) from error


def _read_unseen(path: Path) -> dict[str, tuple[float, int]]:
    """Return since when jobs are not seen, and how often; nothing if that is damaged or new."""
    try:
        return read_record(path, dict[str, tuple[float, int]]) or {}
    except DamagedFileError:
        return {}


def _is_given_up(job: Job, since: float, n_looks: int, now: float) -> bool:
    if job.record.is_submitting and not isinstance(scheduler_of(job.record.env), FindsTags):
        return False  # it cannot be asked for; it may wait in the queue for days
    return n_looks >= _MIN_LOOKS and now - since >= _UNSEEN_SECONDS


def _is_needless(job: Job) -> bool:
    """Tell whether a job waits, or will wait again: a node that could not start it gives it back.

    One that has brought a worker ends by itself.
    """
    return job.state.phase == "pending" or (job.state.phase == "running" and not job.workers)


def _serves_another(record: JobRecord, root: Path) -> bool:
    return any(_is_open(Path(os.path.normpath(root / other))) for other in record.others)


def _fruitless(jobs: Sequence[JobRecord], roots: Sequence[Path]) -> str:
    numbers = ", ".join(job.job_id for job in jobs)
    return (
        f"no successor: the last {len(jobs)} jobs ({numbers}) ended without finishing a shard. To "
        f"see why: espnet3 explain {shlex.quote(str(roots[0]))}; to continue: {_resume(roots)}"
    )


def _resume(roots: Sequence[Path]) -> str:
    return f"espnet3 resume {shlex.join(map(str, roots))}"


def _is_open(root: Path) -> bool:
    """Tell whether workers have something to do in a folder, and may."""
    manifest = load_manifest(root)
    if manifest is None or read_stop(RecordPaths(root)) is not None:
        return False
    return not manifest.layout(root).success.exists()


def _count_open_shards(roots: Sequence[Path]) -> int:
    """Return how many shards are not done in all; a merge that is left counts as one."""
    return sum(map(_count_open, roots))


def _count_open(root: Path) -> int:
    manifest = load_manifest(root)
    if manifest is None:
        return 0
    # By name: reading each done marker every minute would be too much for a file server.
    n_done = len(named_shards(manifest.layout(root)))
    return max(manifest.n_shards - n_done, 1)


def _nodes_to_avoid(roots: Sequence[Path]) -> list[str]:
    """Return the nodes on which work for any of the folders dies."""
    found: dict[str, str] = {}
    for root in roots:
        manifest = load_manifest(root)
        if manifest is not None:
            notes = read_deaths(RecordPaths(root))
            found |= avoided_nodes(root, manifest, notes, _folder_time(root))
    return sorted(found)


def load_config(root: Path, env: str, *, trust: str | None = None) -> "ParallelConfig":
    """Return with which config workers were last submitted to a backend.

    Its options are commands that a job runs, so one that another user wrote, or could have
    written, is not taken; then that of the run's submission is.

    Raises:
        RunFolderError: if that is another user's too, or of another backend.
    """
    path = RecordPaths(root).parallel(env)
    try:
        config = as_parallel_config(parse_record(read_own(path, trust), dict[str, Any], path))
    except (OSError, EspnetError):
        config = load_trusted(root, trust=trust).config()
    if config.env != env:
        raise RunFolderError(
            f"{path}, with the block for more workers, cannot be used here, and the run was "
            f"submitted to {config.env}. To continue: espnet3 resume {shlex.quote(str(root))} "
            f"--env {env}"
        )
    return config


def predecessors(root: Path, env: str, job: str) -> list[JobRecord]:
    """Return the last jobs of a chain before a job, the latest first."""
    paths = RecordPaths(root)
    found: list[JobRecord] = []
    current = read_job(paths, env, job)
    # Bounded also because records could form a circle: others may write them.
    while current is not None and current.after and len(found) < N_FRUITLESS:
        current = read_job(paths, env, current.after)
        found += [current] if current else []
    return found


def last_ended(workforce: Workforce, env: str) -> list[JobRecord]:
    """Return the last jobs of a run that have ended, the latest first.

    Not those that were cancelled while they waited: they say nothing of the work.
    """
    mine = [job for job in workforce.jobs if job.record.env == env]
    there = {job.record.job_id for job in mine if job.is_there}
    ended = [
        job.record
        for job in mine
        if not job.is_there and (job.workers or not _was_cancelled(job, there))
    ]
    return sorted(ended, key=lambda record: record.submitted, reverse=True)[:N_FRUITLESS]


def _was_cancelled(job: Job, there: Container[str]) -> bool:
    """Tell whether a job that brought no worker never began, as far as one can tell."""
    return job.record.after in there or job.was_cancelled


def without_successor(workforce: Workforce, env: str) -> list[JobRecord]:
    """Return the active jobs whose successor was cancelled."""
    mine = [job for job in workforce.jobs if job.record.env == env]
    after = {job.record.after for job in mine if job.record.after}
    there = {job.record.after for job in mine if job.is_there}
    return [
        job.record for job in mine if job.has_living_worker and job.record.job_id in after - there
    ]


def waiting_successors(root: Path, records: Sequence[JobRecord]) -> list[JobRecord]:
    """Return the jobs that wait for a running one, as far as the folder says."""
    workers = read_workers(RecordPaths(root))
    living = living_ids(root)
    at_work = {worker.job_id for worker in workers if worker.owner_id in living}
    began = {worker.job_id for worker in workers}
    return [job for job in records if job.after in at_work and job.job_id not in began]


def is_fruitless(root: Path, jobs: Sequence[JobRecord]) -> bool:
    """Tell whether these jobs finished nothing, nor did anybody else since the first of them.

    A worker that died at a certain batch got something done: after some such deaths the item is
    found and given up, or the run stops.
    """
    if len(jobs) < N_FRUITLESS:
        return False
    numbers = {(job.env, job.job_id) for job in jobs}
    paths = RecordPaths(root)
    workers = read_workers(paths)
    theirs = [worker for worker in workers if (worker.env, worker.job_id) in numbers]
    if any(worker.reason.startswith(_SIGNALLED) for worker in theirs):
        return False  # it was ended by a signal, and released its shard
    since = min((worker.started for worker in theirs), default=min(job.submitted for job in jobs))
    if any(_was_useful(worker, since) for worker in workers):
        return False
    return not any(note.start is not None and note.time >= since for note in read_deaths(paths))


def _was_useful(worker: WorkerRecord, since: float) -> bool:
    return worker.n_shards > 0 and (worker.ended or worker.seen or worker.started) >= since


def main(arguments: Sequence[str] | None = None) -> int:
    """Submit what is missing, and log what was done."""
    parser = argparse.ArgumentParser(prog="python -m espnet3.parallel.detached.successor_main")
    parser.add_argument("run_dirs", nargs="+", type=Path)
    parser.add_argument("--env", required=True)
    parser.add_argument("--job", default="")
    parser.add_argument("--generation", type=int, default=0)
    parser.add_argument("--trust")
    parser.add_argument("--has-turn", action="store_true")
    given = parser.parse_args(arguments)
    logs.log_to_stderr()
    logging.getLogger("dask_jobqueue").setLevel(logging.WARNING)  # it logs what it assumes
    roots = tuple(root.resolve() for root in given.run_dirs)
    follower = Follower(roots, given.env, given.job, given.generation, given.trust, given.has_turn)
    try:
        for line in follower.run():
            logger.info("%s", line)
    except (EspnetError, OSError) as error:  # the worker must not end for this
        logger.warning("no successor: %s", error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
