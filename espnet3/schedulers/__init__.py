"""All that is known of the schedulers of computing centres, a file for each; pure Python.

`scheduler_of("slurm")` is where Dask clusters, detached workers, `launch` and `doctor` get it from.
"""

import importlib
import logging
import os
import socket
from collections.abc import Mapping, Sequence
from functools import cache

from espnet3.errors import ResourceError
from espnet3.schedulers.base import (
    CLOSED_ADVICE,
    CONTINUE_CODE,
    FORGOTTEN,
    CurrentJob,
    FindsTags,
    JobState,
    Phase,
    Scheduler,
    UnansweredError,
)

__all__ = [
    "CLOSED_ADVICE",
    "CONTINUE_CODE",
    "FORGOTTEN",
    "JOB_ID",
    "NODE_NAME",
    "OWN_SCHEDULERS",
    "CurrentJob",
    "FindsTags",
    "JobState",
    "Phase",
    "Scheduler",
    "UnansweredError",
    "ask_jobs",
    "current_job",
    "forget_schedulers",
    "known_scheduler",
    "node_name",
    "node_of_job",
    "possible_schedulers",
    "scheduler_names",
    "scheduler_of",
]

logger = logging.getLogger(__name__)
ENTRY_POINTS = "espnet3.schedulers"
"""Group of entry points by which another package adds a scheduler."""
JOB_ID, NODE_NAME = "ESPNET3_JOB_ID", "ESPNET3_NODE_NAME"
"""Variables that job scripts set for schedulers of other packages: a worker need not look for
their classes to know where it is."""
_AT_ONCE = 200  # numbers in one command line
_CLASSES = {
    "slurm": ("Slurm", "SLURM"),
    "pbs": ("PBS", "PBS_"),
    "sge": ("GridEngine", "SGE_"),
    "lsf": ("LSF", "LSB_"),
    "oar": ("OAR", "OAR_"),
    "htcondor": ("HTCondor", "_CONDOR_"),
    "moab": ("Moab", "MOAB_"),
}
"""The class of each scheduler, and how the variables begin that its jobs have: by these a process
knows which class to ask, and one that is no job loads none."""
OWN_SCHEDULERS = tuple(_CLASSES)


def scheduler_names() -> list[str]:
    """Return the names of all schedulers: our own, then those of other packages."""
    return [*_CLASSES, *_of_other_packages()]


@cache
def scheduler_of(env: str) -> Scheduler | None:
    """Return the scheduler of a backend; None if its workers are no jobs.

    Raises:
        ResourceError: if another package announces it and it cannot be loaded.
    """
    if env in _CLASSES:
        module = importlib.import_module(f"{__name__}.{env}")
        scheduler: Scheduler = getattr(module, _CLASSES[env][0])()
        return scheduler
    return _load(env) if env in _of_other_packages() else None


def forget_schedulers() -> None:
    """Look for schedulers of other packages again, such as one that was installed meanwhile."""
    scheduler_of.cache_clear()
    _of_other_packages.cache_clear()


def known_scheduler(env: str) -> Scheduler:
    """Return the scheduler of a backend whose workers are jobs."""
    scheduler = scheduler_of(env)
    assert scheduler is not None, env
    return scheduler


@cache
def _of_other_packages() -> dict[str, str]:
    """Return where the classes of other packages are, by the name of their entry points."""
    from importlib.metadata import entry_points  # it looks at every installed package

    found = entry_points(group=ENTRY_POINTS)
    # Installing a package must not change what `env: slurm` means.
    return {entry.name: entry.value for entry in found if entry.name not in _CLASSES}


def _load(name: str) -> Scheduler:
    module, _, attribute = _of_other_packages()[name].partition(":")
    try:
        made = getattr(importlib.import_module(module), attribute)()
    except Exception as error:  # whatever another package raises
        raise ResourceError(
            f"The scheduler {name!r} comes from {module}:{attribute}, an entry point of the group "
            f"{ENTRY_POINTS}, and cannot be loaded: {type(error).__name__}: {error}.",
            fix="Mend or uninstall the package that brings it",
        ) from error
    if not isinstance(made, Scheduler) or made.name != name:
        raise ResourceError(
            f"The entry point {name!r} of the group {ENTRY_POINTS} is {module}:{attribute}, which "
            f"must be a subclass of espnet3.schedulers.Scheduler with: name = {name!r}"
        )
    return made


def ask_jobs(env: str, job_ids: Sequence[str]) -> dict[str, JobState]:
    """Return what the scheduler of a backend says of jobs; empty if it says nothing.

    An answer that is not in its own words, such as a proxy's error page, is no answer.
    """
    scheduler = scheduler_of(env)
    output: dict[str, JobState] = {}
    for start in range(0, len(job_ids) if scheduler else 0, _AT_ONCE):
        assert scheduler is not None
        try:
            answer = scheduler.jobs(job_ids[start : start + _AT_ONCE])
        # What parsers raise on unexpected text; it must not end a worker that only asked.
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            logger.info("What %s says cannot be read: %r", scheduler.status_command, error)
            return {}
        if not answer:
            return {}  # of some of them nothing is known, so of all
        output |= answer
    return output


def current_job(environ: Mapping[str, str] = os.environ) -> CurrentJob | None:
    """Return the job around this process, whichever scheduler it is of."""
    if number := environ.get(JOB_ID):
        return CurrentJob("the scheduler", number)
    for scheduler in possible_schedulers(environ=environ):
        if job := scheduler.current_job(environ):
            return job
    return None


def node_of_job(environ: Mapping[str, str] = os.environ) -> str:
    """Return what the scheduler calls the node of this process; empty if it does not say."""
    names = [NODE_NAME, *(each.node_variable for each in possible_schedulers(environ=environ))]
    return next((environ[name] for name in names if environ.get(name)), "")


def node_name() -> str:
    """Return the name of this machine, as its scheduler calls it.

    That is the name by which a scheduler can exclude it, and nodes that are containers of
    one machine may share a host name.
    """
    return node_of_job() or socket.gethostname()


def possible_schedulers(env: str = "", environ: Mapping[str, str] = os.environ) -> list[Scheduler]:
    """Return the schedulers that a process may be a job of: by its variables, and that of `env`.

    Those of other packages are left out, because looking for them takes a worker tens of
    milliseconds.
    """
    ours = [n for n, (_, begin) in _CLASSES.items() if any(v.startswith(begin) for v in environ)]
    names = dict.fromkeys([*ours, env])
    return [found for name in names if name and (found := scheduler_of(name)) is not None]
