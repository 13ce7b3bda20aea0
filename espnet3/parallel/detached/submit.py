"""Submit, query and cancel the jobs of detached workers, or start them as processes here.

A program that submits jobs for others looks at files that other machines write. If its clock is
off, or if it cannot read them, those at work look dead to it, and it would submit more and more.
"""

import logging
import math
import os
import shlex
import signal
import socket
import subprocess
import sys
import uuid
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from espnet3.config.redact import scrub_text
from espnet3.errors import EspnetError, ResourceError
from espnet3.io.atomic import PRIVATE, write_json
from espnet3.io.shared_files import MAX_SKEW, clock_skew, describe_skew, folder_time, read_record
from espnet3.parallel.clusters.gpus import VARIABLE
from espnet3.parallel.clusters.job_logs import check_log_folder
from espnet3.parallel.clusters.registry import ON_THIS_MACHINE
from espnet3.parallel.process_pool import THREAD_VARIABLES
from espnet3.parallel.signals import uninterrupted
from espnet3.schedulers import (
    JobState,
    UnansweredError,
    ask_jobs,
    known_scheduler,
    scheduler_of,
)
from espnet3.shards.layout import RunLayout
from espnet3.shards.lease import machine_id, start_time
from espnet3.shards.records import (
    JobRecord,
    RecordPaths,
    complete_job,
    forget_job,
    make_folders,
    read_jobs,
)
from espnet3.text import duration, folded, local_time, part_of

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig
    from espnet3.parallel.detached.job_script import Job, WorkerJob


logger = logging.getLogger(__name__)
Asked = Literal["by hand", "by number", "by workers"]
"""What wants jobs: a user's command, also with a number of their own, or workers."""
_UNKNOWN = JobState("unknown", "")
HOUR = 3600.0
# A walltime of seconds would raise the limit to thousands of jobs.
_SHORTEST_WALLTIME = 60.0
_SPARE = 4
BY_HAND = 4.0
"""How many times as many jobs a person may submit as workers may by themselves."""


def submit_workers(
    roots: Sequence[Path],
    config: "ParallelConfig",
    n_workers: int,
    *,
    after: str = "",
    generation: int = 0,
    exclude: Sequence[str] = (),
    trust: str | None = None,
    asked: Asked = "by hand",
) -> list[JobRecord]:
    """Submit workers that serve these run folders one after the other, and note them in each.

    The config is kept in the folders: with it, jobs submit their own successors. Each job is noted
    before it is submitted, and its number as soon as it is known.

    Args:
        roots: the run folders.
        config: where workers run; its `n_workers` is how many should be there in all.
        n_workers: how many to submit now.
        after: the job that must end before they may begin.
        generation: how many jobs came before each of them.
        exclude: nodes on which they should not begin, where the scheduler can exclude nodes.
        trust: the user whose code they may load.
        asked: what asks for them, which decides the limit; see `limits`.

    Raises:
        ConfigError: if the options are not what the backend takes; nothing was submitted.
        SubmissionRefusedError: if it could do harm: a wrong clock, records that cannot be read, or
            more jobs than a run can need.
        ResourceError: if no worker could be submitted.
    """
    from espnet3.parallel.detached.job_script import WorkerJob, walltime_of

    roots = [root.resolve() for root in roots]
    config = _with_log_folder_from_here(config)
    if config.env not in ON_THIS_MACHINE:
        check_clock(roots[0])
        limit = {"by workers": 1.0, "by hand": BY_HAND, "by number": math.inf}[asked]
        check_limit(roots, config, n_workers, walltime=walltime_of(config), times=limit)
    for root in roots:
        path = make_folders(root).parallel(config.env)
        # Its options are commands that a job runs, and may export a token: see load_config.
        write_json(path, config.model_dump(mode="json"), permissions=PRIVATE)
        _logs(root).mkdir(exist_ok=True)
    work = WorkerJob(tuple(roots), after, generation, tuple(exclude), trust)
    if config.env in ON_THIS_MACHINE:
        return _start_processes(work, config, n_workers)
    return _submit_jobs(work, config, n_workers)


def _with_log_folder_from_here(config: "ParallelConfig") -> "ParallelConfig":
    """Make a relative `log_directory` absolute: successors are submitted from somewhere else."""
    folder = str(config.options.get("log_directory") or "")
    # A path that begins with ~ or $ means the same wherever a successor is submitted.
    if not folder or folder.startswith(("/", "~", "$")):
        return config
    options = {**config.options, "log_directory": os.path.abspath(folder)}
    return config.model_copy(update={"options": options})


def _logs(root: Path) -> Path:
    return RunLayout(root, 0).logs


def _start_processes(
    work: "WorkerJob", config: "ParallelConfig", n_workers: int
) -> list[JobRecord]:
    living = [job for job in read_jobs(make_folders(work.roots[0])) if _is_running(job)]
    variables = process_variables(config, [job.gpu for job in living])
    if config.env == "local_gpu":
        n_workers = min(n_workers, len(variables))
    records = []
    for number in range(n_workers):
        own = variables[number] if variables else {}
        arguments = work.arguments(config.env, folder_time(work.roots[0]), None)
        logs = _logs(work.roots[0])
        # A Ctrl-C between start and note would leave a process without a record.
        with uninterrupted():
            record = start_process(config, arguments, logs, own, generation=work.generation)
            _note(record, work.roots)
        records.append(record)
    return records


def _is_running(job: JobRecord) -> bool:
    return bool(job.machine) and process_state(job).phase == "running"


def _submit_jobs(work: "WorkerJob", config: "ParallelConfig", n_workers: int) -> list[JobRecord]:
    from espnet3.parallel.clusters.job_options import with_log_folder
    from espnet3.parallel.detached.job_script import make_job

    config = with_log_folder(config, _logs(work.roots[0]))
    check_log_folder(config.options)
    records: list[JobRecord] = []
    for _ in range(n_workers):
        # By the file system's clock: it is compared with heartbeats of other machines.
        submitted = folder_time(work.roots[0])
        # By the tag a job that starts finds its record, if its number was never written there.
        tagged = replace(work, tag=uuid.uuid4().hex[:12])
        job = make_job(config, tagged, submitted)
        try:
            with uninterrupted():
                records.append(_submit_job(job, tagged, config, submitted))
        except ResourceError as error:
            if not records:
                raise ResourceError(_refused(config, error, job)) from error
            logger.warning(
                "%s submitted; then %s. The run continues with what it has.",
                part_of(len(records), n_workers, "job", "was"), error,
            )  # fmt: skip
            break
    return records


def _submit_job(
    job: "Job", work: "WorkerJob", config: "ParallelConfig", submitted: float
) -> JobRecord:
    from espnet3.parallel.detached.job_script import submit_job, walltime_of

    record = JobRecord(
        env=config.env,
        job_id="",
        submitted=submitted,
        host=socket.gethostname(),
        walltime=walltime_of(config),
        after=work.after,
        generation=work.generation,
        # Records of older versions lack it: their successors are found by reading all records.
        marks_successor=True,
        script=scrub_text(job.job_script()),  # others read it, and it may export a token
        tag=work.tag,
    )
    # First: if this program is ended before it knows the number, others know that there is a job.
    _note(record, work.roots)
    try:
        number = submit_job(job, config.env)
    except UnansweredError:
        raise  # the job may be there
    except ResourceError:
        _forget(record, work.roots)
        raise
    record = replace(
        record,
        job_id=number,
        log=f"{_logs(work.roots[0]).name}/detached-{config.env}-{number}.log",
    )
    try:
        _note(record, work.roots)
    # Raising would tell the user that nothing was submitted, and a retry would make a second job.
    except OSError as error:
        logger.warning(
            "Job %s of %s was submitted, but its number could not be noted (%s). It notes it "
            "itself when it starts", number, config.env, error,
        )  # fmt: skip
    return record


def _forget(record: JobRecord, roots: Sequence[Path]) -> None:
    for root in roots:
        with suppress(OSError):
            forget_job(RecordPaths(root), record)


def _refused(config: "ParallelConfig", error: ResourceError, job: "Job") -> str:
    from espnet3.parallel.clusters.jobqueue import SCRIPT_BELOW, describe_refusal

    command = shlex.split(job.submit_command)[0]
    advice = describe_refusal(known_scheduler(config.env), command, str(error))
    return (
        f"parallel.env is {config.env!r}, but {error}. {advice}{SCRIPT_BELOW}"
        f"{scrub_text(job.job_script())}"
    )


def _note(record: JobRecord, roots: Sequence[Path]) -> None:
    for root in roots:
        # Relative: run folders may be moved, or mounted elsewhere, as long as it is together.
        others = [os.path.relpath(other, root) for other in roots if other != root]
        log = os.path.relpath(roots[0] / record.log, root) if record.log else ""
        complete_job(make_folders(root), replace(record, others=others, log=log))


def describe_submitting(record: JobRecord) -> str:
    """Say that a job may exist whose number was not recorded, and where to look for it."""
    scheduler = scheduler_of(record.env)
    look = scheduler.status_command if scheduler else "the list of jobs"
    return (
        f"a job was about to be submitted to {record.env} on {record.host} at "
        f"{local_time(record.submitted)}, and its "
        f"number was not noted: it may exist. Look for it with: {look}"
    )


def job_states(records: Sequence[JobRecord]) -> dict[str, JobState]:
    """Return what the scheduler, or this machine, says of jobs, by the key of their record.

    A job of which nothing is known here is `unknown`.
    """
    states = {record.key: process_state(record) for record in records if record.machine}
    by_env: dict[str, list[JobRecord]] = defaultdict(list)
    for record in records:
        if record.is_submitting:
            states[record.key] = JobState("unknown", "submitting", "its number is not known")
        elif not record.machine:
            by_env[record.env].append(record)
    for env, jobs in by_env.items():
        found = ask_jobs(env, [job.job_id for job in jobs])
        states.update({job.key: found.get(job.job_id, _UNKNOWN) for job in jobs})
    return states


def cancel_jobs(records: Sequence[JobRecord]) -> list[str]:
    """Cancel jobs, and ask processes of this machine to end; what has ended is left alone.

    Returns:
        What could not be done, a sentence each.
    """
    problems = [end_process(record) for record in records if record.machine]
    failed = {r.key: said for r in records if not r.machine and (said := _cancel(r))}
    # Most say so, with an error, of a job that has ended meanwhile.
    left = job_states([record for record in records if record.key in failed])
    problems += [said for key, said in failed.items() if left[key].phase != "ended"]
    return [problem for problem in problems if problem]


def _cancel(record: JobRecord) -> str:
    """Cancel a job; return what the command said if it refused."""
    if record.is_submitting:
        return describe_submitting(record)
    scheduler = scheduler_of(record.env)
    if scheduler is None or not scheduler.is_job_id(record.job_id):
        # Others may write into a run folder, and `-u somebody` is an option of scancel.
        return f"{record.job_id!r} is no number of a job of {record.env!r}"
    answer = scheduler.cancel_job(record.job_id)
    line = scheduler.cancel_line(record.job_id)
    if answer.failure == "missing":
        return f"{scheduler.cancel[0]} is not there: type {line} on {record.host}, say"
    said = folded(answer.error or answer.out)
    return f"{line}: {said or answer.code}" if answer.code != 0 else ""


class SubmissionRefusedError(ResourceError):
    """Nothing is submitted from here, or not now; the message says why."""


def jobs_per_hour(config: "ParallelConfig", walltime: float | None) -> int:
    """Return how many jobs may be submitted for a run within an hour.

    Each of `n_workers` may have a successor as often as the walltime ends it (taken as an hour if
    it is not known, and as a minute if it is less), and 4 more: its first job, the successor that
    waits behind that, and two in the place of jobs that were lost.
    """
    each = math.ceil(HOUR / min(max(walltime or HOUR, _SHORTEST_WALLTIME), HOUR))
    return config.n_workers * (each + _SPARE)


def check_clock(root: Path) -> None:
    """Refuse to submit from a machine whose clock is off.

    Raises:
        SubmissionRefusedError: with both times.
    """
    try:
        skew = clock_skew(root)
    except OSError as error:
        raise SubmissionRefusedError(
            f"no job is submitted: nothing can be written to {root} ({error.strerror or error}), "
            "so a job could not be recorded there.",
            fix="Make room or fix the permissions",
        ) from error
    if abs(skew) > MAX_SKEW:
        raise SubmissionRefusedError(
            f"no job is submitted: {describe_skew(root, skew)}. Let both follow one time server "
            "(timedatectl status, chronyc tracking), or submit from another machine"
        )


def read_all_jobs(root: Path) -> list[JobRecord]:
    """Return the records of all jobs of a run, each of them.

    Raises:
        SubmissionRefusedError: if one cannot be read: then the queued jobs are not known.
    """
    folder = RecordPaths(root).jobs
    try:
        names = sorted(n for n in os.listdir(folder) if n.endswith(".json") and n[0] != ".")
    # No job was ever submitted; any other error leaves that open.
    except FileNotFoundError:
        return []
    except OSError as error:
        raise SubmissionRefusedError(_unreadable(folder, error)) from error
    found = []
    for name in names:
        try:
            record = read_record(folder / name, JobRecord)
            written = (folder / name).stat().st_mtime
        except FileNotFoundError:
            continue
        except (OSError, EspnetError) as error:
            raise SubmissionRefusedError(_unreadable(folder / name, error)) from error
        if record is not None:  # else completed meanwhile, under another name
            # The writer's clock may have been ahead; the time of the file is the file system's.
            found.append(replace(record, submitted=min(record.submitted, written)))
    # A record gets its number under a new name: for a moment there are both.
    numbered = {record.tag for record in found if record.tag and record.job_id}
    found = [r for r in found if not (r.is_submitting and r.tag in numbered)]
    return sorted(found, key=lambda record: (record.submitted, record.job_id))


def _unreadable(path: Path, error: Exception) -> str:
    reason = error.strerror or error if isinstance(error, OSError) else error
    return (
        f"no job is submitted: the run's jobs cannot be determined, {path} cannot be read "
        f"({reason}). If it is damaged, and no such job is in the queue any more: "
        f"rm {shlex.quote(str(path))}"
    )


def check_limit(
    roots: Sequence[Path],
    config: "ParallelConfig",
    n_more: int,
    *,
    walltime: float | None,
    times: float = 1.0,
) -> None:
    """Refuse more jobs than a run can need within an hour, counted in the run folders.

    Args:
        roots: the run folders.
        config: with the number of workers.
        n_more: how many jobs are to be submitted.
        walltime: of a job, in seconds.
        times: factor on the limit for this caller; the records must be readable in any case.

    Raises:
        SubmissionRefusedError: with the numbers, or if they cannot be determined.
    """
    limit = jobs_per_hour(config, walltime) * times
    for root in roots:
        # Workers ask so often that the names must be enough, nearly always; a person may wait.
        if times <= 1.0 and _count_records(root) + n_more <= limit:
            continue
        now = _now(root)
        # Of a time to come counts too: the clock of the file system may have been set back.
        recent = [job for job in read_all_jobs(root) if job.submitted > now - HOUR]
        # Local processes take nothing from a queue.
        recent = [job for job in recent if not job.machine]
        if len(recent) + n_more > limit:
            oldest = min((job.submitted for job in recent), default=now)
            wait = duration(max(oldest + HOUR - now, 60.0))
            quoted = shlex.quote(str(root))
            raise SubmissionRefusedError(
                f"no job is submitted: {len(recent)} were within an hour for {root}, and {n_more} "
                f"more would be above the limit of {limit:.0f} for {config.n_workers} workers"
                f"{_why(walltime)}. Jobs that end at once, or records that are not seen, could be "
                f"the reason: espnet3 explain {quoted}. In {wait} it may continue; to add workers "
                f"all the same: espnet3 resume {quoted} --workers {n_more}"
            )


def _count_records(root: Path) -> int:
    folder = RecordPaths(root).jobs
    try:
        return sum(name.endswith(".json") for name in os.listdir(folder))
    except OSError as error:
        raise SubmissionRefusedError(_unreadable(folder, error)) from error


def _now(root: Path) -> float:
    try:
        return folder_time(root)
    except OSError as error:
        raise SubmissionRefusedError(_unreadable(root, error)) from error


def _why(walltime: float | None) -> str:
    return f" with a walltime of {duration(walltime)}" if walltime else ""


_PROGRAM = "espnet3.parallel.detached.work"
# In the background of a shell that ends at once: the process has no parent that would have
# to wait for it, and in a session of its own, so no terminal takes it along.
_SHELL = 'log=$1; shift; "$@" >>"$log" 2>&1 </dev/null & echo $!'


def start_process(
    config: "ParallelConfig",
    arguments: Sequence[str],
    logs: Path,
    variables: Mapping[str, str],
    *,
    generation: int = 0,
) -> JobRecord:
    """Start a worker that outlives this program, and return its record.

    Args:
        config: of the run.
        arguments: of `espnet3.parallel.detached.work`.
        logs: the folder for what the process writes before it has a log of its own.
        variables: what to add to its environment.
        generation: how many were there before it in its place.

    Raises:
        ResourceError: if it cannot be started.
    """
    # -P: the folder in which one types `espnet3 resume` may be one that others write into, and
    # their json.py is not to be imported.
    command = [sys.executable, "-P", "-m", _PROGRAM, *arguments]
    limits = dict.fromkeys(THREAD_VARIABLES, str(config.options.get("threads_per_worker", 1)))
    # Limits first: OMP_NUM_THREADS of the user's own wins. Unbuffered, or a killed worker's last
    # lines would be lost.
    environment = {**limits, **os.environ, "PYTHONUNBUFFERED": "1", **variables}
    environment["PYTHONPATH"] = os.pathsep.join(_python_path(environment.get("PYTHONPATH")))
    submitted = folder_time(logs)
    output = logs / f"detached-{config.env}.out"
    try:
        answer = subprocess.run(
            ["/bin/sh", "-c", _SHELL, "sh", str(output), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
            check=True,
            timeout=60,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ResourceError(
            f"No worker process could be started on {socket.gethostname()}: {error}"
        ) from error
    pid = int(answer.stdout)
    return JobRecord(
        env=config.env,
        job_id=str(pid),
        submitted=submitted,
        host=socket.gethostname(),
        machine=machine_id(),
        # Pids are used again: number and start time together name a process.
        started=start_time(pid) or 0,
        generation=generation,
        log=os.path.join(logs.name, f"detached-{config.env}-{socket.gethostname()}-{pid}.log"),
        gpu=variables.get(VARIABLE, "").partition(",")[0],
    )


def _python_path(given: str | None) -> list[str]:
    """Return where the process finds ESPnet3 itself; the rest is in the run folder."""
    entries = given.split(os.pathsep) if given else []
    home = str(Path(__file__).parents[3])
    # Last: the user's modules of the same names keep their precedence.
    return entries if home in entries else [*entries, home]


def process_variables(config: "ParallelConfig", taken: Sequence[str]) -> list[dict[str, str]]:
    """Return what to add to the environment of workers: for GPUs, one entry per free place.

    Empty if they need nothing.

    Raises:
        ResourceError: if there are fewer visible GPUs than workers.
    """
    if config.env != "local_gpu":
        return []
    from espnet3.parallel.clusters.local_gpu import worker_variables

    living, free = Counter(taken), []
    for each in worker_variables(config):
        gpu = each[VARIABLE].partition(",")[0]
        if living[gpu]:
            living[gpu] -= 1
        else:
            free.append(each)
    return free


def process_state(record: JobRecord) -> JobState:
    """Tell whether a process is there; of another machine nothing is known."""
    # Others may write into a run folder, and kill(-1) would end all of a user's processes.
    if not record.job_id.isdecimal():
        return JobState("ended", "", f"{record.job_id!r} is no number of a process")
    # By machine, not host name: containers may share one, and pids differ between them.
    if record.machine != machine_id():
        return JobState("unknown", "", f"it is a process of {record.host}")
    started = start_time(int(record.job_id))
    if started is None or (started and record.started and started != record.started):
        return JobState("ended", "gone")
    return JobState("running", "running")


def end_process(record: JobRecord) -> str:
    """Ask a process to hand back its work and end; return what keeps it from being asked."""
    state = process_state(record)
    if state.phase == "ended":
        return ""
    if state.phase == "unknown":
        return f"process {record.job_id} runs on {record.host}: it ends when it sees the mark"
    if not _is_worker(int(record.job_id)):
        return f"process {record.job_id} on {record.host} is no worker of ESPnet3"
    try:
        os.kill(int(record.job_id), signal.SIGTERM)
    except ProcessLookupError:
        return ""
    except PermissionError:
        return f"process {record.job_id} on {record.host} is another user's"
    return ""


def _is_worker(pid: int) -> bool:
    """Tell whether a process is what it should be: others may write into a run folder."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        # Without /proc there is nothing to compare with.
        return not Path("/proc/self/cmdline").exists()
    # The shell that is about to become it has the name among its words, too.
    return _PROGRAM.encode() in command.split(b"\0")
