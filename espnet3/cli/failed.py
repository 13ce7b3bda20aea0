"""List the items that failed: what, where, and the user's traceback.

These are the items that were skipped, and the one whose error stopped the run.
"""

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.cli.console import command, make_console, make_table, print_json
from espnet3.cli.run_folders import find_run
from espnet3.parallel.detached.folder_access import told_in_words
from espnet3.shards.status import read_failures, require_manifest
from espnet3.text import count, on_one_line, printable

if TYPE_CHECKING:
    from rich.console import Console

_LIMIT = 10
_SHOWN_ERRORS = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `espnet3 failed`."""
    parser.add_argument("dir", metavar="DIR", type=Path, help="a run folder")
    parser.add_argument("--json", action="store_true", help="print one JSON document for scripts")
    parser.add_argument(
        "--limit",
        metavar="N",
        type=_limit,
        help=f"show the first N items (default: {_LIMIT}, and all of them with --json)",
    )


def _limit(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return number


@told_in_words
def run(args: argparse.Namespace) -> int:
    """Print what failed; that something did is no error of this command."""
    run_dir = find_run(args.dir)
    failures = read_failures(run_dir)
    if args.json:
        shown = failures if args.limit is None else failures[: args.limit]
        print_json({"run_dir": str(run_dir), "n_failed": len(failures), "failures": shown})
    elif failures:
        _show(run_dir, failures, _LIMIT if args.limit is None else args.limit)
    else:
        print(f"No item failed in {on_one_line(run_dir)}.{_where_else(run_dir)}")
    return 0


def _where_else(run_dir: Path) -> str:
    """Say where to look on if a run stopped though no item failed, such as when workers died."""
    layout = require_manifest(run_dir).layout(run_dir)
    has_logs = layout.logs.is_dir() and any(layout.logs.iterdir())
    if layout.success.exists() or not has_logs:
        return ""
    return f" The logs of its workers are in {on_one_line(layout.logs)}."


def _show(run_dir: Path, failures: list[dict[str, Any]], limit: int) -> None:
    console = make_console()
    console.print(
        f"{count(len(failures), 'item')} failed in {on_one_line(run_dir)}",
        style="bold",
        soft_wrap=True,
    )
    errors = Counter(on_one_line(failure.get("error", "")) for failure in failures)
    if len(errors) < len(failures):
        _show_errors(errors, console)
    for failure in failures[:limit]:
        _show_failure(run_dir, failure, console)
    if len(failures) > limit:
        more = f"{command('failed', run_dir)} --limit {len(failures)}"
        shown = f"{min(limit, len(failures)):,} of {len(failures):,} are shown"
        console.print(f"\n{shown}; for all: {more}", soft_wrap=True)


def _show_errors(errors: Counter[str], console: "Console") -> None:
    table = make_table("Items", "Error", right=["Items"])
    for error, number in errors.most_common(_SHOWN_ERRORS):
        table.add_row(f"{number:,}", error)
    if len(errors) > _SHOWN_ERRORS:
        table.add_row("...", f"and {len(errors) - _SHOWN_ERRORS} more errors")
    console.print()
    console.print(table)


def _show_failure(run_dir: Path, failure: dict[str, Any], console: "Console") -> None:
    where = f"position {failure.get('position')}, shard {failure.get('shard')}"
    host = on_one_line(f"{failure.get('host', '?')}:{failure.get('pid', '?')}")
    item = failure.get("index")
    what = "The provider" if item is None else f"Item {on_one_line(repr(item))} ({where})"
    title = f"\n{what} on {host}"
    console.print(title, style="bold", soft_wrap=True)
    console.print(on_one_line(failure.get("error", "")), style="red", soft_wrap=True)
    if failure.get("log"):
        console.print(f"Log: {on_one_line(run_dir / failure['log'])}", soft_wrap=True)
    if failure.get("traceback"):
        lines = printable(failure["traceback"].rstrip()).split("\n")
        console.print("\n".join(f"  {line}" for line in lines), soft_wrap=True)
