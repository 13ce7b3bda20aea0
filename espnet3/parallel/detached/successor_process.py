"""Run the successor program beside a detached worker.

It talks to the scheduler, which may take its time or fail; the work must not wait for that.
"""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from espnet3.errors import FileSystemError
from espnet3.io.atomic import create_bytes
from espnet3.io.clock import FolderClock
from espnet3.parallel.spare import Child, Spare
from espnet3.shards.file_access import is_there
from espnet3.shards.records import RecordPaths

logger = logging.getLogger(__name__)
_MODULE = "espnet3.parallel.detached.successor_main"
_MINUTE = _EVERY_SECONDS = 60.0
_MAX_PAUSE = 600.0
# Nearly as soon as a new Python could have submitted a successor; many a run is over by then.
_FIRST_SECONDS = 1.0
# As long as a submission may take: killing it earlier could leave a job without its number.
_MAX_SECONDS = 120.0
_LAST_SECONDS = 60.0
_CLOSE_SECONDS = 15.0
# The worker starts at the same time, often on the same one core; it must not be held up.
_NICE = 10
WITHOUT_JOBS = ("local", "local_gpu")
"""Backends whose workers are no jobs, and have no successors."""


class Successors:
    """Runs `successor_main` a second after the start, and later when there is need.

    The look for that is one operation a minute, in this process: with a thousand workers, a Python
    for each of them and a look at the records of all would be more work than the work.

    Args:
        roots: all run folders of the worker.
        env: the backend that the worker's job belongs to.
        job_id: the job; without it no successor is submitted.
        generation: how many jobs came before it in its chain.
        trust: the user whose code may be run.
        spare: a process that waits to become the first of them.
    """

    def __init__(
        self,
        roots: Sequence[Path],
        *,
        env: str,
        job_id: str,
        generation: int,
        trust: str | None,
        spare: Spare | None = None,
    ) -> None:
        self._arguments = [
            *map(str, roots), "--env", env, "--job", job_id, "--generation", str(generation),
            *(["--trust", trust] if trust else []),
        ]  # fmt: skip
        self._spare = spare
        # Without its number a job cannot be waited for by a successor.
        self._is_wanted = env not in WITHOUT_JOBS and bool(job_id)
        self._roots, self._root = list(roots), roots[0]
        self._mark = RecordPaths(roots[0]).successor(env, job_id)
        self._began = time.monotonic()
        self._clock: FolderClock | None = None
        self._process: subprocess.Popen[bytes] | Child | None = None
        self._started = self._looked = float("-inf")
        self._has_successor, self._pause = False, _EVERY_SECONDS
        self._is_due = False

    def tick(self) -> None:
        """Start the process if it is time to, and end one that hangs."""
        now = time.monotonic()
        if self._process is not None:
            if self._process.poll() is None and now - self._started < _MAX_SECONDS:
                return
            self._reap()
        if not self._is_wanted:
            return
        if now - self._began < _FIRST_SECONDS:
            self._is_due = True
        elif now - self._looked >= _EVERY_SECONDS:
            self._looked = now
            self._look()

    def _look(self) -> None:
        """Start the process if this worker has no successor, or its turn to look after all."""
        self._is_due = False
        try:
            if self._clock is None:
                self._clock = FolderClock(self._root)
            self._has_successor = self._has_successor or is_there(self._mark)
            if takes_turn(self._root, self._clock.now()):
                self._start("--has-turn")
            elif not self._has_successor and time.monotonic() - self._started >= self._pause:
                # Whoever could not submit one, or need not, is not asked again each minute.
                self._pause = min(2 * self._pause, _MAX_PAUSE)
                self._start()
        except (OSError, FileSystemError) as error:  # the work does not depend on it
            logger.warning("no successor: %s", error)

    def finish(self) -> None:
        """Let it clean up after a run that is complete or stopped: successors that still wait."""
        self._is_due = False
        # Two at once could both submit, or one cancel what the other is just submitting.
        self._await(_MAX_SECONDS)
        if self._is_wanted and self._may_jobs_wait():
            self._start()
            self._await(_LAST_SECONDS)

    def _may_jobs_wait(self) -> bool:
        from espnet3.parallel.detached.workforce import has_open_jobs  # at the end only

        try:
            return any(has_open_jobs(root) for root in self._roots)
        except (OSError, FileSystemError):
            return True  # the process says what is wrong

    def close(self) -> None:
        """Let it end: between submitting a job and noting it, it must not be killed."""
        if self._is_due:  # left within the first second, as from a bad node: others shall go on
            self._look()
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_CLOSE_SECONDS)
            if self._process.poll() is None:
                logger.info("%s takes too long, and is ended with this worker", _MODULE)
            self._process.kill()
            self._process.wait()
            self._process = None

    def _start(self, *more: str) -> None:
        self._started = time.monotonic()
        arguments = [*self._arguments, *more]
        # -P: the user's working folder may shadow modules of the library.
        command = [sys.executable, "-P", "-m", _MODULE, *arguments]
        try:
            # Its words go where this process's go: into the worker's log.
            # It has the `sys.path` of this program's start, without what the user's code needs.
            spare = self._spare
            forked = spare.become(_MODULE, arguments, environment=os.environ) if spare else None
            self._process = forked or subprocess.Popen(command, stdin=subprocess.DEVNULL)
        except OSError as error:
            logger.warning("no successor: %s cannot be started: %s", _MODULE, error)
            return
        with suppress(OSError):
            nice = os.getpriority(os.PRIO_PROCESS, 0) + _NICE
            os.setpriority(os.PRIO_PROCESS, self._process.pid, nice)

    def _await(self, seconds: float) -> None:
        if self._process is None:
            return
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        self._reap()

    def _reap(self) -> None:
        assert self._process is not None
        code = self._process.poll()
        if code is None:
            self._process.kill()
            self._process.wait()
            logger.warning("no successor: %s did not end in time", _MODULE)
        elif code:
            logger.warning("no successor: %s ended with code %d", _MODULE, code)
        self._process = None


def takes_turn(root: Path, now: float) -> bool:
    """Take this minute's turn to look after the workers of a run; False if another has it.

    Raises:
        OSError: nothing can be written there.
    """
    paths = RecordPaths(root)
    minute = int(now // _MINUTE)
    turn = paths.watch(minute)
    # Looked at first: of a thousand workers, all but one need no more than that.
    # Exclusive creation decides at the server: of all workers one wins, even if views are late.
    if is_there(turn) or not create_bytes(turn, b"", sync=False):
        return False
    for path in paths.folder.glob(paths.watch(0).with_suffix(".*").name):
        with suppress(OSError, ValueError):
            # The last minute's stays, for a worker that looked at the clock a moment ago.
            if int(path.suffix[1:]) < minute - 1:
                path.unlink()
    return True
