"""Questions to the schedulers of computing centres."""

import importlib

from espnet3.parallel.clusters.schedulers.base import JobState, Phase, Scheduler

__all__ = ["JobState", "Phase", "Scheduler", "scheduler_of"]

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
