"""The best checkpoints of each `best_model_criterion`, and `best.json`, which lists them."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.config.sources import set_in
from espnet3.errors import ConfigError, RunFolderError, suggest
from espnet3.io.atomic import StrPath, write_json
from espnet3.trainer.checkpointing.checkpoint_io import read_checkpoint

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

INDEX = "best.json"
LAST = "last.ckpt"
STATE_KEY = "CheckpointKeeper"
"""Under which the list is in the state of the callbacks of a checkpoint."""
KEY = "best_model_criterion"
_EXAMPLE = f"{KEY}: [[valid/loss, 3, min]]"


@dataclass(frozen=True)
class Criterion:
    """Keep the `k` checkpoints with the smallest or largest value of a metric."""

    monitor: str
    """Name of the metric, such as `valid/loss`."""
    k: int
    mode: str
    """`min` or `max`."""

    @property
    def stem(self) -> str:
        """Name of the averaged files without their ending: `valid.loss.ave_3best`."""
        return f"{self.monitor.replace('/', '.')}.ave_{self.k}best"

    def rank(self, value: float) -> float:
        """Return a number that is smaller for a better value."""
        return value if self.mode == "min" else -value

    def __str__(self) -> str:
        return f"{self.monitor} ({self.mode}, best {self.k})"


def parse_criteria(value: Any, loaded: "LoadedConfig | None" = None) -> tuple[Criterion, ...]:
    """Read `[[monitor, K, mode], ...]`; None and an empty list mean that only the last is kept.

    Raises:
        ConfigError: naming the entry, its place, and what to write.
    """
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise ConfigError(f"{KEY} is {value!r}{set_in(KEY, loaded)}, no list. Write: {_EXAMPLE}")
    if value and isinstance(value[0], str):
        raise ConfigError(
            f"{KEY} is {list(value)}{set_in(KEY, loaded)}, one list, but must be a list of lists. "
            f"Write: {KEY}: [[{', '.join(map(str, value))}]]"
        )
    criteria = tuple(_criterion(entry, index, loaded) for index, entry in enumerate(value))
    for index, criterion in enumerate(criteria):
        if criterion.monitor in [c.monitor for c in criteria[:index]]:
            raise ConfigError(
                f"{KEY}{set_in(KEY, loaded)} names {criterion.monitor} twice. Keep one entry, with "
                "the larger number."
            )
    return criteria


def _criterion(entry: Any, index: int, loaded: "LoadedConfig | None") -> Criterion:
    key = f"{KEY}.{index}"
    start = f"{key} is {entry!r}{set_in(key, loaded)}, "
    if not isinstance(entry, list | tuple) or len(entry) != 3:
        raise ConfigError(f"{start}but needs metric, number and min or max. Write: {_EXAMPLE}")
    monitor, k, mode = entry
    if not isinstance(monitor, str) or not monitor:
        raise ConfigError(f"{start}but starts with no name of a metric. Write: {_EXAMPLE}")
    if not isinstance(k, int) or isinstance(k, bool) or k < 1:
        raise ConfigError(
            f"{start}but {k!r} is no number of checkpoints (1 or more). "
            f"Write: [{monitor}, 3, {mode}]"
        )
    if mode not in ("min", "max"):
        hint = suggest(str(mode), ("min", "max"))
        raise ConfigError(
            f"{start}but the mode {mode!r} is neither min nor max.{hint} "
            f"Write: [{monitor}, {k}, {'max' if 'acc' in monitor else 'min'}]"
        )
    return Criterion(monitor, k, mode)


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
