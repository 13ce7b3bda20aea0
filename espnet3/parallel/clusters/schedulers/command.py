"""Run a scheduler's command so that it can neither hang nor end this program."""

import json
import os
import subprocess
from typing import Any

TIMEOUT_SECONDS = 20.0


def ask(*words: str, timeout: float = TIMEOUT_SECONDS) -> str | None:
    """Return what a command prints; None if it fails, hangs or is not there."""
    try:
        told = subprocess.run(
            words,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},  # not every language says PENDING
            start_new_session=True,  # Ctrl-C is for this program
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return told.stdout if told.returncode == 0 else None


def ask_json(*words: str) -> Any:
    """Return what a command prints, read as JSON; None if it is none."""
    text = ask(*words)
    try:
        return json.loads(text) if text and text.strip() else None
    except ValueError:
        return None


def unique(names: list[str]) -> list[str]:
    """Return the names without repetitions and empty ones, in order."""
    return list(dict.fromkeys(name for name in names if name))
