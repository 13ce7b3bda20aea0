"""Runs for detached workers, with faults built in; agents are real processes."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from espnet3.parallel import BaseRunner
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.detached.control import prepare
from espnet3.parallel.folder_run import RunRequest
from espnet3.parallel.identity import describe_run
from espnet3.schedulers import node_name
from espnet3.shards.merge import concat_files

DEFAULTS = {"seconds": 0.0, "faults": {}, "gate": "", "load": 0.0, "bad_nodes": {}, "hurry": ""}


class Provider:
    """Builds nothing; `settings` are how the results come about, not what they are."""

    fingerprint_ignore = ("settings",)

    def __init__(self, **settings):
        self.settings = {**DEFAULTS, **settings}

    def build_env_local(self):
        time.sleep(self.settings["load"])
        if self.settings["bad_nodes"].get(node_name()) == "no start":
            os._exit(4)
        if self.settings["bad_nodes"].get(node_name()) == "no load":
            raise RuntimeError("no GPU here")
        return {"settings": self.settings}

    def build_worker_setup_fn(self):
        return self.build_env_local


def once(path):
    """Return True the first time."""
    try:
        Path(path).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class Runner(BaseRunner):
    @staticmethod
    def forward(idx, settings):
        if isinstance(idx, list):
            return [Runner.forward(item, settings) for item in idx]
        if not settings["hurry"] or not Path(settings["hurry"]).exists():
            time.sleep(settings["seconds"])
        while settings["gate"] and not Path(settings["gate"]).exists():
            time.sleep(0.05)
        fault = settings["bad_nodes"].get(node_name()) or settings["faults"].get(str(idx))
        if fault:
            suffer(fault, settings)
        return f"utt{idx} ok"

    @staticmethod
    def open_writers(shard_dir):
        return (shard_dir / "text").open("w")

    @staticmethod
    def write_record(writers, result, state):
        writers.write(result + "\n")

    @staticmethod
    def close_writers(writers, state):
        writers.close()

    def merge(self, shard_dirs):
        target = self.output_dir / "text"
        concat_files(shard_dirs, "text", target)
        return target


def suffer(fault, settings):
    """Do what a bad item does: `how`, or `how@path` to do it only once."""
    how, _, mark = fault.partition("@")
    if mark and not once(mark):
        return
    if how == "raise":
        raise ValueError("this item is bad")
    if how == "exit":
        os._exit(3)
    if how == "kill child":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "kill agent":  # with its child, as when a whole job is ended
        os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "memory":
        import resource

        n_pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = n_pages * resource.getpagesize() + (1 << 29)  # may be forked
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        bytearray(1 << 31)
    if how == "full":  # as write() says it
        raise OSError(errno.ENOSPC, "No space left on device")
    time.sleep(60)


def expected(n_items, without=()):
    return "".join(f"utt{i} ok\n" for i in range(n_items) if i not in without)


class DetachedFolder:
    """A run folder that is ready for detached workers, and the workers that a test starts."""

    def __init__(self, out, n_items=24, n_shards=6, *, parallel=None, on_error="raise", **settings):
        self.out, self.n_items = out, n_items
        max_errors = settings.pop("max_errors", None)
        batch_size = settings.pop("batch_size", None)
        runner = Runner(
            Provider(**settings), output_dir=out, on_error=on_error, max_errors=max_errors,
            batch_size=batch_size,
        )  # fmt: skip
        items = range(n_items)
        block = {"env": "local", "n_workers": 1, "shards_per_worker": n_shards, "retries": 1}
        config = ParallelConfig(**{**block, **(parallel or {})})
        request = RunRequest(
            root=out,
            output_dir=out,
            name="Runner",
            items=items,
            batch_size=batch_size,
            described=describe_run(runner, items),
            costs=None,
        )
        prepare(runner, request, runner._spec(), config, runner._policy(config))
        self.agents: list[subprocess.Popen] = []

    def start(self, *arguments, also=(), **environ):
        """Start an agent."""
        command = [
            sys.executable, "-m", "espnet3.parallel.detached.work", str(self.out),
            *map(str, also), *arguments,
        ]  # fmt: skip
        agent = subprocess.Popen(
            command,
            env={**os.environ, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.agents.append(agent)
        return agent

    def run(self, *arguments, **environ):
        """Run an agent to its end and return its exit code."""
        return self.start(*arguments, **environ).wait(120)

    def close(self):
        for agent in self.agents:
            if agent.poll() is None:
                os.killpg(agent.pid, signal.SIGKILL)
            agent.wait()
            agent.stdout.close()

    @property
    def text(self):
        return (self.out / "text").read_text()

    def log(self):
        return "".join(path.read_text() for path in sorted((self.out / "logs").glob("detached-*")))

    def records(self, kind):
        """Return what is in `detached/<kind>/`."""
        return [json.loads(p.read_text()) for p in (self.out / "detached" / kind).glob("*.json")]

    def n_committed(self):
        return sum(".part-" not in path.parent.name for path in self.out.rglob("split.*/done"))

    def failures(self):
        return [json.loads(line) for line in (self.out / "failed.jsonl").read_text().splitlines()]

    def stop(self):
        return json.loads((self.out / "detached" / "stop.json").read_text())

    def assert_complete(self, without=()):
        assert (self.out / "_SUCCESS.json").exists(), self.log()
        assert self.text == expected(self.n_items, without)
        names = [path.name for path in self.out.iterdir()]
        assert not [name for name in names if ".part-" in name or name.startswith(".")]
        assert not list((self.out / "leases").iterdir())
