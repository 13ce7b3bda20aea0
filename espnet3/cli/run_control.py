"""Stop, await and continue runs: `espnet3 cancel`, `wait`, `resume` and `retry`."""

import argparse
import re
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from espnet3.cli.console import (
    UsageError,
    command,
    make_parser,
    print_error,
    seconds,
    whole_number,
)
from espnet3.cli.recipe_options import parse_line
from espnet3.cli.run_view import (
    add_dirs,
    find_detached_runs,
    find_runs,
    has_owner,
    is_stopped,
    items_text,
    speed_text,
)
from espnet3.commands import override_key
from espnet3.errors import EspnetError
from espnet3.parallel.detached.control import (
    PATIENCE_SECONDS,
    Cancelled,
    Resumed,
    cancel_runs,
    resume_runs,
    retry_runs,
)
from espnet3.parallel.detached.folder_access import Patience, reports_folder_errors
from espnet3.parallel.detached.overview import Overview, failure_of, wait_for
from espnet3.shards.records import RecordPaths
from espnet3.text import count, on_one_line

_CANCEL = """Stop runs: their drivers, their workers, and their jobs of the scheduler. Finished
shards are kept."""
_WAIT = """Wait for runs to end. The exit code is 0 if all are complete, 1 if one failed, was
cancelled or has no worker left, and 124 after --timeout."""
_RESUME = """Give detached runs more workers: those that are missing, or as many as --workers says,
on the same backend or another. The first words are run folders, or folders of such. A file
conf/parallel_x.yaml gives another `parallel` block; KEY=VALUE changes a key of it."""
_RETRY = """Compute the shards with failed items again; the rest of the line is as for `espnet3
resume`."""
_TIMED_OUT = 124
_LINE_SECONDS = 60.0
_BLOCK = "parallel."
_SHOWN = 8
_TIME = re.compile(r"^(.*\bwalltime)=([\d-]+(?::\d+)+)$")
_FAULTS: dict[str, Callable[[Any], bool]] = {
    "on_error": lambda value: value in ("raise", "skip"),
    "max_errors": lambda value: value is None or (isinstance(value, int) and value >= 0),
}
"""Settings of a runner that may change in the middle of a run, and what they can be."""
_EPILOG = (
    "KEY=VALUE changes the run's parallel block, such as options.walltime=12:00:00 or "
    "item_timeout=600, and runner.on_error=skip its runner. "
    "Start on Slurm, finish on a laptop: espnet3 resume DIR --env local. The other way round: "
    "espnet3 resume DIR conf/parallel_slurm.yaml. Several people may do so at once: they share the "
    "work."
)


def _cancel_parser() -> argparse.ArgumentParser:
    parser = make_parser("cancel", _CANCEL)
    add_dirs(parser)
    parser.add_argument("--reason", default="", help="is shown by status and explain")
    parser.add_argument(
        "--patience",
        metavar="SECONDS",
        type=seconds,
        default=PATIENCE_SECONDS,
        help=f"how long to wait until all are gone (default: {PATIENCE_SECONDS:g})",
    )
    return parser


@reports_folder_errors
def cancel(argv: Sequence[str]) -> int:
    """Cancel runs; 1 if workers may still be active."""
    args = _cancel_parser().parse_args(argv)
    run_dirs = find_detached_runs(args.dirs, also=has_owner)
    results = cancel_runs(run_dirs, reason=args.reason, patience=args.patience)
    for result in results:
        _show_cancelled(result)
    return 1 if any(result.left for result in results) else 0


def _show_cancelled(result: Cancelled) -> None:
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


def _wait_parser() -> argparse.ArgumentParser:
    parser = make_parser("wait", _WAIT)
    add_dirs(parser)
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=seconds,
        help="give up after so long; the run continues",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no line a minute")
    return parser


@reports_folder_errors
def wait(argv: Sequence[str]) -> int:
    """Wait for all runs, one after the other."""
    args = _wait_parser().parse_args(argv)
    deadline = None if args.timeout is None else time.monotonic() + args.timeout
    code = 0
    for run_dir in _find_runs(args.dirs, deadline):
        left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        try:
            seen = wait_for(run_dir, left, tell=None if args.quiet else _MinuteLine(), warn=_warn)
        except TimeoutError as error:
            print_error(error)
            # As from timeout(1), so that scripts can tell it from a failed run.
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


class _MinuteLine:
    """Prints a line a minute."""

    def __init__(self) -> None:
        self._printed = time.monotonic()

    def __call__(self, seen: Overview) -> None:
        if time.monotonic() - self._printed < _LINE_SECONDS or seen.is_over:
            return
        self._printed = time.monotonic()
        speed = f", {speed_text(seen.status)}" if seen.status.items_per_second else ""
        where = on_one_line(seen.status.run_dir)
        print(f"{where} is {seen.state}: {items_text(seen.status)}{speed}", flush=True)


@dataclass(frozen=True)
class ResumeRequest:
    """Parsed command line of `resume` and `retry`."""

    run_dirs: list[Path]
    changes: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    """Number of workers, trusted user, and whether the changes are a whole block."""


@reports_folder_errors
def resume(argv: Sequence[str]) -> int:
    """Submit more workers.

    Raises:
        UsageError: the line is wrong.
    """
    request = parse(argv, "resume", _RESUME)
    _show_resumed(resume_runs(request.run_dirs, request.changes, **request.settings))
    return 0


@reports_folder_errors
def retry(argv: Sequence[str]) -> int:
    """Set shards aside and submit workers.

    Raises:
        UsageError: the line is wrong.
    """
    request = parse(argv, "retry", _RETRY)
    retried = retry_runs(request.run_dirs, request.changes, **request.settings)
    if retried.n_shards:
        failed = count(retried.n_failed, "failed item")
        print(f"{failed} in {count(retried.n_shards, 'shard')}, which will be computed again.")
    elif retried.resumed is None:
        print("No item failed; nothing to do.")
    if retried.resumed is not None:
        _show_resumed(retried.resumed)
    return 0


def parse(argv: Sequence[str], verb: str, description: str) -> ResumeRequest:
    """Read a line of folders, a config, options and changes."""
    args, overrides = parse_line(_resume_parser(verb, description), argv)
    files = [word for word in args.words if word.endswith((".yaml", ".yml"))]
    folders = [Path(word) for word in args.words if word not in files]
    if not folders:
        raise UsageError(f"name a run folder: espnet3 {verb} DIR")
    of_runner = [word for word in overrides if _is_of_runner(word)]
    changes = _changes(files, [word for word in overrides if word not in of_runner])
    if args.env:
        changes["env"] = args.env
    settings = {"n_more": args.workers, "trust": args.trust, "is_block": bool(files)}
    settings["faults"] = _faults(of_runner)
    return ResumeRequest(find_detached_runs(folders, also=is_stopped), changes, settings)


def _resume_parser(verb: str, description: str) -> argparse.ArgumentParser:
    failed = " --failed" if verb == "retry" else ""
    parser = make_parser(
        verb,
        description,
        usage=f"espnet3 {verb} DIR ...{failed} [PARALLEL.yaml] [--env ENV] [--workers N] "
        "[--trust USER] [KEY=VALUE ...]",
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add("words", metavar="DIR", nargs="+", help="a run folder, or a folder of such")
    if verb == "retry":
        add("--failed", action="store_true", required=True,
            help="what to try again: the shards with items that failed")  # fmt: skip
    add("--env", help="another backend, such as local; options of the first are dropped")
    add("--workers", metavar="N", type=whole_number,
        help="add N workers (default: as many as are missing to n_workers)")  # fmt: skip
    add("--trust", metavar="USER",
        help="run code that this user submitted; without it, only your own")  # fmt: skip
    return parser


def _changes(files: Sequence[str], overrides: Sequence[str]) -> dict[str, Any]:
    """Return the keys of the `parallel` block that a line changes."""
    if not files and not overrides:
        return {}
    from espnet3.config.load import load_config

    spelled = [word if word.startswith(_BLOCK) else _BLOCK + word for word in overrides]
    # The shell has eaten the quotes without which YAML reads 10:00:00 as a number.
    spelled = [_TIME.sub(r'\1="\2"', word) for word in spelled]
    loaded = load_config(list(files), spelled)
    block = loaded.plain().get("parallel")
    if not block:
        raise UsageError(f"{' '.join(files)} has no block `parallel:`.")
    return dict(block)


def _is_of_runner(override: str) -> bool:
    block, _, name = override_key(override).rpartition(".")
    return name in _FAULTS or block == "runner"


def _faults(overrides: Sequence[str]) -> dict[str, Any]:
    """Return the settings of the runner that a line changes, by name.

    Raises:
        UsageError: one cannot change any more, or has a wrong value.
    """
    from espnet3.config.load import parse_override

    faults: dict[str, Any] = {}
    for word in overrides:
        name, value = override_key(word).rpartition(".")[2], parse_override(word).value
        if name not in _FAULTS:
            raise UsageError(
                f"{override_key(word)} cannot change in a run that was submitted.",
                fix="It takes runner.on_error and runner.max_errors; for others, run the command "
                f"that began it again with {shlex.quote(word)}",
            )
        if not _FAULTS[name](value):
            raise UsageError(
                f"{word} is wrong.", fix="Write: runner.on_error=skip or runner.max_errors=10"
            )
        faults[name] = value
    return faults


def _show_resumed(resumed: Resumed) -> None:
    """Print what was submitted, and what to type next."""
    for run_dir in resumed.released:
        where = on_one_line(run_dir)
        print(f"{where} is not cancelled any more. Run the command that began it again.")
    for run_dir in resumed.finished:
        print(f"{on_one_line(run_dir)} is complete; nothing to do.")
    if not resumed.run_dirs or resumed.config is None:
        return
    if resumed.n_present:
        present = count(resumed.n_present, "worker")
        print(f"{present} of {resumed.config.env} at work or in the queue already.")
    if resumed.jobs:
        what = "process" if resumed.jobs[0].machine else "job"
        ids = ", ".join(job.job_id for job in resumed.jobs[:_SHOWN])
        more = ", ..." if len(resumed.jobs) > _SHOWN else ""
        print(f"Submitted to {resumed.config.env}: {count(len(resumed.jobs), what)} ({ids}{more}).")
    else:
        print("Nothing was submitted. To add workers all the same: --workers N")
    folders = on_one_line(shlex.join(map(str, resumed.run_dirs)))
    print(f"  espnet3 status {folders} --watch")
    print(f"  espnet3 wait {folders}")
