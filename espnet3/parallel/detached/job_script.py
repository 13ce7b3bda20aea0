"""Render and submit the job script of a detached worker.

It is the one that dask-jobqueue would write, which is imported only for what is rare: see
`plain_header`.
"""

import logging
import os
import re
import shlex
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from espnet3.errors import ConfigError
from espnet3.parallel.clusters.dask_config import settings
from espnet3.parallel.clusters.job_header import plain_header
from espnet3.parallel.clusters.job_logs import removing_new_folder
from espnet3.parallel.clusters.job_options import complete_options, submission_environment
from espnet3.parallel.clusters.registry import BACKENDS, cluster_class, walltime_seconds
from espnet3.parallel.detached.description import encode_folders
from espnet3.schedulers import Scheduler, known_scheduler

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig

logger = logging.getLogger(__name__)
_NAME = "espnet3"
_DASKS_NAME = "dask-worker"
# What is about a Dask worker or its scheduler: detached workers have neither.
_ONLY_DASK = (
    "scheduler_options", "security", "protocol", "interface", "host", "dashboard_address",
    "shared_temp_directory", "silence_logs", "asynchronous", "loop", "n_workers", "name",
    "scheduler_cls", "job_cls", "worker_extra_args", "extra", "nanny", "worker_command",
    "death_timeout", "local_directory",
)  # fmt: skip


@dataclass(frozen=True)
class WorkerJob:
    """Job to submit: a worker for these folders."""

    roots: tuple[Path, ...]
    after: str = ""
    generation: int = 0
    exclude: tuple[str, ...] = ()
    trust: str | None = None
    tag: str = ""
    """Of the submission; see `JobRecord.tag`."""

    def arguments(self, env: str, submitted: float, walltime: float | None) -> list[str]:
        """Return the arguments of `espnet3.parallel.detached.work`."""
        words = encode_folders(self.roots)
        words += ["--env", env, "--generation", str(self.generation)]
        words += ["--submitted", f"{submitted:.3f}"]
        words += ["--walltime", f"{walltime:g}"] if walltime else []
        words += ["--tag", self.tag] if self.tag else []
        return words + (["--trust", self.trust] if self.trust else [])


class Job(Protocol):
    """A job that can be submitted."""

    @property
    def submit_command(self) -> str:
        """The words that submit a script."""

    def job_script(self) -> str:
        """Return its script."""

    def job_file(self) -> AbstractContextManager[str]:
        """Write the script to a file, which is there inside of a `with` block."""


@dataclass(frozen=True)
class PlainJob:
    """A job whose script was made without dask-jobqueue."""

    script: str
    submit_command: str

    def job_script(self) -> str:
        """Return its script."""
        return self.script

    @contextmanager
    def job_file(self) -> Iterator[str]:
        """Write the script to a file, which is there inside of the `with` block."""
        with tempfile.NamedTemporaryFile("w", suffix=".sh") as file:
            file.write(self.script)
            file.flush()
            yield file.name


def make_job(config: "ParallelConfig", work: WorkerJob, submitted: float) -> Job:
    """Return a job that runs a detached worker, as dask-jobqueue would make it.

    Raises:
        ConfigError: if its job class refuses the options.
    """
    scheduler = known_scheduler(config.env)
    options = {**_options(config, work), "name": _NAME}
    python = options.get("python") or shlex.quote(sys.executable)
    # -P: the folder that a job begins in may belong to others, and their modules be imported.
    command = [*_exec(python), python, "-P", "-m", "espnet3.parallel.detached.work"]
    command += map(shlex.quote, work.arguments(config.env, submitted, walltime_of(config)))
    command += ["--job", scheduler.number_word]
    line = " ".join(command)
    header = plain_header(scheduler, options)
    if header is None:
        return _job_of_dask(config, options, line)
    if folder := options.get("log_directory"):
        os.makedirs(folder, exist_ok=True)
    shebang = options.get("shebang") or settings(config.env)["shebang"]
    lines = [shebang, "", header, *filter(None, options["job_script_prologue"]), line, ""]
    return PlainJob("\n".join(lines), shlex.join(scheduler.submit))


def _job_of_dask(config: "ParallelConfig", options: dict[str, Any], line: str) -> Job:
    """Let dask-jobqueue make the job, or say what is wrong with the options."""
    from espnet3.parallel.clusters.jobqueue import checked, patched_job_class, sigint_kept

    backend, scheduler = BACKENDS[config.env], known_scheduler(config.env)
    # Importing dask-jobqueue sets a handler with which Ctrl-C ends this program with code 0.
    with sigint_kept():
        cluster = cluster_class(config.env, backend)
        job_class = patched_job_class(cluster.job_cls, scheduler)
    with warnings.catch_warnings():
        # That OAR's memory is not limited by Dask; that a name is old.
        warnings.simplefilter("ignore")
        job: Any = checked(job_class, config, backend, options, cluster)
    if not scheduler.has_script:
        line = "; ".join([*options["job_script_prologue"], line])
    job._command_template = line
    found: Job = job
    return found


def _exec(python: str) -> list[str]:
    """Let the worker take the place of the script's shell, which would keep signals to itself."""
    return [] if re.search(r"[;&|\n]", python) else ["exec"]


def _options(config: "ParallelConfig", work: WorkerJob) -> dict[str, Any]:
    _check_processes(config)
    # Dry: without a Dask scheduler there is no use for an address for nodes.
    options = complete_options(config, is_dry=True, is_detached=True)
    scheduler = known_scheduler(config.env)
    directives = scheduler.with_dependency(options["job_extra_directives"], work.after)
    directives = scheduler.with_exclusion(directives, work.exclude)
    directives = scheduler.with_restart(directives, config.max_successors)
    directives = scheduler.with_tag(directives, work.tag)
    kept = {name: value for name, value in options.items() if name not in _ONLY_DASK}
    kept["job_extra_directives"] = directives
    _tell_of_unused(tuple(name for name in config.options if name in _ONLY_DASK))
    # Only if the user's own Dask configuration names no other.
    if settings(config.env)["name"] == _DASKS_NAME:
        kept.setdefault("job_name", _NAME)
    return kept


@cache  # a run submits many jobs: once is enough
def _tell_of_unused(names: tuple[str, ...]) -> None:
    if names:
        logger.info(
            "Detached workers have no Dask scheduler, and do not use parallel.options: %s",
            ", ".join(names),
        )


def _check_processes(config: "ParallelConfig") -> None:
    n_processes = config.options.get("processes")
    if isinstance(n_processes, int) and n_processes > 1:
        raise ConfigError(
            f"parallel.options.processes is {n_processes}, but a detached job has one worker. "
            f"Leave it out and set parallel.n_workers: {config.n_workers * n_processes}, or "
            "parallel.mode: sync"
        )


def walltime_of(config: "ParallelConfig") -> float | None:
    """Return after how many seconds a job ends: as the options say, or Dask's own configuration."""
    seconds = walltime_seconds(config)
    walltime = settings(config.env)["walltime"]
    # The options win; dask-jobqueue takes its own configuration only for what they leave out.
    if seconds is not None or walltime is None:
        return seconds
    with_time = config.model_copy(update={"options": {"walltime": str(walltime)}})
    return walltime_seconds(with_time)


def render_worker_script(config: "ParallelConfig", roots: Sequence[Path]) -> str:
    """Return the script that each detached worker's job would run; nothing is submitted.

    Raises:
        ConfigError: if the job class refuses the options.
    """
    work = WorkerJob(tuple(roots))
    with removing_new_folder(config.options.get("log_directory")):
        return make_job(config, work, 0.0).job_script()


def check(config: "ParallelConfig") -> None:
    """Make a job of the options; nothing is submitted.

    Raises:
        ConfigError: if the job class refuses them.
    """
    render_worker_script(config, [])


def submit_job(job: Job, env: str) -> str:
    """Submit a job and return its number.

    Raises:
        UnansweredError: if the job may be there all the same.
        ResourceError: with the scheduler's words.
    """
    scheduler = known_scheduler(env)
    # The file is removed after the block: schedulers copy the script when they accept it.
    with job.job_file() as script:
        return scheduler.submit_script(
            script,
            words=shlex.split(job.submit_command),
            environment=job_environment(scheduler),
        )


def job_environment(scheduler: Scheduler) -> dict[str, str]:
    """Return the environment in which to submit a job, perhaps from within another one.

    It travels from job to job, so nothing in it may grow.
    """
    environment = {
        name: value
        for name, value in submission_environment().items()
        if not name.startswith(scheduler.own_variables)
    }
    if path := environment.get("PYTHONPATH"):
        # Each job adds to it: without this a long chain would reach the limit of an environment.
        environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path.split(os.pathsep)))
    return environment
