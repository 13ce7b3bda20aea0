"""Shards that are open: a bounded number of them, and none shared between processes."""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, Generic, TypeVar

from espnet3.components.data.errors import DataError

T = TypeVar("T")


class Recent(Generic[T]):
    """The values that were asked for last; others are made again when they are needed.

    After a fork, and when it is pickled, it is empty: a process opens its own files. What is
    dropped is closed once nobody uses it, so several threads may read.

    Args:
        capacity: The sum of costs that is kept; the last value is kept whatever it costs.
        cost: Of a value; by default each counts 1.
    """

    def __init__(self, capacity: int, cost: Callable[[T], int] | None = None) -> None:
        self._capacity = capacity
        self._cost = cost
        self._clear()

    def _clear(self) -> None:
        self._values: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._total = 0
        # Not that of the process we were forked from, in which a thread may hold it.
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the value of a key; `make` is called if it is not kept."""
        if self._pid != os.getpid():
            self._clear()
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key][0]
        value = make()
        self._keep(key, value)
        return value

    def _keep(self, key: Hashable, value: T) -> None:
        cost = self._cost(value) if self._cost else 1
        with self._lock:
            self._total += cost - self._values.pop(key, (None, 0))[1]
            self._values[key] = value, cost
            while len(self._values) > 1 and self._total > self._capacity:
                self._total -= self._values.popitem(last=False)[1][1]

    def __len__(self) -> int:
        return len(self._values)

    def __getstate__(self) -> dict[str, Any]:
        return {"_capacity": self._capacity, "_cost": self._cost}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._clear()


class ShardFile:
    """A shard that is read by position, which leaves no file offset to get mixed up.

    Args:
        path: The shard.
        identity: Its size and time of change as they were when it was indexed.

    Raises:
        DataError: It cannot be opened, or is another one by now.
    """

    def __init__(self, path: Path, identity: dict[str, int]) -> None:
        self.path = path
        self._descriptor = -1
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            status = os.fstat(self._descriptor)
        except OSError as error:
            raise DataError(f"The shard {path} cannot be opened: {error.strerror}.") from error
        if {"size": status.st_size, "mtime_ns": status.st_mtime_ns} != identity:
            raise DataError(
                f"{path} has changed since the run began. Start again; what was read before is of "
                "the old shard."
            )

    def read(self, start: int, n_bytes: int) -> bytes:
        """Return the bytes from `start` on.

        Raises:
            DataError: There are fewer, or the disk fails.
        """
        parts = []
        while n_bytes:
            try:
                part = os.pread(self._descriptor, n_bytes, start)
            except OSError as error:
                raise DataError(f"{self.path} cannot be read: {error.strerror}.") from error
            if not part:
                raise DataError(f"{self.path} ends before byte {start}. Copy or make it again.")
            parts.append(part)
            start, n_bytes = start + len(part), n_bytes - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
