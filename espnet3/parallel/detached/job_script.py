"""The job of a detached worker, rendered and submitted by the job classes of dask-jobqueue."""

import asyncio
import logging
import os
import re
import shlex
import sys
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.errors import ConfigError, ResourceError
from espnet3.parallel.clusters.job_environment import submission_environment
from espnet3.parallel.clusters.job_options import complete_options
from espnet3.parallel.clusters.jobqueue import checked, mended, no_new_folder, sigint_kept
from espnet3.parallel.clusters.requested import walltime_seconds
from espnet3.parallel.clusters.table import BACKENDS, cluster_class
from espnet3.parallel.detached.directives import (
    with_dependency,
    with_exclusion,
    with_restart,
    with_tag,
)
from espnet3.parallel.detached.folder_words import spell_folders
from espnet3.text import folded

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig

logger = logging.getLogger(__name__)
_SUBMIT_SECONDS = 60.0
_NAME = "espnet3"
_DASKS_NAME = "dask-worker"
# What is about a Dask worker or its scheduler: detached workers have neither.
_ONLY_DASK = (
    "scheduler_options", "security", "protocol", "interface", "host", "dashboard_address",
    "shared_temp_directory", "silence_logs", "asynchronous", "loop", "n_workers", "name",
    "scheduler_cls", "job_cls", "worker_extra_args", "extra", "nanny", "worker_command",
    "death_timeout", "local_directory",
)  # fmt: skip
# How a job tells its number as its submission told it. A worker could look for it among its
# variables, but there may be those of another scheduler, from whose job this one was submitted.
_JOB_IDS = {
    "slurm": '"$SLURM_JOB_ID"',
    "sge": '"$JOB_ID"',
    "lsf": '"$LSB_JOBID"',
    "oar": '"$OAR_JOB_ID"',
    "pbs": '"${PBS_JOBID%%.*}"',
    "moab": '"$(j=${MOAB_JOBID:-$PBS_JOBID}; j=${j#Moab.}; echo "${j%%.*}")"',
    "htcondor": "$(ClusterId).$(ProcId)",
}
# Of a job that submits another: they say what the first one has, and would be taken for wishes.
_OF_A_JOB = (
    "SLURM_CPU", "SLURM_MEM", "SLURM_JOB", "SLURM_NTASKS", "SLURM_NNODES", "SLURM_NODE",
    "SLURM_TASK", "SLURM_STEP", "SLURM_TRES", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_GTIDS",
    "SLURM_SUBMIT", "SLURM_TOPOLOGY", "SLURM_GPUS", "SLURM_EXPORT_ENV", "SLURM_DISTRIBUTION",
    "SLURM_THREADS", "SLURM_CORES", "SLURM_HINT",
)  # fmt: skip


@dataclass(frozen=True)
class WorkerJob:
    """What to submit: a worker for these folders."""

    roots: tuple[Path, ...]
    after: str = ""
    generation: int = 0
    exclude: tuple[str, ...] = ()
    trust: str | None = None
    tag: str = ""
    """Of the submission; see `JobRecord.tag`."""

    def arguments(self, env: str, submitted: float, walltime: float | None) -> list[str]:
        """Return the arguments of `espnet3.parallel.detached.work`."""
        words = spell_folders(self.roots)
        words += ["--env", env, "--generation", str(self.generation)]
        words += ["--submitted", f"{submitted:.3f}"]
        words += ["--walltime", f"{walltime:g}"] if walltime else []
        words += ["--tag", self.tag] if self.tag else []
        return words + (["--trust", self.trust] if self.trust else [])


def make_job(config: "ParallelConfig", work: WorkerJob, submitted: float) -> Any:
    """Return a job of dask-jobqueue that runs a detached worker.

    Raises:
        ConfigError: if the job class refuses the options.
    """
    backend = BACKENDS[config.env]
    with sigint_kept():
        job_class = mended(cluster_class(config.env, backend).job_cls, job_environment)
    options = _options(config, work)
    python = options.get("python") or shlex.quote(sys.executable)
    with warnings.catch_warnings():
        # That OAR's memory is not limited by Dask; that a name is old.
        warnings.simplefilter("ignore")
        job = checked(job_class, config, backend, {**options, "name": _NAME})
    command = [*_exec(python), python, "-P", "-m", "espnet3.parallel.detached.work"]
    command += map(shlex.quote, work.arguments(config.env, submitted, walltime_of(config)))
    command += ["--job", _JOB_IDS[config.env]]
    line = " ".join(command)
    if config.env == "htcondor":  # it has no script, but one line for a shell
        line = "; ".join([*options["job_script_prologue"], line])
    job._command_template = line
    return job


def _exec(python: str) -> list[str]:
    """Let the worker take the place of the script's shell, which would keep signals to itself."""
    return [] if re.search(r"[;&|\n]", python) else ["exec"]


def _options(config: "ParallelConfig", work: WorkerJob) -> dict[str, Any]:
    _check_processes(config)
    options = complete_options(config, is_dry=True)
    directives = options["job_extra_directives"]
    directives = with_dependency(config.env, directives, work.after)
    directives = with_exclusion(config.env, directives, work.exclude)
    directives = with_restart(config.env, directives, config.max_successors)
    directives = with_tag(config.env, directives, work.tag)
    kept = {name: value for name, value in options.items() if name not in _ONLY_DASK}
    kept["job_extra_directives"] = directives
    _tell_of_unused(tuple(name for name in config.options if name in _ONLY_DASK))
    if _of_dask(config, "name") == _DASKS_NAME:
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
    walltime = _of_dask(config, "walltime")
    if seconds is not None or walltime is None:
        return seconds
    told = config.model_copy(update={"options": {"walltime": str(walltime)}})
    return walltime_seconds(told)


def _of_dask(config: "ParallelConfig", name: str) -> Any:
    import dask

    return dask.config.get(f"jobqueue.{config.env}.{name}", None)


def render_worker_script(config: "ParallelConfig", roots: Sequence[Path]) -> str:
    """Return the script that each detached worker's job would run; nothing is submitted.

    Raises:
        ConfigError: if the job class refuses the options.
    """
    work = WorkerJob(tuple(roots))
    with no_new_folder(config.options.get("log_directory")):
        script: str = make_job(config, work, 0.0).job_script()
    return script


def submit_job(job: Any) -> str:
    """Submit a job and return its number.

    Raises:
        UnansweredError: if the job may be there all the same.
        ResourceError: with the scheduler's words.
    """

    async def submit() -> str:
        with job.job_file() as name:
            told = await asyncio.wait_for(job._submit_job(name), _SUBMIT_SECONDS)
        number: str = job._job_id_from_submit_output(told)
        return number

    try:
        # In a thread: the caller may be in an event loop already, as in a notebook.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, submit()).result()
    except (OSError, RuntimeError, ValueError, TimeoutError) as error:
        command = shlex.split(job.submit_command)[0]
        # A command that failed has refused the job. Of one that is late, or said something that
        # nobody understands, it cannot be told.
        kind = UnansweredError if isinstance(error, TimeoutError | ValueError) else ResourceError
        raise kind(f"{command} {_in_words(error)}") from error


class UnansweredError(ResourceError):
    """A scheduler was given a job and did not say what became of it."""


def _in_words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"did not answer for {_SUBMIT_SECONDS:g} s"
    if isinstance(error, ValueError):
        return f"did not tell the number of a job: {folded(error)}"
    if isinstance(error, FileNotFoundError):
        return "is not there"
    text = str(error)
    said = text.partition("stderr:\n")[2].strip() or text.partition("stdout:\n")[2].strip() or text
    return f"refused a job or could not be run: {folded(said)}"


def job_environment() -> dict[str, str]:
    """Return the environment in which to submit a job, perhaps from within another one.

    It travels from job to job, so nothing in it may grow.
    """
    environment = {
        name: value
        for name, value in submission_environment().items()
        if not name.startswith(_OF_A_JOB)
    }
    if path := environment.get("PYTHONPATH"):
        environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path.split(os.pathsep)))
    return environment
