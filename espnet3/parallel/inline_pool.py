"""Pool of one worker in this process: `env: local, n_workers: 1`."""

import os
import time
from typing import Any

from espnet3.errors import EspnetError, ProviderError
from espnet3.parallel.execute import ShardLoop, check_env
from espnet3.parallel.held_secrets import secrets_held
from espnet3.parallel.pools import Event, Finished, PoolWorker
from espnet3.parallel.tasks import RunSpec, ShardTask, describe_error, describe_plainly

_NAME = "this process"


def _build(spec: RunSpec) -> Any:
    try:
        return spec.setup_fn()
    except EspnetError:
        raise
    except Exception as error:
        told = describe_error(error, secrets_held(spec.setup_fn))
        # With a secret in it, the error is not shown as the cause either.
        cause = error if told == describe_plainly(error) else None
        raise ProviderError(f"The provider failed to build its environment: {told}") from cause


class InlinePool:
    """Runs attempts one after the other, inside `poll`."""

    def __init__(self, spec: RunSpec) -> None:
        self._folder = os.getcwd()
        begin = time.monotonic()
        env = check_env(_build(spec), "build_env_local()")
        self._load_seconds = time.monotonic() - begin
        self._loop = ShardLoop(spec, env)
        self._task: ShardTask | None = None

    def idle(self) -> list[str]:
        """Return this process, unless it has an attempt to run."""
        return [] if self._task else [_NAME]

    def submit(self, worker: str, task: ShardTask) -> None:
        """Keep the attempt for the next `poll`."""
        self._task = task

    def poll(self, timeout: float) -> list[Event]:
        """Run the attempt to its end, however long it takes."""
        if self._task is None:
            time.sleep(timeout)
            return []
        result = self._loop.run(self._task, load_seconds=self._load_seconds)
        self._load_seconds = 0.0
        self._task = None
        return [Finished(_NAME, result)]

    def expect(self, n_left: int) -> None:
        """Do nothing: the number of workers is fixed."""

    def waiting(self) -> str:
        """Return nothing: these workers do not queue."""
        return ""

    def workers(self) -> list[PoolWorker]:
        """Return none: this process does the work."""
        return []

    def positions(self) -> dict[str, int]:
        """Return how far this process is in its attempt."""
        return {_NAME: self._loop.position()} if self._task else {}

    def kill(self, worker: str, reason: str) -> None:
        """Do nothing: this process is busy while it runs an attempt."""

    def stop(self) -> None:
        """Go back to the working directory, which a forward() may have changed."""
        os.chdir(self._folder)
