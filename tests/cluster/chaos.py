"""Break nodes, jobs and workers at random moments, and mend what must be mended."""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from tests.cluster.detached_run import DetachedRun
from tests.cluster.harness import N_NODES

PAUSE_SECONDS = (1.0, 4.0)
BROKEN_SECONDS = (3.0, 20.0)
MAX_BROKEN = 2
"""So many nodes may be out of order at once: who has none left can only wait."""


class Chaos:
    """Faults in an order, at moments and for durations that a seed decides."""

    def __init__(self, run: DetachedRun, seed: int) -> None:
        self.run = run
        self.cluster = run.clients.cluster
        self.random = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.told: list[str] = []
        self._broken: dict[int, tuple[float, str]] = {}
        self._deck: list[Callable[[], str | None]] = []
        self._begin = time.monotonic()

    def rage(self, seconds: float) -> None:
        """Do harm for so many seconds; leave all nodes as they were."""
        self._begin = time.monotonic()
        end = self._begin + seconds
        try:
            while time.monotonic() < end:
                self._mend(time.monotonic())
                self._strike()
                time.sleep(self.random.uniform(*PAUSE_SECONDS))
        finally:
            self._mend(float("inf"))

    def _strike(self) -> None:
        if not self._deck:  # each kind once, in an order of its own, and then again
            self._deck = [
                self._cancel_a_job,
                self._kill_a_worker,
                self._kill_a_daemon,
                self._drain_a_node,
                self._fill_a_disk,
            ]
            self.random.shuffle(self._deck)
        for fault in list(self._deck):  # what is not possible now comes later
            what = fault()
            if what is not None:
                self._deck.remove(fault)
                self.counts[fault.__name__.strip("_")] += 1
                self._note(what)
                return

    def _cancel_a_job(self) -> str | None:
        jobs = sorted(self.run.clients.active())
        if not jobs:
            return None
        job = self.random.choice(jobs)
        with suppress(AssertionError):  # it may have ended since
            self.run.clients.cancel(job)
        return f"job {job} is cancelled"

    def _kill_a_worker(self) -> str | None:
        pids = self.run.pids()
        if not pids:
            return None
        pid = self.random.choice(pids)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return f"process {pid} is killed"

    def _kill_a_daemon(self) -> str | None:
        return self._break("kill-daemon", "up", "the daemon of node{} is killed")

    def _drain_a_node(self) -> str | None:
        return self._break("drain", "resume", "node{} is drained")

    def _fill_a_disk(self) -> str | None:
        return self._break("fill", "free", "the disk of node{} is full")

    def _break(self, verb: str, remedy: str, words: str) -> str | None:
        whole = [node for node in range(1, N_NODES + 1) if node not in self._broken]
        if N_NODES - len(whole) >= MAX_BROKEN:
            return None
        node = self.random.choice(whole)
        self.cluster.node(verb, node)
        until = time.monotonic() + self.random.uniform(*BROKEN_SECONDS)
        self._broken[node] = (until, remedy)
        return words.format(node)

    def _mend(self, now: float) -> None:
        for node, (until, remedy) in list(self._broken.items()):
            if until <= now:
                self.cluster.node(remedy, node)
                del self._broken[node]
                self._note(f"{remedy} node{node}")

    def _note(self, words: str) -> None:
        self.told.append(f"{time.monotonic() - self._begin:5.1f} s: {words}")
