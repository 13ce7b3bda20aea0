"""Stop runs: their drivers, their workers, and their jobs of the scheduler. Finished shards are
kept."""

import argparse
from pathlib import Path

from espnet3.cli.console import command, seconds
from espnet3.cli.run_folders import find_detached_runs, has_owner
from espnet3.parallel.detached.cancel import PATIENCE_SECONDS, Cancelled, cancel_runs
from espnet3.parallel.detached.folder_access import told_in_words
from espnet3.shards.records import RecordPaths
from espnet3.text import count, on_one_line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `espnet3 cancel`."""
    parser.add_argument(
        "dirs", metavar="DIR", nargs="+", type=Path, help="a run folder, or a folder of such"
    )
    parser.add_argument("--reason", default="", help="is shown by status and explain")
    parser.add_argument(
        "--patience",
        metavar="SECONDS",
        type=seconds,
        default=PATIENCE_SECONDS,
        help=f"how long to wait until all are gone (default: {PATIENCE_SECONDS:g})",
    )


@told_in_words
def run(args: argparse.Namespace) -> int:
    """Cancel runs; 1 if workers may still be active."""
    run_dirs = find_detached_runs(args.dirs, also=has_owner)
    results = cancel_runs(run_dirs, reason=args.reason, patience=args.patience)
    for result in results:
        _show(result)
    return 1 if any(result.left for result in results) else 0


def _show(result: Cancelled) -> None:
    where = on_one_line(result.run_dir)
    if result.was_complete:
        print(f"{where} is complete; there is nothing to cancel.")
        return
    jobs = f", {count(result.n_jobs, 'job')} cancelled" if result.n_jobs else ""
    n_early = max(result.n_processes - result.n_workers, 0)  # they had not signed in yet
    early = f", {n_early:,} before their start" if n_early else ""
    print(f"{where} is cancelled: {count(result.n_workers, 'worker')} stopped{early}{jobs}.")
    if result.shared:
        print(f"  Job {', '.join(result.shared)} continues: it works for other runs as well.")
    for problem in result.problems:
        print(f"  Not cancelled: {on_one_line(problem)}")
    if result.problems:
        print("  Such jobs end by themselves as soon as they start: the run is marked.")
    if result.left:
        print(f"  Still there: {on_one_line(', '.join(result.left))}")
        print(
            f"  They look at the mark every few seconds; see: {command('status', result.run_dir)}"
        )
    again = "" if RecordPaths(result.run_dir).run.exists() else " , then run the same command again"
    resume = command("resume", result.run_dir)
    print(f"  Finished shards are kept. To continue: {resume}{again}")
