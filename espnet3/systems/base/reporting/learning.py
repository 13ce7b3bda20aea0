"""Summary of a training for the report, from the files of `exp_dir`."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espnet3.trainer.reporting.history_entries import Entry, read_history


@dataclass(frozen=True)
class Learning:
    """The history of a training, and means over it; None where nothing was logged."""

    history: list[Entry]
    n_steps: int
    n_epochs: int
    audio_per_second: float | None
    """Seconds of audio in a second, over all processes."""
    samples_per_second: float | None
    wait_share: float | None
    padding_share: float | None
    memory_gb: float | None
    startup_seconds: float | None
    averages: list[dict[str, Any]]
    """What each average of checkpoints says of itself, with its name."""


def read_learning(exp_dir: Path) -> Learning | None:
    """Read the history of an experiment; None if nothing was trained there."""
    history = read_history(exp_dir)
    if not history:
        return None
    return Learning(
        history,
        max(entry.step for entry in history),
        max(entry.epoch for entry in history),
        _mean(history, "perf/audio_seconds_per_second"),
        _mean(history, "perf/samples_per_second"),
        _mean(history, "perf/data_wait_share"),
        _mean(history, "perf/padding_share"),
        max(_values(history, "perf/memory_gb"), default=None),
        next(_values(history, "startup/total"), None),
        list(_averages(exp_dir)),
    )


def _values(history: Sequence[Entry], name: str) -> Iterator[float]:
    found = (entry.values.get(name, math.nan) for entry in history)
    return (value for value in found if math.isfinite(value))


def _mean(history: Sequence[Entry], name: str) -> float | None:
    """Return a mean over time: log points stand for unequally many batches of unequal length."""
    total = weights = 0.0
    last_batch = 0
    for entry in history:
        value, step_seconds = (entry.values.get(key) for key in (name, "perf/step_seconds"))
        if value is None or step_seconds is None or not math.isfinite(value * step_seconds):
            continue
        weight = max(entry.batch - last_batch, 1) * step_seconds
        last_batch = entry.batch
        total, weights = total + weight * value, weights + weight
    return total / weights if weights else None


def _averages(exp_dir: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(exp_dir.glob("*.ave_*best.json")):
        try:
            values = json.loads(path.read_bytes())
            yield {
                "name": path.stem,
                "monitor": str(values["criterion"]["monitor"]),
                "best": [float(entry["value"]) for entry in values["averaged"]],
                "epochs": [int(entry["epoch"]) for entry in values["averaged"]],
            }
        except (OSError, ValueError, KeyError, TypeError):
            continue
