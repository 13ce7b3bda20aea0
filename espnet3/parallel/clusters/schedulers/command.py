"""Run a scheduler's command so that it can neither hang nor end this program."""

import json
import os
import subprocess
from typing import Any

TIMEOUT_SECONDS = 20.0


def ask(*words: str, any_code: bool = False) -> str | None:
    """Return what a command prints; None if it fails, hangs or is not there.

    With `any_code`, what it prints counts even if it ends with an error: some commands do so when
    they know all jobs but one.
    """
    try:
        told = subprocess.run(
            words,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_SECONDS,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},  # not every language says PENDING
            start_new_session=True,  # Ctrl-C is for this program
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    is_good = told.returncode == 0 or (any_code and told.stdout.strip())
    return told.stdout if is_good else None


def ask_json(*words: str, any_code: bool = False) -> Any:
    """Return what a command prints, read as JSON; None if it is none."""
    return read_json(ask(*words, any_code=any_code))


def read_json(text: str | None) -> Any:
    """Return what a text is as JSON; None if it is none."""
    try:
        return json.loads(text) if text and text.strip() else None
    except ValueError:
        return None


def unique(names: list[str]) -> list[str]:
    """Return the names without repetitions and empty ones, in order."""
    return list(dict.fromkeys(name for name in names if name))
