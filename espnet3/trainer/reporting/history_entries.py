"""`history.jsonl`: what was logged in a run, one line per log point and per validation.

A line is `{"step": 1250, "epoch": 2, "time": 1763260000.1, "values": {"train/loss": 2.134},
"batch": 5000}`, where `step` counts optimizer steps, `epoch` counts from 1, as in the names of
checkpoints, and `batch` counts the batches of all epochs. A value that is not finite is null.

Lightning is not imported here: reports read these files without a training.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from espnet3.io.atomic import StrPath

FILE_NAME = "history.jsonl"


@dataclass(frozen=True)
class Entry:
    """A line of the history."""

    step: int
    epoch: int
    time: float
    """Seconds since 1970."""
    values: Mapping[str, float]
    batch: int = 0

    def to_line(self) -> str:
        """Return it as JSON."""
        return json.dumps(
            {**asdict(self), "values": {k: _plain(v) for k, v in self.values.items()}}
        )


def _plain(value: float) -> float | None:
    # Most are of 32 bits, whose further digits say nothing.
    return float(f"{value:.7g}") if math.isfinite(value) else None


def read_history(path: StrPath) -> list[Entry]:
    """Read a history, or `exp_dir/history.jsonl`; a file that is not there is empty.

    Lines that a kill left unfinished are skipped: a plot is not worth an error.
    """
    file = Path(path)
    file = file / FILE_NAME if file.is_dir() else file
    if not file.exists():
        return []
    with file.open(encoding="utf-8", errors="replace") as lines:
        return [entry for entry in map(_parse, lines) if entry is not None]


def _parse(line: str) -> Entry | None:
    try:
        record = json.loads(line)
        values = {str(k): math.nan if v is None else float(v) for k, v in record["values"].items()}
        step, epoch, batch = (int(record[key]) for key in ("step", "epoch", "batch"))
        return Entry(step, epoch, float(record["time"]), values, batch)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def series(history: Iterable[Entry], name: str) -> tuple[list[int], list[float]]:
    """Return the steps and values of a metric; of a step that comes twice, the last.

    Example:
        >>> series([Entry(1, 0, 0.0, {"a": 2.0}), Entry(1, 0, 1.0, {"a": 3.0})], "a")
        ([1], [3.0])
    """
    values = {entry.step: entry.values[name] for entry in history if name in entry.values}
    return list(values), list(values.values())


def names(history: Iterable[Entry]) -> list[str]:
    """Return the names of all metrics, in the order in which they first came."""
    return list(dict[str, Any].fromkeys(name for entry in history for name in entry.values))
