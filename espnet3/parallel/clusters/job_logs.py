"""Logs of jobs: where they go, and what they say of jobs that ended."""

import glob
import logging
import os
import re
import shutil
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from espnet3.errors import ResourceError
from espnet3.io.atomic import folder_trouble
from espnet3.schedulers import Scheduler, known_scheduler, scheduler_of
from espnet3.text import read_end

logger = logging.getLogger(__name__)
_LOG_BYTES = 1 << 16
"""What the log of a job may take in its first minutes; less than that is no room."""
_LATE_SECONDS, _LOOK_SECONDS = 10.0, 0.1
_N_LOGS = 2
"""Output and errors; a user's option may join them to one."""


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

    def end(self, *, is_well: bool, job_ids: Sequence[str] = ()) -> None:
        """Remove the logs of jobs that did their work; tell where others are.

        Args:
            is_well: whether nobody will want to read them.
            job_ids: the jobs that have begun.
        """
        scheduler = scheduler_of(self.env)
        awaited = job_ids if scheduler is not None and scheduler.log_is_late else ()
        has_all = not awaited or (is_well and self._have_come(awaited))
        if is_well and has_all:
            shutil.rmtree(self.folder, ignore_errors=True)
        if has_all:  # else logs may come yet
            for folder in self.made:
                with suppress(OSError):  # not empty
                    folder.rmdir()
        if self.folder.is_dir():
            logger.info("Logs of the jobs: %s", self.folder)

    def _have_come(self, job_ids: Sequence[str]) -> bool:
        """Wait for logs that are brought after the end of a job: without a folder for them, the
        scheduler would keep them elsewhere and write to the user."""
        scheduler = known_scheduler(self.env)
        deadline = time.monotonic() + _LATE_SECONDS
        while time.monotonic() < deadline:
            found = [len(find_logs([self.folder], job, scheduler)) for job in job_ids]
            if all(n_logs >= _N_LOGS for n_logs in found):
                return True
            time.sleep(_LOOK_SECONDS)
        # By now one log of each job will do: a user's option may have joined the two.
        return all(found)


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
                # A file server may report a full quota only when the data reaches it.
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


def find_log(folders: Iterable[Path], job_id: str, scheduler: Scheduler) -> Path | None:
    """Return the log of a job, by its number in the name; of several, the one that says most."""
    return max(find_logs(folders, job_id, scheduler), key=_length, default=None)


def find_logs(folders: Iterable[Path], job_id: str, scheduler: Scheduler) -> list[Path]:
    """Return all logs of a job."""
    # Escaped: the number of a job in an array, 12[3], would be a pattern.
    globs = [pattern.format(job=glob.escape(job_id)) for pattern in scheduler.log_globs]
    found: list[Path] = []
    for folder in folders:
        with suppress(OSError):
            found += [
                path
                for path in folder.iterdir()
                if any(fnmatchcase(path.name, each) for each in globs) and path.is_file()
            ]
    return found


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


@contextmanager
def removing_new_folder(folder: str | None) -> Iterator[None]:
    """Remove the folder for logs that is made as soon as a job script is."""
    path = Path(folder).absolute() if folder else Path.cwd()
    missing = [place for place in (path, *path.parents) if not place.exists()]
    try:
        yield
    finally:
        for place in missing:
            with suppress(OSError):  # not empty: another process uses it by now
                place.rmdir()
