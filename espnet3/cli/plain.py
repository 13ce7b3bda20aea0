"""What all verbs print alike: text that a terminal can bear, numbers, commands, JSON."""

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

# Escape sequences from an error message must not steer the terminal, marks that turn the direction
# of writing not hide what a line says, and a file name that is not UTF-8 (surrogates) could not be
# printed at all.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Return the text with control characters spelled out; line ends and tabs stay."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def on_one_line(value: object) -> str:
    """Return a value, such as a path or an error, as one printable line."""
    return printable(str(value).replace("\n", "\\n").replace("\t", "\\t"))


def command(verb: str, run_dir: str | Path) -> str:
    """Return the line to paste for a verb on a folder."""
    return on_one_line(f"espnet3 {verb} {shlex.quote(str(run_dir))}")


def count(number: int, noun: str) -> str:
    """Return such as `1 item` or `1,200 items`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def print_json(value: Any) -> None:
    """Print one JSON document, in ASCII: it can be written whatever the terminal's encoding."""
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")


def print_error(error: Exception) -> None:
    """Print what went wrong and the notes on it, without a traceback."""
    notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
    print(f"espnet3: {printable(f'{error}{notes}')}", file=sys.stderr)
