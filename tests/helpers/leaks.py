"""Find the processes and threads that a test left behind, and forks of the test process itself.

What was there before a test is not its own, nor what fixtures of a module or session start. All
else counts, also a process whose parent has ended: it still has our mark in its environment.
"""

import gc
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.helpers import fork_server

MARK = "ESPNET3_TEST_PROCESS"
_PATIENCE = 30.0  # of machines that others use
_COLLECTION_SECONDS = 1.0

# Threads by the begin of their name, or by their class, that libraries keep on purpose.
_KEPT_THREADS = {
    "TMonitor": "tqdm watches its bars as long as the process lives",
    "IO loop": "of distributed; it ends some time after the last client",
    "Dask-": "executors of distributed, shared by all of its clients",
    "Profile": "of distributed, which looks at the main thread",
    "TCP-Executor": "of distributed's connections",
    "AsyncProcess": "of distributed's nanny: waits for its worker",
    "asyncio_": "the default executor of an event loop, joined at exit",
    "ThreadPoolExecutor-": "idle threads of an executor end when it is collected",
    "fsspecIO": "the one event loop of fsspec",
    "pin_memory": "of torch's DataLoader",
    "QueueFeederThread": "of multiprocessing.Queue; ends when the queue is collected",
    "execnet": "of pytest-xdist",
    "warm-reaper": "of tests/helpers/fork_server.py: waits for the end of what it was left",
}
# Processes that Python keeps for multiprocessing, and what forks for the tests; what they start
# counts.
_KEPT_PROCESSES = (
    "multiprocessing.forkserver",
    "multiprocessing.resource_tracker",
    fork_server.NAME,
)


@dataclass(frozen=True)
class Found:
    """A process of ours."""

    pid: int
    command: str
    test: str | None
    """By which it was started, as far as its environment tells."""

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command:.300}), started in {self.test}"


class Watch:
    """Knows what was there before, and tells what is new."""

    def __init__(self) -> None:
        self._foreign: set[int] = set()
        self._of_fixtures: dict[int, str] = {}
        self._before: set[int] = set()
        self._threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        self.forks: list[str] = []
        os.register_at_fork(before=self._note_fork)

    def begin(self) -> None:
        """Begin a test: what is there is not its own."""
        os.environ[MARK] = str(os.getpid())
        self._before = set(self._processes())
        self._threads.update(threading.enumerate())
        self.forks.clear()

    def leaked(self) -> list[str]:
        """Return what is left of the test after some patience."""
        return _wait_for_none(lambda: [*map(str, self.new_processes()), *self._new_threads()])

    def new_processes(self) -> list[Found]:
        """Return the living processes of ours that were not there before."""
        found = self._processes()
        return [
            found[pid] for pid in found if pid not in self._before and pid not in self._of_fixtures
        ]

    def adopt(self, scope: str) -> None:
        """Leave what is new to a fixture of this scope, which ends it."""
        new = {process.pid: scope for process in self.new_processes()}
        self._of_fixtures.update(new)
        self._threads.update(threading.enumerate())

    def left_by_fixtures(self, *scopes: str) -> list[str]:
        """Return what fixtures should have ended by now."""
        return _wait_for_none(
            lambda: [
                str(process)
                for process in self._processes().values()
                if self._of_fixtures.get(process.pid) in scopes
            ]
        )

    def _new_threads(self) -> list[str]:
        return [
            f"thread {thread.name!r} ({type(thread).__qualname__})"
            for thread in threading.enumerate()
            if thread not in self._threads and not _is_kept(thread)
        ]

    def _processes(self) -> dict[int, Found]:
        """Return our processes; those of others are looked at once."""
        pids = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        self._foreign &= pids
        self._of_fixtures = {pid: s for pid, s in self._of_fixtures.items() if pid in pids}
        ours: dict[int, Found] = {}
        parents = {os.getpid()}
        for pid in sorted(pids - self._foreign - parents):
            parent, is_alive = _state(pid)
            if not is_alive:
                continue
            found = _look_at(pid)
            # The kernel's own and those of other users cannot be looked at, at no time.
            if found is None or (parent not in parents and found.test is None):
                self._foreign.add(pid)
                continue
            parents.add(pid)
            # What a fixture's process starts is the fixture's.
            if parent in self._of_fixtures:
                self._of_fixtures.setdefault(pid, self._of_fixtures[parent])
            if not any(kept in found.command for kept in _KEPT_PROCESSES):
                ours[pid] = found
        return ours

    def _note_fork(self) -> None:
        """Note who forks this process, whose threads may hold locks.

        The workers of torch's loader may: that is how users run them, and it starts no others.
        """
        frame, where = sys._getframe(1), []
        while frame is not None:
            where.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
            frame = frame.f_back
        if not any("/torch/utils/data/" in line for line in where):
            self.forks.append(" < ".join(where[:5]))


def marked_processes() -> list[Found]:
    """Return all living processes with our mark, whoever their parent is.

    Not by `psutil`: it reads nothing of the environment of a process that has changed its title.
    """
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    looked_at = [_look_at(pid) for pid in pids if pid != os.getpid() and _state(pid)[1]]
    return [found for found in looked_at if found is not None and found.test is not None]


def _wait_for_none(find: Callable[[], list[str]]) -> list[str]:
    """Return what is still found after some patience.

    What only a cycle of references keeps is not left behind: the workers of torch's loader end
    when it is collected, which may be long after a test.
    """
    start = collected = time.monotonic()
    while (left := find()) and time.monotonic() < start + _PATIENCE:
        if time.monotonic() > collected + _COLLECTION_SECONDS:
            gc.collect()
            collected = time.monotonic()
        time.sleep(0.02)
    return left


def _state(pid: int) -> tuple[int, bool]:
    """Return the parent of a process, and whether it lives."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0, False
    return int(fields[1]), fields[0] not in "ZX"


def _look_at(pid: int) -> Found | None:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or is of somebody else
        return None
    values = dict(line.decode(errors="replace").partition("=")[::2] for line in environ)
    is_ours = values.get(MARK) == str(os.getpid())
    return Found(
        pid,
        command.decode(errors="replace"),
        values.get("PYTEST_CURRENT_TEST", "?") if is_ours else None,
    )


def _is_kept(thread: threading.Thread) -> bool:
    names = (thread.name, type(thread).__qualname__, _function(thread))
    return any(name.startswith(kept) for kept in _KEPT_THREADS for name in names)


def _function(thread: threading.Thread) -> str:
    """Return the function's name, which Python puts behind that of an unnamed thread."""
    return thread.name.partition("(")[2].lstrip("_")
