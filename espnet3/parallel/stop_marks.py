"""Stop marks: how a cancelled or failed run stops drivers and workers, and when it may continue."""

import shlex
import threading
from pathlib import Path

from espnet3.errors import EspnetError, IncompleteRunError, WorkerError
from espnet3.parallel.deaths import forget_deaths
from espnet3.parallel.signals import Interruption, LeaveRun
from espnet3.shards.records import RecordPaths, StopMark, clear_stop, read_stop

_LOOK_SECONDS = 5.0  # the user who typed `cancel` waits


class StopWatch:
    """Interrupts a driver as soon as its run is stopped.

    A thread looks for the mark: where items run in this very process, nothing else could before the
    shard is over.

    Args:
        root: the run folder.
        interruption: of the driver.
        seconds: between two looks.
    """

    def __init__(
        self, root: Path, interruption: Interruption, seconds: float = _LOOK_SECONDS
    ) -> None:
        self._root, self._interruption, self._seconds = root, interruption, seconds
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stop mark", daemon=True)
        self.mark: StopMark | None = None
        """The mark that was found."""

    def __enter__(self) -> "StopWatch":
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(self._seconds):
            try:
                self.mark = read_stop(RecordPaths(self._root))
            except OSError:  # reported where the folder is used
                continue
            if self.mark is not None:
                self._interruption.interrupt(str(stop_error(self._root, self.mark)))
                return


def stop_error(root: Path, mark: StopMark) -> EspnetError:
    """Return the error of a driver whose run was stopped by another process."""
    if mark.kind == "failed":
        return WorkerError(
            f"The run in {root} was stopped by {mark.by or 'a worker'}: {mark.reason}"
        )
    by = mark.by or "somebody"
    why = "" if mark.reason == f"cancelled by {by}" else f" ({mark.reason})"
    again = "" if RecordPaths(root).run.exists() else ", then run the same command again"
    return IncompleteRunError(
        f"The run in {root} was cancelled by {by}{why}. Finished shards are kept. To continue: "
        f"espnet3 resume {shlex.quote(str(root))}{again}"
    )


def check_stop(root: Path) -> None:
    """Let a detached worker continue only if the run was not stopped.

    Raises:
        LeaveRun: with the reason.
    """
    mark = read_stop(RecordPaths(root))
    if mark is not None:
        raise stopped_by(mark)


def stopped_by(mark: StopMark) -> LeaveRun:
    """Return what ends a worker of a run that was stopped."""
    by = f" by {mark.by}" if mark.by else ""
    reason = f"the run was {'cancelled' if mark.kind == 'cancelled' else 'stopped'}{by}"
    code = 0 if mark.kind == "cancelled" else 1
    # Without a reason the mark only says that the run was cancelled, which is said already.
    why = "" if reason.endswith(mark.reason) else f": {mark.reason}"
    return LeaveRun(f"{reason}{why}", code=code, ends_all=False)


def refuse_cancelled(root: Path) -> None:
    """Let a driver begin only if the run was not cancelled; what merely failed is retried.

    Raises:
        IncompleteRunError: with the user that cancelled it, and how to continue.
    """
    mark = read_stop(RecordPaths(root))
    if mark is not None and mark.kind == "cancelled":
        raise stop_error(root, mark)
    forgive(root)


def forgive(root: Path) -> None:
    """Remove the mark that keeps workers from a run; after a failure, forget the deaths too.

    The user looked at what failed and wants it to be tried again.
    """
    paths = RecordPaths(root)
    mark = read_stop(paths)
    if mark is None:
        return
    if mark.kind == "failed":
        forget_deaths(root)
    clear_stop(paths)
