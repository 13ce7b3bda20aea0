"""What is written of a dataset's shards so far, kept in a file beside them."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from espnet3.components.data.errors import DataError, create_command
from espnet3.config.fingerprint import diff, flatten
from espnet3.errors import ConfigError, StaleRunError
from espnet3.io.atomic import StrPath, write_json

PLAN_ENDING = ".shards.json"

_VERSION = 1
_DIGITS = 6
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass
class ShardPlan:
    """The shards that are whole, and whether these are all."""

    folder: Path
    name: str
    ending: str
    settings: Mapping[str, Any]
    """What the shards depend on."""
    n_samples: list[int] = field(default_factory=list)
    """Of each whole shard."""
    is_complete: bool = False

    @property
    def file(self) -> Path:
        """Where it is kept."""
        return self.folder / f"{self.name}{PLAN_ENDING}"

    def shards(self) -> list[Path]:
        """Return the whole shards."""
        return [self._shard(i) for i in range(len(self.n_samples))]

    def next_shard(self) -> Path:
        """Return the shard to write next."""
        return self._shard(len(self.n_samples))

    def add(self, n_samples: int) -> None:
        """Note that the next shard is whole."""
        self.n_samples.append(n_samples)
        self.save()

    def complete(self) -> None:
        """Note that there are no more shards to write."""
        self.is_complete = True
        self.save()

    def pattern(self) -> str:
        """Return what to write as `path` in a config."""
        last = f"{len(self.n_samples) - 1:0{_DIGITS}d}"
        return f"{self.folder}/{self.name}-{{{'0' * _DIGITS}..{last}}}{self.ending}"

    def save(self) -> None:
        """Write the file, atomically."""
        values = {
            "version": _VERSION,
            "settings": flatten(self.settings),
            "is_complete": self.is_complete,
            "n_samples": self.n_samples,
        }
        write_json(self.file, values, indent=None)

    def _shard(self, number: int) -> Path:
        return self.folder / f"{self.name}-{number:0{_DIGITS}d}{self.ending}"


def open_plan(folder: Path, name: str, ending: str, settings: Mapping[str, Any]) -> ShardPlan:
    """Return the plan of a folder as far as its shards are there, or a new one.

    Raises:
        ConfigError: The name cannot be that of files.
        StaleRunError: The shards are of other data or settings.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"name is {name!r}, but must be letters, digits, dots, _ or -. Write: name: train"
        )
    plan = ShardPlan(folder, name, ending, settings)
    if not plan.file.exists():
        plan.save()
        return plan
    values = _load(plan.file)
    changes = diff(values["settings"], flatten(settings))
    if changes:
        raise StaleRunError(
            f"{folder} holds shards {name}-*{ending} of other data or settings "
            f"({'; '.join(changes[:5])}). Remove them: rm {name}-*{ending}* {plan.file.name}; or "
            "write into another folder."
        )
    plan.n_samples, plan.is_complete = values["n_samples"], values["is_complete"]
    there = [shard.exists() for shard in plan.shards()]
    if not all(there):  # what comes after a missing one is written again, and will be the same
        del plan.n_samples[there.index(False) :]
        plan.is_complete = False
    return plan


def are_shards_written(folder: StrPath, name: str = "shard") -> bool:
    """Tell whether a writer came to its end; made for `DatasetBuilder.is_built`."""
    file = Path(folder, f"{name}{PLAN_ENDING}")
    if not file.exists():
        return False
    values = _load(file)
    ending = values["settings"].get("ending", "")
    plan = ShardPlan(file.parent, name, ending, {}, values["n_samples"])
    return bool(values["is_complete"]) and all(shard.exists() for shard in plan.shards())


def check_written(shards: Iterable[Path]) -> None:
    """Raise a `DataError` if one of the shards is of a writer that has not come to its end."""
    folders: dict[Path, set[str]] = {}
    for shard in shards:
        folders.setdefault(shard.parent, set()).add(shard.name.rpartition("-")[0])
    for folder, names in folders.items():
        for name in sorted(names):
            file = folder / f"{name}{PLAN_ENDING}"
            if file.exists() and not _load(file)["is_complete"]:
                raise DataError(
                    f"The shards {name}-* in {folder} are not all written: {file.name} says so. "
                    f"Go on with what writes them: {create_command()}"
                )


def _load(file: Path) -> dict[str, Any]:
    try:
        values: dict[str, Any] = json.loads(file.read_bytes())
        if values["version"] == _VERSION:
            return values
        problem = f"is of version {values['version']}"
    except (ValueError, KeyError, TypeError) as error:
        problem = f"is damaged ({error})"
    raise StaleRunError(
        f"{file} {problem}, so it does not tell which shards are whole. Remove it and the shards "
        "that it is for, and write them again."
    )
