"""What all verbs print alike: commands to paste, JSON, errors."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

from espnet3.text import on_one_line, printable


def command(verb: str, run_dir: str | Path) -> str:
    """Return the line to paste for a verb on a folder."""
    return on_one_line(f"espnet3 {verb} {shlex.quote(str(run_dir))}")


def print_json(value: Any) -> None:
    """Print one JSON document, in ASCII: it can be written whatever the terminal's encoding."""
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")


def print_error(error: Exception) -> None:
    """Print what went wrong and the notes on it, without a traceback."""
    notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
    print(f"espnet3: {printable(f'{error}{notes}')}", file=sys.stderr)
