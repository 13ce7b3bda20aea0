"""Questions to the schedulers of computing centres."""

import importlib
import logging
from collections.abc import Sequence

from espnet3.parallel.clusters.schedulers.base import FindsTags, JobState, Phase, Scheduler

__all__ = ["FindsTags", "JobState", "Phase", "Scheduler", "ask_jobs", "scheduler_of"]

logger = logging.getLogger(__name__)
_AT_ONCE = 200  # numbers in one command line
_CLASSES = {
    "slurm": "Slurm",
    "sge": "GridEngine",
    "pbs": "PBS",
    "lsf": "LSF",
    "oar": "OAR",
    "htcondor": "HTCondor",
    "moab": "Moab",
}


def scheduler_of(env: str) -> Scheduler | None:
    """Return who answers for a backend's jobs; None if it has no jobs."""
    if env not in _CLASSES:
        return None
    module = importlib.import_module(f"{__name__}.{env}")
    scheduler: Scheduler = getattr(module, _CLASSES[env])()
    return scheduler


def ask_jobs(env: str, job_ids: Sequence[str]) -> dict[str, JobState]:
    """Return what the scheduler of a backend says of jobs; empty if it says nothing.

    An answer that is not in its own words, such as a proxy's error page, is no answer.
    """
    scheduler = scheduler_of(env)
    told: dict[str, JobState] = {}
    for start in range(0, len(job_ids) if scheduler else 0, _AT_ONCE):
        assert scheduler is not None
        try:
            answer = scheduler.jobs(job_ids[start : start + _AT_ONCE])
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            logger.info("What %s says cannot be read: %r", scheduler.status_command, error)
            return {}
        if not answer:
            return {}  # of some of them nothing is known, so of all
        told |= answer
    return told
