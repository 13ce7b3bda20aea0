"""Diagnosis of stalled runs: `espnet3 explain`, `failed` and `logs`."""

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.cli.console import (
    UsageError,
    command,
    make_console,
    make_parser,
    make_table,
    print_error,
    print_json,
    whole_number,
)
from espnet3.cli.run_view import add_dirs, find_all_runs, find_run, find_runs, has_owner
from espnet3.errors import EspnetError
from espnet3.parallel.detached.explain import explain_run
from espnet3.parallel.detached.folder_access import in_words, reports_folder_errors
from espnet3.parallel.detached.logs import (
    LogFollower,
    LogPart,
    known_workers,
    logs_of_failed,
    logs_of_shard,
    logs_of_workers,
)
from espnet3.parallel.detached.overview import Observer
from espnet3.shards.manifest import require_manifest
from espnet3.shards.merge import read_failures
from espnet3.text import count, on_one_line, printable

if TYPE_CHECKING:
    from rich.console import Console

    from espnet3.findings import Finding

_EXPLAIN = """Explain why runs make no progress: what jobs wait for, how they ended, what died
where, with a suggestion for each."""
_FAILED = """List the items that failed: what, where, and the user's traceback. These are the items
that were skipped, and the one whose error stopped the run."""
_LOGS = "Show what workers wrote: those at work, one of them, all about a shard, or what failed."
_LEVELS = {"ok": "green", "warning": "yellow", "problem": "bold red"}
_LIMIT = 10
_SHOWN_ERRORS = 10
_SHOWN_ITEMS = 3
_N_LINES = 20
_FOLLOW_SECONDS = 1.0
_STATE_SECONDS = 5.0
_SURE_LOOKS = 3
_WORKER_STYLES = ("cyan", "green", "magenta", "yellow", "blue", "red")


def _explain_parser() -> argparse.ArgumentParser:
    parser = make_parser("explain", _EXPLAIN)
    add_dirs(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document for scripts")
    return parser


@reports_folder_errors
def explain(argv: Sequence[str]) -> int:
    """Print what was found; 1 if some folder could not be read."""
    args = _explain_parser().parse_args(argv)
    found, errors = _explain(find_all_runs(args.dirs))
    for error in errors:
        print_error(error)
    code = 1 if errors else 0
    if args.json:
        runs = [
            {"run_dir": str(run_dir), "findings": [asdict(each) for each in findings]}
            for run_dir, findings in found.items()
        ]
        print_json({"runs": runs})
        return code
    console = make_console()
    for run_dir, findings in found.items():
        console.print(on_one_line(run_dir), style="bold", soft_wrap=True)
        for finding in findings:
            _show_finding(finding, console)
        console.print()
    return code


def _explain(run_dirs: Sequence[Path]) -> "tuple[dict[Path, list[Finding]], list[Exception]]":
    found: dict[Path, list[Finding]] = {}
    errors: list[Exception] = []
    for run_dir in run_dirs:
        try:
            found[run_dir] = explain_run(run_dir)
        except (EspnetError, OSError) as error:  # one damaged run must not hide the others
            errors.append(in_words(error, run_dir))
    return found, errors


def _show_finding(finding: "Finding", console: "Console") -> None:
    from rich.text import Text

    first, *rest = printable(finding.told).split("\n")
    line = Text(f"  {finding.level}: ", style=_LEVELS[finding.level])
    line.append(f"{finding.what}: ", style="bold")
    line.append(first, style="default")
    console.print(line, soft_wrap=True)
    for text in rest:  # not wrapped, so that it can be searched for
        console.print(f"    {text}", style="dim", soft_wrap=True)
    if finding.fix:
        console.print(f"    -> {on_one_line(finding.fix)}", soft_wrap=True)


def _failed_parser() -> argparse.ArgumentParser:
    parser = make_parser("failed", _FAILED)
    parser.add_argument("dir", metavar="DIR", type=Path, help="a run folder, or a folder of such")
    parser.add_argument("--json", action="store_true", help="print one JSON document for scripts")
    parser.add_argument(
        "--limit",
        metavar="N",
        type=partial(whole_number, least=0),
        help=f"show the first N items (default: {_LIMIT}, and all of them with --json)",
    )
    return parser


@reports_folder_errors
def failed(argv: Sequence[str]) -> int:
    """Print what failed; that something did is no error of this command."""
    args = _failed_parser().parse_args(argv)
    found = {run_dir: read_failures(run_dir) for run_dir in find_runs(args.dir)}
    if args.json:
        shown = [_as_dict(run_dir, failures, args.limit) for run_dir, failures in found.items()]
        print_json(shown[0] if len(shown) == 1 else {"runs": shown})
        return 0
    for number, (run_dir, failures) in enumerate(found.items()):
        print("\n" if number and failures else "", end="")
        if failures:
            _show_failures(run_dir, failures, _LIMIT if args.limit is None else args.limit)
        else:
            print(f"No item failed in {on_one_line(run_dir)}.{_where_else(run_dir)}")
    return 0


def _as_dict(run_dir: Path, failures: list[dict[str, Any]], limit: int | None) -> dict[str, Any]:
    shown = failures if limit is None else failures[:limit]
    return {"run_dir": str(run_dir), "n_failed": len(failures), "failures": shown}


def _where_else(run_dir: Path) -> str:
    """Say where to look on if a run stopped though no item failed, such as when workers died."""
    layout = require_manifest(run_dir).layout(run_dir)
    has_logs = layout.logs.is_dir() and any(layout.logs.iterdir())
    if layout.success.exists() or not has_logs:
        return ""
    return f" The logs of its workers are in {on_one_line(layout.logs)}."


def _show_failures(run_dir: Path, failures: list[dict[str, Any]], limit: int) -> None:
    console = make_console()
    n_items = sum(failure.get("index") is not None for failure in failures)
    what = count(n_items, "item") if n_items else "The provider"
    console.print(
        f"{what} failed in {on_one_line(run_dir)}",
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
    known = on_one_line(", ".join(map(str, failure.get("ids") or ())))
    if isinstance(item, list):
        first = known or on_one_line(", ".join(map(repr, item[:_SHOWN_ITEMS])))
        name = f"Batch of {len(item)} items ({first}, ...)"
    else:
        name = f"Item {on_one_line(repr(item))}" + (f", {known}" if known else "")
    what = "The provider" if item is None else f"{name} ({where})"
    title = f"\n{what} on {host}"
    console.print(title, style="bold", soft_wrap=True)
    console.print(on_one_line(failure.get("error", "")), style="red", soft_wrap=True)
    if failure.get("log"):
        console.print(f"Log: {on_one_line(run_dir / failure['log'])}", soft_wrap=True)
    if failure.get("traceback"):
        lines = printable(failure["traceback"].rstrip()).split("\n")
        console.print("\n".join(f"  {line}" for line in lines), soft_wrap=True)


def _logs_parser() -> argparse.ArgumentParser:
    parser = make_parser("logs", _LOGS)
    parser.add_argument("dir", metavar="DIR", type=Path, help="a run folder, or a folder of such")
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
        type=whole_number,
        help=f"the last N lines of each (default: {_N_LINES} without another option, else all)",
    )
    return parser


@reports_folder_errors
def logs(argv: Sequence[str]) -> int:
    """Print logs."""
    args = _logs_parser().parse_args(argv)
    if args.follow and (args.shard is not None or args.failed):
        raise UsageError("-f goes with all workers or with --worker, not with --shard or --failed.")
    for run_dir in _runs_with_logs(args):
        _show_logs(args, run_dir, make_console())
    return 0


def _runs_with_logs(args: argparse.Namespace) -> list[Path]:
    """Return the runs whose logs are asked for; a shard or a worker is one of a single run."""
    runs = find_runs(args.dir)
    if len(runs) > 1 and (args.follow or args.shard is not None or args.worker is not None):
        living = [run for run in runs if has_owner(run)]
        return living if len(living) == 1 else [find_run(args.dir)]
    return runs


def _show_logs(args: argparse.Namespace, run_dir: Path, console: "Console") -> None:
    # Before the first lines are read, so that none is lost in between.
    follower = LogFollower(run_dir, args.worker) if args.follow else None
    n_lines = _N_LINES if args.lines is None and _is_plain(args) else args.lines
    parts = _parts(args, run_dir, n_lines)
    for number, part in enumerate(parts):
        _show_part(part.last(n_lines), console, is_first=number == 0)
    if not parts:
        print(_nothing(args, run_dir))
    if follower is not None:
        _follow(run_dir, follower, console)


def _is_plain(args: argparse.Namespace) -> bool:
    return (args.shard is None and args.worker is None and not args.failed) or args.follow


def _parts(args: argparse.Namespace, run_dir: Path, n_lines: int | None) -> list[LogPart]:
    if args.shard is not None:
        return logs_of_shard(run_dir, args.shard)
    if args.failed:
        return logs_of_failed(run_dir)
    return logs_of_workers(run_dir, args.worker, n_lines)


def _show_part(part: LogPart, console: "Console", *, is_first: bool) -> None:
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


def _follow(run_dir: Path, follower: LogFollower, console: "Console") -> None:
    """Print new lines, each with the name of its worker, until no worker is left."""
    observer = Observer(run_dir, ask_seconds=30.0)
    styles: dict[str, str] = {}
    n_over = 0

    def show_new() -> None:
        for worker, text in follower.read():
            style = styles.setdefault(worker, _WORKER_STYLES[len(styles) % len(_WORKER_STYLES)])
            console.print(f"[{on_one_line(worker)}] ", style=style, end="")
            console.print(printable(text), soft_wrap=True)

    try:
        while True:
            for _ in range(round(_STATE_SECONDS / _FOLLOW_SECONDS)):
                show_new()
                time.sleep(_FOLLOW_SECONDS)
            seen = observer.look()
            n_over = n_over + 1 if seen.is_over else 0
            if seen.state in ("complete", "failed", "cancelled") or n_over >= _SURE_LOOKS:
                show_new()  # what came between the last read and the end
                console.print(
                    f"{on_one_line(run_dir)} is {seen.state}.", style="bold", soft_wrap=True
                )
                return
    except KeyboardInterrupt:
        return
