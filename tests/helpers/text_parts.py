"""A dataset of texts that can only read whole samples, for tests that start workers."""

import os
import time
from pathlib import Path


class Dataset:
    """Texts with a number and a letter; slow where a test needs the time to kill a run."""

    def __init__(self, n=250, seconds=0.0):
        self.n, self.seconds = n, seconds

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        time.sleep(self.seconds)
        note = os.environ.get("NOTE_READS")
        if note:
            with Path(note).open("a") as file:
                file.write(f"{index}\n")
        text = f"Number {index * 7919 % 1000} {'abcdefg'[index % 7]}"
        return {"utt_id": f"u{index}", "text": text}


def lower(sample):
    """Return the sample with a text in small letters."""
    return {**sample, "text": sample["text"].lower()}
