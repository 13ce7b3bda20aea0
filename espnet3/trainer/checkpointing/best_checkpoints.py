"""The best checkpoints of each `best_model_criterion`, and `best.json`, which lists them."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from espnet3.errors import RunFolderError
from espnet3.io.atomic import StrPath, write_json
from espnet3.trainer.checkpointing.checkpoint_io import read_checkpoint
from espnet3.trainer.config import Criterion

INDEX = "best.json"
LAST = "last.ckpt"
STATE_KEY = "CheckpointKeeper"
"""Under which the list is in the state of the callbacks of a checkpoint."""


@dataclass(frozen=True)
class Saved:
    """A checkpoint and the value of the metric when it was written."""

    file: str
    """Name in the experiment's folder."""
    value: float
    epoch: int
    step: int


class BestCheckpoints:
    """The best K of each criterion so far; says which files to write and which are dropped."""

    def __init__(self, criteria: Iterable[Criterion]) -> None:
        self.lists: dict[Criterion, list[Saved]] = {criterion: [] for criterion in criteria}
        self.kept: list[str] = []  # of earlier settings: ours no longer, and never removed

    def add(self, file: str, values: Mapping[str, float], epoch: int, step: int) -> list[Criterion]:
        """Put a checkpoint in the lists where it belongs, and drop what falls out of them.

        NaN and infinite values never enter. Of equal values the older one stays.

        Returns:
            The criteria of which it is now one of the best; empty: it need not be written.
        """
        entered = []
        for criterion, saved in self.lists.items():
            value = values.get(criterion.monitor)
            if value is None or not math.isfinite(value):
                continue
            others = [one for one in saved if one.file != file]
            others.append(Saved(file, float(value), epoch, step))
            best = sorted(others, key=lambda one: (criterion.rank(one.value), one.step))
            self.lists[criterion] = best[: criterion.k]
            if file in [one.file for one in self.lists[criterion]]:
                entered.append(criterion)
        return entered

    def files(self) -> set[str]:
        """Return the names of all files that must stay."""
        return {one.file for saved in self.lists.values() for one in saved} | set(self.kept)

    def state_dict(self) -> dict[str, Any]:
        """Return plain values: what is in `best.json` and in a checkpoint."""
        criteria = [
            {**asdict(criterion), "checkpoints": [asdict(one) for one in saved]}
            for criterion, saved in self.lists.items()
        ]
        return {"version": 1, "criteria": criteria, "kept": list(self.kept)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the lists; files of criteria or places that are gone are kept for good."""
        old = _read_lists(state)
        for criterion in self.lists:
            same = [
                s
                for c, s in old.items()
                if (c.monitor, c.mode) == (criterion.monitor, criterion.mode)
            ]
            self.lists[criterion] = same[0][: criterion.k] if same else []
        self.kept = list(state.get("kept", []))
        everything = {one.file for saved in old.values() for one in saved}
        self.kept += sorted(everything - self.files())


def write_index(exp_dir: StrPath, best: BestCheckpoints) -> None:
    """Write `best.json` atomically."""
    write_json(Path(exp_dir) / INDEX, best.state_dict())


def read_index(exp_dir: StrPath) -> dict[Criterion, list[Saved]]:
    """Return the best checkpoints of each criterion, best first, as they are on the disk.

    `best.json` is read, or if it is gone the state in `last.ckpt`.

    Raises:
        RunFolderError: neither is there, or what is there is damaged.
    """
    index, last = Path(exp_dir) / INDEX, Path(exp_dir) / LAST
    if index.is_file():
        try:
            return _read_lists(json.loads(index.read_text(encoding="utf-8")))
        except (ValueError, KeyError, TypeError) as error:
            raise RunFolderError(
                f"{index} is damaged ({error}). Delete it: the list is in {LAST} as well."
            ) from error
    if last.exists():
        state = read_checkpoint(last, mmap=True).get("callbacks", {}).get(STATE_KEY)
        if state is not None:
            return _read_lists(state)
    raise RunFolderError(
        f"{exp_dir} has no {INDEX} and no {LAST} with a list of the best checkpoints. "
        "Train first: python run.py --stages train --training_config ..."
    )


def _read_lists(state: Mapping[str, Any]) -> dict[Criterion, list[Saved]]:
    return {
        Criterion(entry["monitor"], entry["k"], entry["mode"]): [
            Saved(**one) for one in entry["checkpoints"]
        ]
        for entry in state["criteria"]
    }
