"""A dataset for tests of stage 3; importable, so that workers find it, and without torch."""

import os
import random
import signal
from pathlib import Path

import numpy as np

from espnet3.components.data.errors import DataError


class Dataset:
    """Speech of different lengths around an offset, and tokens for some of the items.

    Args:
        n: How many items there are.
        offset: The mean of the speech.
        bad: Items that cannot be read.
        tag: Begins the ids, and tells the content.
        noise: Of random numbers that nobody seeded.
        speech_only: Whether all items have the same fields, so that they can be a batch.
        kill: `{mark, at, victim}`: send SIGKILL at that item, unless the file `mark` exists.
    """

    def __init__(self, n=100, offset=0.0, bad=(), tag="", noise=0.0, speech_only=False, kill=None):
        self.n, self.offset, self.bad, self.tag, self.noise = n, offset, bad, tag, noise
        self.speech_only = speech_only
        self.kill = kill

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        if self.kill and index == self.kill["at"]:
            kill_once(Path(self.kill["mark"]), self.kill["victim"])
        if index in self.bad:
            raise DataError(f"Item {index} is broken")
        values = np.random.default_rng(index).standard_normal(length_of(index)) + self.offset
        values = values + self.noise * (np.random.standard_normal() + random.random())
        sample = {"utt_id": f"{self.tag}utt{index}", "speech": values.astype(np.float32)}
        if self.speech_only:
            return sample
        tokens = {"tokens": list(range(index % 7))} if index % 2 else {}
        return {**sample, **tokens, "text": "words", "sample_rate": 16000}

    def durations(self):
        return [length_of(index) / 100 for index in range(self.n)]

    def fingerprint(self):
        return f"{self.tag} {self.n}"


def length_of(index):
    return 20 + index * 37 % 200


def kill_once(mark, victim):
    if mark.exists():
        return
    mark.touch()
    os.kill(os.getppid() if victim == "driver" else os.getpid(), signal.SIGKILL)
    signal.pause()


def files_of(folder):
    """Return the merged files, by name."""
    ends = ("_shape", "_stats.npz", "stats_keys")
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name.endswith(ends)}
