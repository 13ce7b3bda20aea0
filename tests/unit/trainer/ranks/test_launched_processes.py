"""Parents and children of a rank."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from espnet3.trainer.ranks.rank_watch import LaunchedProcesses
from tests.helpers.waiting import wait_until


class Observer(threading.Thread):
    """As Lightning's, which kills all when a child has failed."""

    def __init__(self, children: list) -> None:
        super().__init__(name="child-process-observer", daemon=True)
        self._child_processes = children
        self.stop = threading.Event()

    def run(self) -> None:
        self.stop.wait()


@pytest.fixture
def children():
    command = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
    started = [subprocess.Popen(command) for _ in range(2)]
    observer = Observer(started)
    observer.start()
    yield observer, list(started)
    observer.stop.set()
    observer.join()
    for child in started:
        child.kill()
        child.wait()


def test_a_killed_child_is_named_with_its_signal(children):
    observer, (_, second) = children
    processes = LaunchedProcesses({})
    assert processes.dead_child() is None
    assert observer._child_processes == []  # Lightning would kill rank 0 without a word
    second.send_signal(signal.SIGKILL)
    wait_until(lambda: processes.dead_child() is not None)
    failure = processes.dead_child()
    assert (failure.rank, failure.pid) == (2, second.pid)
    assert "was killed by SIGKILL." in failure.in_full()
    assert "out of memory" in failure.in_full()


def test_ranks_are_counted_over_nodes(children):
    processes = LaunchedProcesses({"NODE_RANK": "1"})
    assert processes.dead_child() is None
    children[1][0].kill()
    wait_until(lambda: processes.dead_child() is not None)
    assert processes.dead_child().rank == 4


def test_what_is_left_of_the_children_is_killed(children):
    processes = LaunchedProcesses({})
    processes.dead_child()
    processes.kill_children()
    assert [child.wait(60) for child in children[1]] == [-9, -9]


def test_a_shell_that_ends_means_nothing():
    processes = LaunchedProcesses({})
    assert not processes.has_lost_parent()
    assert not processes.is_child


def test_children_know_their_parent_from_the_first_moment():
    environ: dict[str, str] = {}
    above = LaunchedProcesses(environ)
    child = LaunchedProcesses({**environ, "LOCAL_RANK": "1"})
    assert child.is_child
    assert child.has_lost_parent()  # it is this very process, and not its parent
    assert child.orphaned(1).rank == 0
    assert child.orphaned(1).pid == os.getpid()
    above.close()
    assert environ == {}


def test_torchrun_is_the_parent_of_its_workers():
    worker = LaunchedProcesses({"TORCHELASTIC_RUN_ID": "none", "LOCAL_RANK": "1"})
    assert not worker.is_child
    assert not worker.has_lost_parent()
    assert "its launcher" in worker.orphaned(3).in_full()
