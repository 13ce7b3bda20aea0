"""Show what workers wrote: those at work, one of them, all about a shard, or what failed."""

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from espnet3.cli.console import UsageError, command, make_console
from espnet3.cli.run_folders import find_run
from espnet3.parallel.detached.folder_access import told_in_words
from espnet3.parallel.detached.logs import (
    Follower,
    LogPart,
    known_workers,
    logs_of_failed,
    logs_of_shard,
    logs_of_workers,
)
from espnet3.parallel.detached.overview import Observer
from espnet3.text import on_one_line, printable

if TYPE_CHECKING:
    from rich.console import Console

_N_LINES = 20
_FOLLOW_SECONDS = 1.0
_STATE_SECONDS = 5.0
_SURE_LOOKS = 3
_STYLES = ("cyan", "green", "magenta", "yellow", "blue", "red")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `espnet3 logs`."""
    parser.add_argument("dir", metavar="DIR", type=Path, help="a run folder")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--shard", metavar="N", type=int, help="all attempts at a shard")
    which.add_argument(
        "--worker", metavar="W", help="a worker by its job, its node, node:pid or its log file"
    )
    which.add_argument(
        "--failed", action="store_true", help="the end of what was written where something failed"
    )
    parser.add_argument(
        "-f", "--follow", action="store_true", help="follow new output until the run ends"
    )
    parser.add_argument(
        "-n",
        "--lines",
        metavar="N",
        type=_number,
        help=f"the last N lines of each (default: {_N_LINES} without another option, else all)",
    )


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


@told_in_words
def run(args: argparse.Namespace) -> int:
    """Print logs."""
    run_dir = find_run(args.dir)
    if args.follow and (args.shard is not None or args.failed):
        raise UsageError("-f goes with all workers or with --worker, not with --shard or --failed.")
    console = make_console()
    follower = Follower(run_dir, args.worker) if args.follow else None
    n_lines = _N_LINES if args.lines is None and _is_plain(args) else args.lines
    parts = _parts(args, run_dir, n_lines)
    for number, part in enumerate(parts):
        _show(part.last(n_lines), console, is_first=number == 0)
    if not parts:
        print(_nothing(args, run_dir))
    if follower is not None:
        _follow(run_dir, follower, console)
    return 0


def _is_plain(args: argparse.Namespace) -> bool:
    return (args.shard is None and args.worker is None and not args.failed) or args.follow


def _parts(args: argparse.Namespace, run_dir: Path, n_lines: int | None) -> list[LogPart]:
    if args.shard is not None:
        return logs_of_shard(run_dir, args.shard)
    if args.failed:
        return logs_of_failed(run_dir)
    return logs_of_workers(run_dir, args.worker, n_lines)


def _show(part: LogPart, console: "Console", *, is_first: bool) -> None:
    if not is_first:
        console.print()
    console.print(f"==> {on_one_line(part.title)} <==", style="bold", soft_wrap=True)
    console.print(f"    {on_one_line(part.path)}", style="dim", soft_wrap=True)
    for text in part.lines:
        console.print(printable(text), soft_wrap=True)


def _nothing(args: argparse.Namespace, run_dir: Path) -> str:
    if args.failed:
        return f"Nothing failed in {on_one_line(run_dir)}, or nothing was written about it."
    drivers = [worker.name for worker in known_workers(run_dir) if worker.is_alive]
    if drivers:
        return (
            f"{on_one_line(drivers[0])} runs the items itself, and writes to its own terminal, not "
            f"to {on_one_line(run_dir)}. For a log per worker, set parallel.n_workers: 2"
        )
    return (
        f"There are no logs in {on_one_line(run_dir)} yet: no worker has begun. "
        f"Why: {command('explain', run_dir)}"
    )


def _follow(run_dir: Path, follower: Follower, console: "Console") -> None:
    """Print new lines, each with the name of its worker, until no worker is left."""
    observer = Observer(run_dir, ask_seconds=30.0)
    styles: dict[str, str] = {}
    n_over = 0
    try:
        while True:
            for _ in range(round(_STATE_SECONDS / _FOLLOW_SECONDS)):
                for worker, text in follower.read():
                    style = styles.setdefault(worker, _STYLES[len(styles) % len(_STYLES)])
                    console.print(f"[{on_one_line(worker)}] ", style=style, end="")
                    console.print(printable(text), soft_wrap=True)
                time.sleep(_FOLLOW_SECONDS)
            seen = observer.look()
            n_over = n_over + 1 if seen.is_over else 0
            if seen.state in ("complete", "failed", "cancelled") or n_over >= _SURE_LOOKS:
                console.print(
                    f"{on_one_line(run_dir)} is {seen.state}.", style="bold", soft_wrap=True
                )
                return
    except KeyboardInterrupt:
        return
