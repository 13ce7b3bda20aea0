"""What jobs wrote before they ended."""

import logging
import os
import re
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from espnet3.text import read_end

logger = logging.getLogger(__name__)
_WRITTEN_LATER = ("pbs", "moab", "lsf")
"""Schedulers that bring a job's log to its place when the job has ended."""
# What Slurm's daemons add to a job's log when they end it: who, when and why.
_DAEMON = re.compile(r"^(?:slurmstepd|srun|slurmd)[^:]*: error: (.*CANCELLED AT.*|.*oom.*)$", re.M)


@dataclass(frozen=True)
class OwnLogs:
    """A folder for the logs of jobs of a run that has none: else they lie where it was started."""

    folder: Path
    made: tuple[Path, ...]
    """It and those above it that were not there before."""
    env: str

    @classmethod
    def below(cls, place: Path, env: str) -> "OwnLogs":
        """Name a folder that no other run has."""
        folder = place / "logs" / "jobs" / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        parents = (folder, folder.parent, folder.parent.parent)
        return cls(folder, tuple(each for each in parents if not each.exists()), env)

    def end(self, *, is_well: bool) -> None:
        """Remove the logs of jobs that did their work; tell where others are."""
        if is_well and self.env not in _WRITTEN_LATER:
            shutil.rmtree(self.folder, ignore_errors=True)
        for folder in self.made:
            with suppress(OSError):  # not empty
                folder.rmdir()
        if self.folder.is_dir():
            logger.info("Logs of the jobs: %s", self.folder)


def find_log(folders: Iterable[Path], job_id: str) -> Path | None:
    """Return the log of a job, by its number in the name; of several, the one that says most.

    Slurm's and LSF's are like `dask-worker-12.err`, those of Grid Engine and PBS `dask-worker.o12`,
    OAR's `OAR.dask-worker.12.stderr`, HTCondor's `worker-12.0.err`.
    """
    name = re.compile(rf"[-.](?:[oe])?{re.escape(job_id)}(?:\.|$)")
    found: list[Path] = []
    for folder in folders:
        with suppress(OSError):
            found += [path for path in folder.iterdir() if name.search(path.name)]
    found = [path for path in found if path.is_file()]
    return max(found, key=_length, default=None)


def words_of_daemon(log: Path | None) -> str:
    """Return what the scheduler itself wrote into the log about the end of the job."""
    found = _DAEMON.findall(read_end(log))
    return str(found[-1]).strip("* ") if found else ""


def _length(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0
