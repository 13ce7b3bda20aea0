"""Give detached runs more workers: those that are missing, or as many as one says, here or there.

The first words are run folders, or folders of such. A file conf/parallel_x.yaml gives another
`parallel` block; KEY=VALUE changes a key of it.
"""

import argparse
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from espnet3.cli.console import UsageError
from espnet3.cli.recipe_options import is_override
from espnet3.cli.run_folders import find_detached_runs, is_stopped
from espnet3.parallel.detached.folder_access import told_in_words
from espnet3.parallel.detached.resume import Resumed, resume_runs
from espnet3.text import count, on_one_line

_BLOCK = "parallel."
_SHOWN = 8
_TIME = re.compile(r"^(.*\bwalltime)=([\d-]+(?::\d+)+)$")
_EPILOG = (
    "Start on Slurm, finish on a laptop: espnet3 resume DIR --env local. The other way round: "
    "espnet3 resume DIR conf/parallel_slurm.yaml. Several people may do so at once: they share the "
    "work."
)


@dataclass(frozen=True)
class Request:
    """What a line asks for."""

    run_dirs: list[Path]
    changes: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    """Number of workers, trusted user, and whether the changes are a whole block."""


@told_in_words
def run_line(argv: Sequence[str]) -> int:
    """Submit more workers.

    Raises:
        UsageError: the line is wrong.
    """
    request = parse(argv, "resume", __doc__ or "")
    show(resume_runs(request.run_dirs, request.changes, **request.settings))
    return 0


def parse(argv: Sequence[str], verb: str, description: str) -> Request:
    """Read a line of folders, a config, options and changes."""
    overrides = [word for word in argv if is_override(word)]
    parser = _parser(verb, description)
    args = parser.parse_args([word for word in argv if not is_override(word)])
    files = [word for word in args.words if word.endswith((".yaml", ".yml"))]
    folders = [Path(word) for word in args.words if word not in files]
    if not folders:
        raise UsageError(f"name a run folder: espnet3 {verb} DIR")
    changes = _changes(files, overrides)
    if args.env:
        changes["env"] = args.env
    settings = {"n_more": args.workers, "trust": args.trust, "is_block": bool(files)}
    return Request(find_detached_runs(folders, also=is_stopped), changes, settings)


def _parser(verb: str, description: str) -> argparse.ArgumentParser:
    failed = " --failed" if verb == "retry" else ""
    parser = argparse.ArgumentParser(
        prog=f"espnet3 {verb}",
        usage=f"espnet3 {verb} DIR ...{failed} [PARALLEL.yaml] [--env ENV] [--workers N] "
        "[--trust USER] [KEY=VALUE ...]",
        description=description,
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("words", metavar="DIR", nargs="+", help="a run folder, or a folder of such")
    if verb == "retry":
        add("--failed", action="store_true", required=True,
            help="what to try again: the shards with items that failed")  # fmt: skip
    add("--env", help="another backend, such as local; options of the first are dropped")
    add("--workers", metavar="N", type=_number,
        help="add N workers (default: as many as are missing to n_workers)")  # fmt: skip
    add("--trust", metavar="USER",
        help="run code that this user submitted; without it, only your own")  # fmt: skip
    return parser


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


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


def show(resumed: Resumed) -> None:
    """Tell what was submitted, and what to type next."""
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
