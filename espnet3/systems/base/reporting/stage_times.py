"""Durations of stages, from the records in `<exp_dir>/config/`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espnet3.systems.base.provenance import read_record
from espnet3.systems.base.stages import Stage


@dataclass(frozen=True)
class StageTime:
    """The time of a stage."""

    name: str
    seconds: float
    """Of the longest run that ended well, with the broken ones that it went on from: the same
    command again finds all done, and takes no time."""
    state: str
    """How the last run ended."""
    start: str
    record: Mapping[str, Any]


def read_stage_times(exp_dir: Path, stages: Sequence[Stage]) -> list[StageTime]:
    """Return the stages that ran in this experiment, in order, without `report` itself."""
    found = []
    for stage in stages:
        record = read_record(exp_dir / "config" / f"{stage.name}.json")
        if not record or stage.name == "report":
            continue
        seconds = _longest(record)
        if seconds is not None:
            state, start = str(record.get("state", "")), str(record.get("start", ""))
            found.append(StageTime(stage.name, seconds, state, start, record))
    return found


def _longest(record: Mapping[str, Any]) -> float | None:
    """Return the seconds of the longest chain of broken runs that ends with a good one."""
    earlier = record.get("earlier")
    runs = [*(earlier if isinstance(earlier, list) else []), record]
    chains, current = list[float](), 0.0
    for run in runs:
        current += float(run.get("seconds") or 0.0)
        if run.get("state") in ("done", "skipped"):
            chains.append(current)
            current = 0.0
    return max(chains, default=None)
