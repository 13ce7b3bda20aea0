"""What jobs wrote before they ended."""

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_N_LINES = 15
_N_BYTES = 20_000
# What Slurm's daemons add to a job's log when they end it: who, when and why.
_DAEMON = re.compile(r"^(?:slurmstepd|srun|slurmd)[^:]*: error: (.*CANCELLED AT.*|.*oom.*)$", re.M)


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


def tail(log: Path | None) -> str:
    """Return the last lines of a log, for an error message."""
    lines = read_end(log).splitlines()[-_N_LINES:]
    return "\nIts last lines:\n" + "\n".join(f"  {line}" for line in lines) if lines else ""


def words_of_daemon(log: Path | None) -> str:
    """Return what the scheduler itself wrote into the log about the end of the job."""
    found = _DAEMON.findall(read_end(log))
    return str(found[-1]).strip("* ") if found else ""


def read_end(log: Path | None) -> str:
    """Return the end of a log; empty if it cannot be read."""
    if log is None or not log.is_file():  # a pipe would keep its reader waiting
        return ""
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(_length(log) - _N_BYTES, 0))
        return file.read().decode(errors="replace")
    return ""


def _length(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0
