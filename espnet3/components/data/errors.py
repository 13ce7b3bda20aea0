"""Errors in data."""

import shlex
from pathlib import Path

from espnet3.errors import EspnetError


class DataError(EspnetError, ValueError):
    """A dataset breaks its contract, or what it was made from is missing, damaged or at odds."""


class AudioError(DataError):
    """An audio file is missing, unreadable, too short, or not of the form that was asked for."""


def create_command() -> str:
    """Return the line that makes the data of the recipe in the current folder.

    The stage needs a config: that with arguments for the builder, of training before inference.
    """
    line = "python run.py --stages create_dataset"
    files = [
        (kind, file)
        for kind in ("training", "inference")
        for file in sorted(Path("conf").glob(f"{kind}*.yaml"), key=lambda file: len(file.name))
    ]
    if not files:
        return line
    kind, file = next((one for one in files if _has_arguments(one[1])), files[0])
    return f"{line} --{kind}_config {shlex.quote(file.as_posix())}"


def _has_arguments(file: Path) -> bool:
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    return any(line.startswith("create_dataset:") for line in lines)
