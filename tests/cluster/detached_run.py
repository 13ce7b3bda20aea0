"""A run that nobody waits for, as the tests see it: from the outside, by its folder."""

import json
import os
import re
import signal
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from espnet3.shards.records import RecordPaths, read_deaths, read_jobs, read_stop, read_workers
from tests.cluster.clients import PAUSE, Clients, ClusterJob
from tests.helpers.waiting import wait_until

PATIENCE = 180.0  # seconds; other programs share the machine
FORGOTTEN = 20.0
"""Seconds without a job and without a worker, after which nobody will come any more."""
_TWIN = r"Shard (\d+) would take .* started a second time"


class DetachedRun(ClusterJob):
    """`job.py` whose workers are submitted and left alone."""

    def __init__(self, out: Path, clients: Clients, n_workers: int = 2, **settings) -> None:
        self.trace = out.with_name("trace")
        self.hurry = out.with_name("hurry")
        traced = {"trace": str(self.trace), "hurry": str(self.hurry), **settings}
        super().__init__(out, clients, n_workers, **traced)
        self.parallel = {**self.settings["parallel"], "mode": "async"}
        self.settings["parallel"] = self.parallel
        self.paths = RecordPaths(out)

    def submit(self) -> str:
        """Submit the workers, and return what the driver told."""
        process = self.start()
        out, told = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, told
        return out + told

    def tell(self, verb: str, *words: str | Path, seconds: float = PATIENCE) -> str:
        """Run a command of `espnet3` on the folder, which must succeed; return what it told."""
        code, told = self.try_to(verb, *words, seconds=seconds)
        assert code == 0, f"espnet3 {verb} ended with {code}: {told}\n{self.state}"
        return told

    def try_to(self, verb: str, *words: str | Path, seconds: float = PATIENCE) -> tuple[int, str]:
        """Run a command of `espnet3` on the folder; return its code and what it told."""
        command = [sys.executable, "-m", "espnet3.cli", verb, self.out, *words]
        return self.clients.run(*command, seconds=seconds)

    def write_block(self, parallel: dict) -> Path:
        """Write a config with a `parallel` block for `espnet3 resume`."""
        path = self.out.with_name("parallel.yaml")
        path.write_text(json.dumps({"parallel": parallel}))
        return path

    def wait_for(self, condition, seconds: float = PATIENCE) -> None:
        """Wait until a condition holds, unless the run stops or is forgotten before."""
        seen = [time.monotonic()]

        def is_over() -> bool:
            if condition() or read_stop(self.paths) is not None:
                return True
            if self.pids() or self.clients.active():
                seen[0] = time.monotonic()
            return time.monotonic() - seen[0] > FORGOTTEN

        try:
            wait_until(is_over, seconds, PAUSE)
        except AssertionError:
            raise AssertionError(f"waited in vain: {self.state}") from None
        assert condition(), f"the run stopped, or nobody works for it: {self.state}"

    def wait_for_end(self, seconds: float = PATIENCE) -> None:
        """Wait until the run is complete and all its jobs are gone."""
        self.wait_for(self.is_complete, seconds)

        def is_empty() -> bool:
            self.clients.hasten()
            return not self.clients.active()

        try:
            wait_until(is_empty, PATIENCE, PAUSE)
        except AssertionError:
            raise AssertionError(f"jobs are left: {self.clients.active()} {self.state}") from None

    def is_complete(self) -> bool:
        return (self.out / "_SUCCESS.json").exists()

    @property
    def success(self) -> dict:
        return json.loads((self.out / "_SUCCESS.json").read_text())

    def owners(self) -> dict[str, dict]:
        """Return what each committed shard says of itself."""
        return {path.parent.name: json.loads(path.read_text()) for path in self.done_files()}

    def computed(self) -> Counter[int]:
        """Return how often each item was computed."""
        lines = self.trace.read_text().split() if self.trace.exists() else []
        return Counter(map(int, lines))

    def slow_shards(self) -> set[int]:
        """Return the shards that somebody found slow and started a second time."""
        logs = [log.read_text(errors="replace") for log in (self.out / "logs").glob("*.log")]
        return {int(shard) for log in logs for shard in re.findall(_TWIN, log)}

    def computed_twice(self) -> set[int]:
        """Return the items that were computed more than once, though nobody found them slow."""
        twins = self.slow_shards()
        slow = [done for done in self.owners().values() if done["shard"] in twins]
        allowed = {item for done in slow for item in range(done["start"], done["stop"])}
        return {item for item, times in self.computed().items() if times > 1} - allowed

    def pids(self) -> list[int]:
        """Return the workers and their children on this machine and on its stand-in nodes."""
        found = [pid for pid, words in _processes() if str(self.out) in words]
        return found + [pid for pid in _children(found) if pid not in found]

    def kill(self, process) -> None:
        """Kill a driver and all that it has started and not detached."""
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()

    @property
    def state(self) -> str:
        """All that helps to understand why a test fails."""
        facts = [
            f"stop: {read_stop(self.paths)}",
            f"{self.n_committed} shards are committed",
            *[f"job: {replace(job, script='')}" for job in read_jobs(self.paths)],
            *[f"worker: {worker}" for worker in read_workers(self.paths)],
            *[f"death: {note}" for note in read_deaths(self.paths)],
            f"queue: {self.clients.active()}",
        ]
        logs = sorted((self.out / "logs").glob("*.log"), key=lambda log: log.stat().st_mtime)
        tails = [f"--- {log.name}\n{_shorten(log)}" for log in logs[-8:]]
        return "\n".join(["", *facts, *tails])


def _shorten(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return "\n".join(lines if len(lines) < 20 else [*lines[:5], "...", *lines[-12:]])


def _processes() -> list[tuple[int, list[str]]]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        found.append((int(folder.name), words))
    return found


def _children(parents: list[int]) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) in parents:
            found.append(int(folder.name))
    return found
