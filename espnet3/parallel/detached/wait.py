"""Wait for a run to end."""

import logging
import shlex
import time
from collections.abc import Callable
from pathlib import Path

from espnet3.errors import EspnetError, IncompleteRunError, WorkerError
from espnet3.parallel.detached.folder_access import Patience
from espnet3.parallel.detached.overview import Observer, Overview

logger = logging.getLogger(__name__)
_FIRST_SECONDS = 0.5
_MOST_SECONDS = 10.0
_ASK_SECONDS = 30.0
# What others wrote may be seen late, and between two jobs of a chain nobody is there for a moment.
_SURE_SECONDS = 20.0
_SURE_HERE_SECONDS = 2.0


def wait_for(
    run_dir: Path,
    timeout: float | None = None,
    *,
    tell: Callable[[Overview], None] | None = None,
    warn: Callable[[str], object] = logger.warning,
    sure_seconds: float = _SURE_SECONDS,
) -> Overview:
    """Return when a run is complete, or when nobody works on it any more, or will.

    Args:
        run_dir: the run folder.
        timeout: seconds after which to give up; None: never.
        tell: is given each look at the run.
        warn: is given a line when the folder cannot be read for a while.
        sure_seconds: for how long nobody must be seen before a run without a stop mark is over.

    Raises:
        TimeoutError: if it is still running then.
        RunFolderError: if the folder cannot be read for minutes, or is removed.
    """
    begin, pause = time.monotonic(), _FIRST_SECONDS
    patience = Patience(run_dir, warn, None if timeout is None else begin + timeout)
    observer = patience.call(lambda: Observer(run_dir, _ASK_SECONDS))
    alone_since: float | None = None
    while True:
        seen = patience.call(observer.look)
        if tell:
            tell(seen)
        now = time.monotonic()
        if seen.state in ("complete", "failed", "cancelled"):
            return seen
        alone_since = (alone_since or now) if seen.is_over else None
        sure = min(sure_seconds, _SURE_HERE_SECONDS) if _all_ended_here(seen) else sure_seconds
        if alone_since is not None and now - alone_since >= sure:
            return seen
        if timeout is not None and now - begin >= timeout:
            raise TimeoutError(f"{run_dir} is {seen.state} after {timeout:.3g} s of waiting.")
        left = float("inf") if timeout is None else max(begin + timeout - now, 0.05)
        time.sleep(min(pause, left))
        pause = min(pause * 1.5, _MOST_SECONDS)


def _all_ended_here(seen: Overview) -> bool:
    """Tell whether all who were started were processes of this machine, and are gone."""
    jobs = seen.crew.jobs
    return bool(jobs) and all(job.record.machine and job.state.phase == "ended" for job in jobs)


def failure_of(seen: Overview) -> EspnetError:
    """Return the error that says why a run that is over is not complete, and how to go on."""
    status = seen.status
    where, quoted = status.run_dir, shlex.quote(status.run_dir)
    if status.stop is not None and status.stop.kind == "failed":
        return WorkerError(f"The run in {where} failed: {status.stop.reason}")
    if status.stop is not None and seen.state == "cancelled":
        return IncompleteRunError(
            f"The run in {where} was cancelled by {status.stop.by or 'somebody'}, with "
            f"{status.n_done:,} of {status.n_items:,} items done. Resume: espnet3 resume {quoted}"
        )
    if seen.state == "not merged":
        return IncompleteRunError(
            f"All shards in {where} are done, but no worker is left to merge them. Type: "
            f"espnet3 merge {quoted}"
        )
    if not status.is_detached:
        return IncompleteRunError(
            f"Nobody works in {where} any more: {status.n_done:,} of {status.n_items:,} items are "
            "done. Run the command that began it again: finished shards are kept."
        )
    return IncompleteRunError(
        f"Nobody works in {where} any more, and no job waits: {status.n_done:,} of "
        f"{status.n_items:,} items are done. To see why: espnet3 explain {quoted}; to continue: "
        f"espnet3 resume {quoted}"
    )
