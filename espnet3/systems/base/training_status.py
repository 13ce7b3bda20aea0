"""State of trainings, read from their folders alone, for `espnet3 status`."""

import json
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from espnet3.shards.lease import start_time
from espnet3.systems.base.stages import read_record
from espnet3.text import duration, value_text

_HISTORY = "history.jsonl"
_RECORD = Path("config", "train.json")
_LAST = "last.ckpt"
_SILENT_SECONDS = 600.0
"""After how long without a word a training on another machine counts as dead."""


@dataclass(frozen=True)
class TrainingStatus:
    """A training at one moment."""

    exp_dir: str
    state: str
    """complete, running, failed, interrupted, or dead: it ended without a word."""
    epoch: int = 0
    n_epochs: int | None = None
    step: int = 0
    n_steps: int | None = None
    values: Mapping[str, float] | None = None
    """Of the last log point."""
    best: str = ""
    """The best checkpoint by the first criterion, in words."""
    seconds_left: float | None = None
    last_seen: float | None = None
    """Seconds since the last log point."""
    checkpoint: str = ""
    """The last checkpoint, from which it would resume, and how old it is."""
    host: str = ""
    command: str = ""
    """That began it; the same resumes it."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for `--json`."""
        return asdict(self)

    @property
    def progress(self) -> str:
        """Epoch and step, with their ends where these are known."""
        epochs = f"epoch {self.epoch}{f' of {self.n_epochs}' if self.n_epochs else ''}"
        steps = f"step {self.step:,}{f' of {self.n_steps:,}' if self.n_steps else ''}"
        return f"{epochs}, {steps}"


def is_training(folder: Path) -> bool:
    """Tell whether a folder is the experiment of a training."""
    return (folder / _HISTORY).is_file() or (folder / _RECORD).is_file()


def read_training(exp_dir: Path) -> TrainingStatus:
    """Return how the training in a folder stands."""
    record, history = read_record(exp_dir / _RECORD), list(_read_lines(exp_dir / _HISTORY))
    limits = _limits(exp_dir)
    last = history[-1] if history else {}
    seen = time.time() - float(last["time"]) if last else None
    state = _state(record, seen, exp_dir)
    return TrainingStatus(
        str(exp_dir),
        state,
        epoch=int(last.get("epoch", 0)),
        n_epochs=limits.get("max_epochs"),
        step=int(last.get("step", 0)),
        n_steps=limits.get("max_steps"),
        values=_values(history),
        best=_best(exp_dir),
        seconds_left=_seconds_left(history, record, limits) if state == "running" else None,
        last_seen=None if seen is None else max(seen, 0.0),
        checkpoint=_checkpoint(exp_dir / _LAST),
        host=str(record.get("host", "")),
        command=str(record.get("command", "")),
    )


def _read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines that are whole: a kill may have cut the last one."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        try:
            entry = json.loads(line)
            _ = (int(entry["step"]), int(entry["epoch"]), float(entry["time"]), entry["values"])
        except (ValueError, TypeError, KeyError):
            continue
        yield entry


def _state(record: Mapping[str, Any], seen: float | None, exp_dir: Path) -> str:
    state = {"done": "complete", "skipped": "complete"}.get(str(record.get("state")), "")
    if state or record.get("state") in ("failed", "interrupted"):
        return state or str(record["state"])
    pid = record.get("pid")
    if record.get("host") == socket.gethostname() and isinstance(pid, int):
        # Pids are used again, so the start of the process counts as well.
        return "running" if start_time(pid) == record.get("started") else "dead"
    # Of another machine, or of a program without records, only what it writes can be seen.
    written = [path for path in (exp_dir / _HISTORY, exp_dir / "train.log") if path.exists()]
    quiet = min((time.time() - path.stat().st_mtime for path in written), default=seen)
    return "dead" if quiet is None or quiet > _SILENT_SECONDS else "running"


def _limits(exp_dir: Path) -> dict[str, int]:
    """Return how many epochs and steps are planned, as far as the config says."""
    from espnet3.config.load import load_config
    from espnet3.errors import EspnetError

    try:
        trainer = load_config(exp_dir / "config.yaml").config.get("trainer") or {}
        found = {name: trainer.get(name) for name in ("max_epochs", "max_steps")}
    except (EspnetError, OSError, AttributeError):
        return {}
    return {name: value for name, value in found.items() if isinstance(value, int) and value > 0}


def _values(history: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the last loss of training, and the last numbers of validation."""
    found: dict[str, float] = {}
    for entry in history:
        for name, value in entry["values"].items():
            if value is not None and (name == "train/loss" or name.startswith("valid/")):
                found[name] = float(value)
    return found


def _best(exp_dir: Path) -> str:
    try:
        criterion = json.loads((exp_dir / "best.json").read_bytes())["criteria"][0]
        best = criterion["checkpoints"][0]
        value = value_text(float(best["value"]))
        return f"{criterion['monitor']} {value} at epoch {best['epoch']} ({best['file']})"
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return ""


def _checkpoint(path: Path) -> str:
    try:
        age = max(time.time() - path.stat().st_mtime, 0.0)
    except OSError:
        return ""
    return f"{path.name}, {duration(age)} old"


def _seconds_left(
    history: Sequence[Mapping[str, Any]], record: Mapping[str, Any], limits: Mapping[str, int]
) -> float | None:
    """Return the time to the planned end at the speed since this start."""
    shares = [(float(e["time"]), share) for e in history if (share := _share(e, history, limits))]
    # Of this start alone: between two of them nothing was done.
    begin = _timestamp(record.get("start"))
    shares = [each for each in shares if each[0] >= begin]
    if len(shares) < 2 or shares[-1][1] <= shares[0][1]:
        return None
    speed = (shares[-1][1] - shares[0][1]) / (shares[-1][0] - shares[0][0])
    return max((1.0 - shares[-1][1]) / speed - (time.time() - shares[-1][0]), 0.0)


def _share(
    entry: Mapping[str, Any], history: Sequence[Mapping[str, Any]], limits: Mapping[str, int]
) -> float:
    shares = []
    if n_steps := limits.get("max_steps"):
        shares.append(entry["step"] / n_steps)
    ends = [e for e in history if any(name.startswith("valid/") for name in e["values"])]
    if ends and (n_epochs := limits.get("max_epochs")):
        per_epoch = ends[-1]["step"] / ends[-1]["epoch"]
        shares.append(entry["step"] / (per_epoch * n_epochs))
    return min(max(shares, default=0.0), 1.0)


def _timestamp(text: object) -> float:
    from datetime import datetime

    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return 0.0


def find_trainings(folder: Path, depth: int) -> list[Path]:
    """Return the folders of trainings in a folder: itself, or below it."""
    found = [folder] if is_training(folder) else []
    if depth == 0:
        return found
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    except OSError:  # of another user
        return found
    return found + [each for name in names for each in find_trainings(folder / name, depth - 1)]
