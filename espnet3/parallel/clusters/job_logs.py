"""Logs of jobs: where they go, and what they say of jobs that ended."""

import logging
import os
import re
import shutil
import socket
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espnet3.errors import ResourceError
from espnet3.io.atomic import folder_trouble
from espnet3.schedulers import Scheduler, scheduler_of
from espnet3.text import read_end

logger = logging.getLogger(__name__)
_LOG_BYTES = 1 << 16
"""What the log of a job may take in its first minutes; less than that is no room."""


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
        scheduler = scheduler_of(self.env)
        if is_well and not (scheduler and scheduler.log_is_late):
            shutil.rmtree(self.folder, ignore_errors=True)
        for folder in self.made:
            with suppress(OSError):  # not empty
                folder.rmdir()
        if self.folder.is_dir():
            logger.info("Logs of the jobs: %s", self.folder)


def check_log_folder(options: Mapping[str, Any]) -> None:
    """Make the folder for the jobs' logs, and write there as a job would.

    Schedulers end a job whose log cannot be opened without a word, or put it on hold.

    Raises:
        ResourceError: if it cannot be written.
    """
    if options.get("log_directory") is None:
        return
    folder = Path(str(options["log_directory"]))
    probe = folder / f".espnet3-probe-{socket.gethostname()}-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with probe.open("wb") as file:
                file.write(bytes(_LOG_BYTES))
                file.flush()
                os.fsync(file.fileno())
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        raise ResourceError(
            f"parallel.options.log_directory is {folder}, where the logs of the jobs cannot be "
            f"written: {folder_trouble(error, folder)}.",
            fix="Nothing was submitted. Make room "
            "there, or name another folder that the nodes can see: log_directory: logs/jobs",
        ) from error


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


def words_of_daemon(log: Path | None, scheduler: Scheduler | None) -> str:
    """Return what the scheduler itself wrote into the log about the end of the job."""
    if scheduler is None or not scheduler.in_log:
        return ""
    found = re.findall(scheduler.in_log, read_end(log), re.MULTILINE)
    return str(found[-1]).strip("* ") if found else ""


def _length(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0
