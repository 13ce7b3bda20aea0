"""Wait for runs to end. The exit code is 0 if all are complete, 1 if one failed, was cancelled or
has no worker left, and 124 after --timeout."""

import argparse
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from espnet3.cli.console import print_error, seconds
from espnet3.cli.run_folders import find_runs
from espnet3.cli.run_view import items_text, speed_text
from espnet3.errors import EspnetError
from espnet3.parallel.detached.folder_access import Patience, told_in_words
from espnet3.parallel.detached.overview import Overview, failure_of, wait_for
from espnet3.text import on_one_line

_TIMED_OUT = 124
_TELL_SECONDS = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `espnet3 wait`."""
    parser.add_argument(
        "dirs", metavar="DIR", nargs="+", type=Path, help="a run folder, or a folder of such"
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=seconds,
        help="give up after so long; the run continues",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no line a minute")


@told_in_words
def run(args: argparse.Namespace) -> int:
    """Wait for all runs, one after the other."""
    deadline = None if args.timeout is None else time.monotonic() + args.timeout
    code = 0
    for run_dir in _find_runs(args.dirs, deadline):
        left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        try:
            seen = wait_for(run_dir, left, tell=None if args.quiet else _Teller(), warn=_warn)
        except TimeoutError as error:
            print_error(error)
            return _TIMED_OUT
        except KeyboardInterrupt:
            print(f"Stopped waiting; {on_one_line(run_dir)} continues.")
            raise
        if seen.state == "complete":
            print(f"{on_one_line(run_dir)} is complete: {items_text(seen.status)}.")
        else:
            print_error(failure_of(seen))
            code = 1
    return code


def _find_runs(folders: Sequence[Path], deadline: float | None) -> list[Path]:
    runs = [Patience(f, _warn, deadline).call(partial(find_runs, f)) for f in folders]
    return list(dict.fromkeys(run for found in runs for run in found))


def _warn(line: str) -> None:
    print_error(EspnetError(line))


class _Teller:
    """Prints a line a minute."""

    def __init__(self) -> None:
        self._told = time.monotonic()

    def __call__(self, seen: Overview) -> None:
        if time.monotonic() - self._told < _TELL_SECONDS or seen.is_over:
            return
        self._told = time.monotonic()
        speed = f", {speed_text(seen.status)}" if seen.status.items_per_second else ""
        where = on_one_line(seen.status.run_dir)
        print(f"{where} is {seen.state}: {items_text(seen.status)}{speed}", flush=True)
