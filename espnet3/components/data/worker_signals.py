"""Workers of a loader that live on for a while when a job is told to end."""

import signal

GRACE_SECONDS = 30
"""In which the training saves and stops its workers itself."""


def outlive_sigterm(seconds: int = GRACE_SECONDS) -> None:
    """Let this process end some seconds after a SIGTERM rather than at once.

    Schedulers send it to all processes of a job. A training that loses its workers gets an error in
    the middle of a step, and cannot save. To be called in the worker, after torch has installed
    its own handler: in `worker_init_fn`.
    """

    def end_later(number: int, frame: object) -> None:
        signal.alarm(seconds)  # whose default is the end, even in a read that hangs

    signal.signal(signal.SIGTERM, end_later)
