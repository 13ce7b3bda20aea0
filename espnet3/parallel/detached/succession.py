"""Run the successor program beside a detached worker.

It talks to the scheduler, which may take its time or fail; the work must not wait for that.
"""

import logging
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger(__name__)
_MODULE = "espnet3.parallel.detached.succeed"
_EVERY_SECONDS = 60.0
_MAX_SECONDS = 120.0
_LAST_SECONDS = 60.0
_CLOSE_SECONDS = 15.0
WITHOUT_JOBS = ("local", "local_gpu")
"""Backends whose workers are no jobs: nobody submits successors there."""


class Succession:
    """Runs `succeed` at the start, every minute, and at the end of the run.

    Args:
        roots: all run folders of the worker.
        env: the backend that the worker's job belongs to.
        job_id: the job; without it there is nothing to succeed.
        generation: how many jobs came before it in its chain.
        trust: the user whose code may be run.
    """

    def __init__(
        self, roots: Sequence[Path], *, env: str, job_id: str, generation: int, trust: str | None
    ) -> None:
        self._command = [
            sys.executable, "-P", "-m", _MODULE, *map(str, roots), "--env", env, "--job", job_id,
            "--generation", str(generation), *(["--trust", trust] if trust else []),
        ]  # fmt: skip
        self._is_wanted = env not in WITHOUT_JOBS and bool(job_id)
        self._process: subprocess.Popen[bytes] | None = None
        self._started = float("-inf")

    def tick(self) -> None:
        """Start the process if it is time to, and end one that hangs."""
        now = time.monotonic()
        if self._process is not None:
            if self._process.poll() is None and now - self._started < _MAX_SECONDS:
                return
            self._reap()
        if self._is_wanted and now - self._started >= _EVERY_SECONDS:
            self._start()

    def finish(self) -> None:
        """Let it clean up after a run that is complete or stopped: successors that still wait."""
        self._await(_MAX_SECONDS)
        if self._is_wanted:
            self._start()
            self._await(_LAST_SECONDS)

    def close(self) -> None:
        """Let it end: between submitting a job and noting it, it must not be killed."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_CLOSE_SECONDS)
            if self._process.poll() is None:
                logger.info("%s takes too long, and is ended with this worker", _MODULE)
            self._process.kill()
            self._process.wait()
            self._process = None

    def _start(self) -> None:
        self._started = time.monotonic()
        try:
            # Its words go where this process's go: into the worker's log.
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL)
        except OSError as error:
            logger.warning("no successor: %s cannot be started: %s", _MODULE, error)

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
