"""Items of `peers`: functions of one argument, which every library can map. Light to import."""

import contextlib
import json
import os
import signal
from collections.abc import Sequence
from typing import Any

from benchmarks.sleeping_items import Span, sleep_for
from espnet3.parallel.base_runner import BaseRunner

_SHORT_STEPS = 17_500
_DEADLY = 50


def spell(idx: int) -> str:
    """Do next to nothing."""
    return str(idx)


def compute_shortly(idx: int) -> int:
    """Keep a core busy for about a millisecond."""
    total = idx
    for step in range(_SHORT_STEPS):
        total += step * step
    return total


def sleep_and_tell(cost: float) -> str:
    """Sleep, and return when, and on which worker, as text that fits into any table."""
    return json.dumps(sleep_for(cost))


def read_span(text: str) -> Span:
    """Return what `sleep_and_tell` said."""
    return Span(*json.loads(text))


def deadly_items(folder: str, n_items: int) -> list[str]:
    """Return items for `compute_or_die`, which leaves its traces in the folder."""
    return [f"{idx}:{folder}" for idx in range(n_items)]


def compute_or_die(item: str) -> str:
    """Compute; at one of the items kill the process, when it comes there for the first time."""
    idx, _, folder = item.partition(":")
    with open(f"{folder}/computed", "a") as file:
        file.write(f"{idx}\n")
    if int(idx) == _DEADLY:
        with contextlib.suppress(FileExistsError):
            os.close(os.open(f"{folder}/died", os.O_CREAT | os.O_EXCL))
            os.kill(os.getpid(), signal.SIGKILL)
    compute_shortly(0)
    return idx


class ItemsProvider:
    """Gives the function and its items to each worker."""

    def __init__(self, function: Any, items: Sequence[Any]) -> None:
        self.function, self.items = function, items

    def build_env_local(self) -> dict[str, Any]:
        """Return both."""
        return {"function": self.function, "items": self.items}

    def build_worker_setup_fn(self) -> Any:
        """Return the same for workers."""
        return self.build_env_local


class MapRunner(BaseRunner):
    """Maps."""

    @staticmethod
    def forward(idx, function, items):
        """Map one item."""
        return function(items[idx])
