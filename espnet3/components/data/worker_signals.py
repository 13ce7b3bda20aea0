"""Workers of a loader that live on for a while when a job is told to end."""

import signal
from collections.abc import Callable
from typing import Any

GRACE_SECONDS = 30
"""In which the training saves and stops its workers itself."""


def outlive_sigterm(seconds: int = GRACE_SECONDS) -> None:
    """Let this process end some seconds after a SIGTERM rather than at once.

    Schedulers send it to all processes of a job. A training that loses its workers gets an error in
    the middle of a step, and cannot save. To be called in the worker, after torch has installed
    its own handler: in `worker_init_fn`.
    """

    def end_later(number: int, frame: object) -> None:
        # Whose default is the end, even in a read that hangs.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds)

    signal.signal(signal.SIGTERM, end_later)


def start_worker(users: Callable[[int], Any] | None, number: int) -> None:
    """Be the `worker_init_fn` of a loader; calls that of the user, if there is one."""
    outlive_sigterm()
    if users is not None:
        users(number)


def kill_workers(iterator: Any) -> None:
    """End the workers of a torch iterator, whatever they are doing."""
    from torch._C import _remove_worker_pids

    if iterator._worker_pids_set:  # else torch would raise an error when it hears of their end
        _remove_worker_pids(id(iterator))
        iterator._worker_pids_set = False
    for worker in iterator._workers:
        worker.kill()
