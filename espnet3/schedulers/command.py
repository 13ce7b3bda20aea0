"""Call a scheduler's command: with a timeout, in a session of its own, and without exceptions.

A command that gives no answer (missing, too slow, or failed) says nothing about any job. Callers
get None or an `Answer` without a code then, and must never take that for "the job is gone".
"""

import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

TIMEOUT_SECONDS = 20.0


@dataclass(frozen=True)
class CommandResult:
    """Output and exit code of a command."""

    code: int | None
    """The exit code; None if the command did not end, or did not start."""
    out: str = ""
    error: str = ""
    seconds: float = 0.0
    failure: Literal["", "missing", "late", "not run"] = ""
    """Why there is no exit code."""

    @property
    def said(self) -> str:
        """All of it on one line, errors first."""
        return " ".join(f"{self.error}\n{self.out}".split())


def call(
    words: Sequence[str],
    *,
    text: str | None = None,
    timeout: float | None = None,
    environment: Mapping[str, str] | None = None,
    folder: str | None = None,
) -> CommandResult:
    """Run a command and wait for its answer; never raises.

    Args:
        words: the command.
        text: its standard input.
        timeout: seconds; `TIMEOUT_SECONDS` if None.
        environment: in place of this program's in the C locale. Not every language says PENDING,
            but the environment of a submission travels to the job.
        folder: in which to run it.
    """
    timeout = TIMEOUT_SECONDS if timeout is None else timeout
    begin = time.monotonic()
    try:
        output = subprocess.run(
            list(words),
            input=text,
            # A command that prompts then fails at once instead of waiting for a terminal.
            stdin=subprocess.DEVNULL if text is None else None,
            capture_output=True,
            text=True,
            # Output need not be UTF-8, and this function promises not to raise.
            errors="replace",
            timeout=timeout,
            env={**os.environ, "LC_ALL": "C"} if environment is None else dict(environment),
            cwd=folder,
            start_new_session=True,  # Ctrl-C is for this program
        )
    except subprocess.TimeoutExpired:
        return CommandResult(
            None, error=f"no answer in {timeout:g} s", seconds=timeout, failure="late"
        )
    except FileNotFoundError as error:
        return CommandResult(None, error=str(error), failure="missing")
    except OSError as error:
        return CommandResult(None, error=str(error), failure="not run")
    return CommandResult(output.returncode, output.stdout, output.stderr, time.monotonic() - begin)


def ask(*words: str, any_code: bool = False) -> str | None:
    """Return what a command prints; None if it fails, hangs or is not there.

    With `any_code`, what it prints counts even if it ends with an error: some commands do so when
    they know all jobs but one.
    """
    answer = call(words)
    if answer.code is None:
        return None
    is_good = answer.code == 0 or (any_code and answer.out.strip())
    return answer.out if is_good else None


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
