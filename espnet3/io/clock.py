"""The clock of a file system, and how far this machine's clock is off.

Times of files, heartbeats and submissions are compared with the clock of the file system that holds
them: it is the one clock that all machines of a run share. A machine's own may be an hour off.
"""

from __future__ import annotations

import os
import time

from espnet3.text import utc_time

TYPE_CHECKING = False  # what `typing.TYPE_CHECKING` is, without the import of `typing`
if TYPE_CHECKING:
    from espnet3.io.atomic import StrPath

MAX_SKEW = 30.0
"""Seconds by which this machine's clock may differ from a folder's before it submits no jobs."""
_BEGIN = (time.time(), time.monotonic())


def folder_time(folder: StrPath) -> float:
    """Return the time by the clock of the file system that holds a folder.

    A file without a name, or one that is gone at once, gets its time there.

    Raises:
        OSError: nothing can be written there.
    """
    import tempfile  # on the start-up path of workers: imported when needed

    with tempfile.TemporaryFile(dir=folder, prefix=".clock-", buffering=0) as file:
        # As a heartbeat does: "now", which a network file system takes from its server.
        os.utime(file.fileno())
        return os.fstat(file.fileno()).st_mtime


def look_time(folder: StrPath) -> float:
    """Return the same for a mere reader: this machine's time where the folder is read-only."""
    try:
        return folder_time(folder)
    except OSError:
        return time.time()


class FolderClock:
    """The clock of a folder's file system, looked at once and carried on from there."""

    def __init__(self, folder: StrPath) -> None:
        self._then, self._since = look_time(folder), time.monotonic()

    def now(self) -> float:
        """Return the time, in seconds since 1970."""
        # Every look costs a file on the server, and no one can set the monotonic clock.
        return self._then + time.monotonic() - self._since


def steady_time() -> float:
    """Return this machine's time as it was when the program began, and the seconds since.

    A change of the clock in between makes no difference.
    """
    wall, since = _BEGIN
    return wall + time.monotonic() - since


def clock_skew(folder: StrPath) -> float:
    """Return how many seconds this machine's clock is ahead of the folder's; below 0: behind.

    Raises:
        OSError: nothing can be written there.
    """
    before = time.time()
    there = folder_time(folder)
    after = time.time()
    # The file got its time in between, however long that took.
    return before - there if before > there else min(after - there, 0.0)


def describe_skew(folder: StrPath, skew: float) -> str:
    """Describe a clock that is off, with both times and the limit."""
    import socket

    here = time.time()
    return (
        f"the clock of {socket.gethostname()} says {utc_time(here)}, and that of the file system "
        f"of {os.fspath(folder)} {utc_time(here - skew)}: it is {abs(skew):.0f} s "
        f"{'ahead' if skew > 0 else 'behind'}, and may differ by {MAX_SKEW:.0f} s"
    )
