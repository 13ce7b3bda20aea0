"""Questions to the schedulers of computing centres."""

import importlib
import logging
from collections.abc import Sequence

from espnet3.parallel.clusters.schedulers.base import FindsTags, JobState, Phase, Scheduler

__all__ = ["FindsTags", "JobState", "Phase", "Scheduler", "ask_jobs", "scheduler_of"]

logger = logging.getLogger(__name__)
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
    if scheduler is None or not job_ids:
        return {}
    try:
        return scheduler.jobs(job_ids)
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        logger.info("What %s says cannot be read: %r", scheduler.status_command, error)
        return {}
