"""Expected speed of a run: stated by the user, or measured by an earlier run."""

import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from espnet3.errors import ConfigError, RunFolderError
from espnet3.parallel.identity import changes, describe_run, not_results_of
from espnet3.shards.manifest import load_manifest
from espnet3.shards.rates import Rate, read_rate
from espnet3.systems.base.run_description import PlannedRun, run_folder
from espnet3.text import first_few, local_time

_DEPTH = 4
_SHOWN = 3
_SPEED_KEYS = ("batch_size", "batch_seconds", "config.model", "params", "provider", "runner")
"""What a rate depends on most, of all that results depend on."""


@dataclass(frozen=True)
class StatedRate:
    """What the user says of the speed; None where nothing is said."""

    real_time_factor: float | None = None
    seconds_per_item: float | None = None
    load_seconds: float | None = None


@dataclass(frozen=True)
class KnownRate:
    """Expected speed of a run, and its source."""

    work_seconds: float
    """Of one worker for all items, done or not."""
    load_seconds: float
    source: str

    @classmethod
    def of(cls, run: PlannedRun, rate: Rate, source: str) -> "KnownRate":
        """Take a rate for the items of a run: by their durations where both know them."""
        seconds = rate.seconds_per_item * run.n_items
        if rate.real_time_factor is not None and run.durations is not None:
            seconds = rate.real_time_factor * float(sum(run.durations))
        return cls(seconds, rate.load_seconds or 0.0, source)


def find_rate(run: PlannedRun, stated: StatedRate, exp_dir: Path) -> KnownRate | None:
    """Return what is stated, or what the earlier run that is nearest to this one took.

    Nearest is the run in the same folder, then those beside it, such as other test sets of one
    config, then those of other experiments; of several the one that ended last.

    Raises:
        ConfigError: a real-time factor is stated for items whose durations are not known.
    """
    if stated.real_time_factor is not None or stated.seconds_per_item is not None:
        return _stated(run, stated)
    for folders in _places(run, exp_dir):
        found = [(rate, folder) for folder in folders if (rate := _rate_in(folder, run))]
        if found:
            rate, folder = max(found, key=lambda pair: pair[0].finished)
            if stated.load_seconds is not None:
                rate = Rate(**{**vars(rate), "load_seconds": stated.load_seconds})
            return KnownRate.of(run, rate, _measured(rate, folder, run))
    return None


def _stated(run: PlannedRun, stated: StatedRate) -> KnownRate:
    load = f", {stated.load_seconds:g} s to load" if stated.load_seconds else ""
    if stated.real_time_factor is None:
        assert stated.seconds_per_item is not None
        rate = Rate(stated.seconds_per_item, load_seconds=stated.load_seconds)
        return KnownRate.of(run, rate, f"{rate.seconds_per_item:g} s per item{load}, as stated")
    if run.durations is None:
        raise ConfigError(
            f"--rtf {stated.real_time_factor:g} needs durations, which {run.name!r} does not know. "
            "Write --seconds-per-item 0.2 instead, or durations(self) in its Dataset."
        )
    rate = Rate(0.0, stated.real_time_factor, stated.load_seconds)
    text = f"real-time factor {stated.real_time_factor:g}{load}, as stated"
    return KnownRate.of(run, rate, text)


def _places(run: PlannedRun, exp_dir: Path) -> Iterator[Iterable[Path]]:
    own = run_folder(run)
    beside = run.output_dir.parent
    yield [own]
    yield _runs_below(beside, 1)
    yield _runs_below(exp_dir.parent, _DEPTH)


def _runs_below(folder: Path, depth: int) -> list[Path]:
    patterns = ["/".join(["*"] * n + ["manifest.json"]) for n in range(1, depth + 1)]
    return [path.parent for pattern in patterns for path in sorted(folder.glob(pattern))]


def _rate_in(folder: Path, run: PlannedRun) -> Rate | None:
    """Return the rate of a run of the same kind; a damaged folder tells none."""
    try:
        manifest = load_manifest(folder)
        if manifest is None or manifest.name != type(run.runner).__name__:
            return None
        return read_rate(folder)
    except RunFolderError:
        return None


def _measured(rate: Rate, folder: Path, run: PlannedRun) -> str:
    if rate.real_time_factor is not None and run.durations is not None:
        speed = f"real-time factor {rate.real_time_factor:.3g}"
    else:
        speed = f"{rate.seconds_per_item:.3g} s per item"
    load = "" if rate.load_seconds is None else f", {rate.load_seconds:.1f} s to load"
    where = first_few(
        ["this machine" if h == socket.gethostname() else h for h in rate.hosts], _SHOWN
    )
    when = local_time(rate.finished)
    text = f"{speed}{load}; measured on {rate.n_items} items in {folder}, {when}, on {where}"
    other = _differences(folder, run)
    return f"{text}; but that run had another {first_few(other, _SHOWN)}" if other else text


def _differences(folder: Path, run: PlannedRun) -> list[str]:
    """Return which settings that matter for the speed an earlier run had otherwise."""
    manifest = load_manifest(folder)
    assert manifest is not None
    described = describe_run(run.runner, range(run.n_items))
    outputs, ignored = (folder, run.output_dir), not_results_of(run.runner)
    changed = changes(manifest, described, outputs=outputs, ignored=ignored)
    keys = [line.partition(":")[0] for line in changed]
    mattering = [key for key in keys if key.startswith(_SPEED_KEYS) and ".code" not in key]
    return list(dict.fromkeys(".".join(key.split(".")[:4]) for key in mattering))
