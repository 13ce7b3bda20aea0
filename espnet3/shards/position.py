"""Position of an attempt, stored per item in a memory-mapped file.

The pages of a mapped file outlive their process, so after a crash the file still names the batch
that was running: that is how an item that kills its worker is found.
"""

import mmap
import os
import struct
from contextlib import suppress
from pathlib import Path

from espnet3.shards.layout import POSITION

_FORMAT = struct.Struct("=qq")


class Position:
    """The batch of items that an attempt is working on, shared through a file."""

    def __init__(self, folder: Path) -> None:
        # Written, not truncated: storing to a hole of a full file system would be a SIGBUS.
        fd = os.open(folder / POSITION, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            # Whatever the umask: all workers need the position of a death.
            with suppress(OSError):
                os.fchmod(fd, 0o644)
            os.write(fd, _FORMAT.pack(-1, 1))
            self._map = mmap.mmap(fd, _FORMAT.size)
        finally:
            os.close(fd)
        self.cells = memoryview(self._map).cast("q")
        """Two integers to store to: the first position of the running batch, and its length."""

    def close(self) -> None:
        """Unmap the file; it stays until the attempt is finished or swept."""
        self.cells.release()
        self._map.close()


def read_position(attempt: Path) -> tuple[int, int] | None:
    """Return `(start, stop)` of the batch an attempt is or was working on; None before any."""
    try:
        start, length = _FORMAT.unpack((attempt / POSITION).read_bytes())
    except (OSError, struct.error):
        return None
    return (start, start + length) if start >= 0 else None
