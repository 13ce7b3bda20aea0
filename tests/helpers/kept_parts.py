"""Models, providers and runners that note each start and each build; importable for workers."""

import json
import os
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path

from espnet3.parallel import BaseRunner
from espnet3.systems.base.inference_provider import InferenceProvider
from tests.helpers.detached_parts import once
from tests.helpers.inference_parts import Speller
from tests.helpers.waiting import wait_until


def note(log_file, what, **facts):
    """Add a line; other files than a `log_file` that a config names are part of the model."""
    with open(log_file, "a") as file:
        file.write(json.dumps({"what": what, "pid": os.getpid(), **facts}) + "\n")


def read_notes(path, what):
    lines = Path(path).read_text().splitlines() if Path(path).exists() else []
    return [entry for entry in map(json.loads, lines) if entry["what"] == what]


class NotingModel(Speller):
    """A model that takes `seconds` to load, and `pause` for an item; `kill` ends its worker.

    With `meet`, it waits for so many models: no worker does all before the others are there.
    """

    def __init__(self, device, log_file, seconds=0.0, pause=0.0, kill=-1, meet=0, **settings):
        super().__init__(device, **settings)
        self.log_file, self.pause, self.kill = log_file, pause, kill
        time.sleep(seconds)
        note(log_file, "model")
        wait_until(lambda: len(read_notes(log_file, "model")) >= meet)

    def __call__(self, speech):
        time.sleep(self.pause)
        number = int(speech[0])
        note(self.log_file, "item", number=number)
        print(f"number {number}", flush=True)
        if number == self.kill and once(f"{self.log_file}.killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(speech)


class PerTestSet(InferenceProvider):
    """Builds a model that depends on the test set."""

    @staticmethod
    def build_model(config):
        return NotingModel("cpu", config.model.log_file, suffix=f" of {config.test_set}")


class NotingProvider:
    """Builds a number, and notes it; a `file` has what to add. `ballast` makes the run larger.

    With `meet`, it waits until so many workers have built something.
    """

    def __init__(self, log_file, number=0, *, file="", ballast=0, meet=0):
        self.log_file, self.number, self.file = str(log_file), number, str(file)
        self.meet = meet
        self.ballast = os.urandom(ballast)

    def build_env_local(self):
        note(self.log_file, "built", number=self.number)
        wait_until(lambda: len({e["pid"] for e in read_notes(self.log_file, "built")}) >= self.meet)
        more = int(Path(self.file).read_text()) if self.file else 0
        return {"number": self.number + more}

    def build_worker_setup_fn(self):
        return self.build_env_local


class NarrowProvider(NotingProvider):
    """Makes the worker's connection take a few messages only."""

    def build_env_local(self):
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError), socket.socket(fileno=os.dup(int(name))) as link:
                link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        return super().build_env_local()


class Add(BaseRunner):
    """Adds the provider's number to each item."""

    @staticmethod
    def forward(idx, number):
        time.sleep(0.02)
        if idx == "fail":
            raise ValueError("as asked")
        return [idx + number, os.getpid()]
