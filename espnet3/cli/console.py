"""Shared by all verbs: reading the command line, printing, ending.

`rich` and `json` are imported when something is printed, so that `--help` and errors are quick.
"""

from __future__ import annotations

import argparse
import io
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Collection

from espnet3.errors import EspnetError
from espnet3.text import on_one_line, printable

TYPE_CHECKING = False  # what `typing.TYPE_CHECKING` is, without the import of `typing`
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text


class UsageError(EspnetError):
    """The command line itself is wrong: exit code 2, as from argparse."""


def guarded(run: Callable[[], int]) -> int:
    """Run a command, so that it ends with one message instead of a traceback.

    Returns:
        Its exit code: 1 after an error, 2 for a wrong call, 130 after Ctrl-C, 143 after SIGTERM.
    """
    _escape_what_cannot_be_encoded()
    _heed_ctrl_c()
    try:
        code = _guarded(run)
        if sys.stdout is not None:  # None if the caller closed it
            sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        _discard_stdout()
        return 1
    except KeyboardInterrupt:
        return 130


def _escape_what_cannot_be_encoded() -> None:
    r"""Print `\xe9` for `é` where the terminal's encoding has none, rather than fail."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _heed_ctrl_c() -> None:
    """Let Ctrl-C end what shows something on a terminal, also where a script ignores it.

    What a script starts with `&` ignores it, and Python then leaves it at that.
    """
    is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    on_main = threading.current_thread() is threading.main_thread()
    if is_ignored and on_main and sys.stdout is not None and sys.stdout.isatty():
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _guarded(run: Callable[[], int]) -> int:
    try:
        return run()
    # An OSError as well, but the end of a pipe is no error to print.
    except BrokenPipeError:
        raise
    except (EspnetError, OSError) as error:
        if isinstance(error, FileExistsError | NotADirectoryError) and error.filename:
            from espnet3.io.atomic import folder_trouble

            error = EspnetError(f"{error}: {folder_trouble(error)}")
        print_error(error)
        return 2 if isinstance(error, UsageError) else 1
    except SystemExit as error:  # how argparse ends, after it has said all
        return error.code if isinstance(error.code, int) else 0


def _discard_stdout() -> None:
    """Send what is still buffered nowhere, or Python would complain of the pipe when it ends."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    os.dup2(descriptor, sys.stdout.fileno())
    os.close(descriptor)


def print_error(error: Exception) -> None:
    """Print what went wrong and the notes on it, without a traceback."""
    notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
    print(f"espnet3: {printable(f'{error}{notes}')}", file=sys.stderr)


def print_json(value: Any) -> None:
    """Print one JSON document, in ASCII: it can be written whatever the terminal's encoding."""
    import json

    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")


def command(verb: str, run_dir: str | Path) -> str:
    """Return the line to paste for a verb on a folder."""
    return on_one_line(f"espnet3 {verb} {shlex.quote(str(run_dir))}")


def make_parser(
    verb: str, description: str, *, usage: str | None = None, epilog: str | None = None
) -> argparse.ArgumentParser:
    """Return an empty parser for the line of a verb."""
    return argparse.ArgumentParser(
        prog=f"espnet3 {verb}",
        usage=usage,
        description=description,
        epilog=epilog,
        allow_abbrev=False,
    )


def whole_number(text: str, least: int = 1) -> int:
    """Read a whole number, for argparse."""
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least} on")
    return int(text)


def seconds(text: str, least: float = 0.0) -> float:
    """Read a number of seconds, for argparse."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not least <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from {least:g} on")
    return number


_PIPE_COLUMNS = 4096


def make_console() -> Console:
    """Return a console that prints text as it is: `[brackets]` in a path are no markup.

    Its tables are readable at 80 columns, and without colours where output is piped.
    """
    from rich.console import Console

    # Into a pipe or a file nothing is wrapped: other programs read lines.
    is_piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    width = _PIPE_COLUMNS if is_piped else None
    return Console(highlight=False, markup=False, emoji=False, width=width)


def make_table(*titles: str, right: Collection[str] = (), short: Collection[str] = ()) -> Table:
    """Return an empty table; long cells continue in the next line, so that nothing is cut off.

    Args:
        titles: of the columns.
        right: those of columns of numbers, which stay on one line.
        short: those of columns that give way where the terminal is too narrow; see `shortened`.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, title_style="bold")
    for title in titles:
        table.add_column(
            title,
            justify="right" if title in right else "left",
            overflow="fold",
            # Others give way first: of a number that is cut off, nothing is left.
            no_wrap=title not in short if short else title in right,
        )
    return table


def shortened(text: str) -> Text:
    """Return a cell that ends with an ellipsis where its column is too narrow."""
    from rich.text import Text

    return Text(text, no_wrap=True, overflow="ellipsis")


def make_facts() -> Table:
    """Return an empty grid of names and values."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    return table
