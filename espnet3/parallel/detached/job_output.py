"""Where the output of a job went: that of one which began no worker is all that is known of it."""

import json
from contextlib import suppress
from pathlib import Path

from espnet3.parallel.clusters.job_logs import find_log
from espnet3.shards.records import JobRecord, RecordPaths

_OF_WORKERS = "detached-"


def output_of(job: JobRecord, run_dir: Path) -> Path | None:
    """Return what the scheduler kept of a job's output, or the shell of a process; None if nothing.

    A worker that has begun writes into a log of its own.
    """
    if job.is_submitting:
        return None
    logs = (run_dir / job.log).parent if job.log else run_dir / "logs"
    if job.machine:
        path = logs / f"{_OF_WORKERS}{job.env}.out"
        return path if path.is_file() and path.stat().st_size else None
    found = find_log([logs, *_log_directory(job.env, run_dir)], job.job_id)
    return None if found is None or found.name.startswith(_OF_WORKERS) else found


def _log_directory(env: str, run_dir: Path) -> list[Path]:
    """Return the folder that the user's options name, if they do."""
    paths = RecordPaths(run_dir)
    with suppress(OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        options = json.loads(paths.parallel(env).read_bytes())["options"]
        if folder := options.get("log_directory"):
            found = Path(json.loads(paths.run.read_bytes())["cwd"]) / folder
            return [found] if "\0" not in str(found) else []
    return []
