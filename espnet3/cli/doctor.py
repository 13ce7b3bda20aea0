"""`espnet3 doctor CONFIG ...`: checks before an hour in the queue."""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.cli.console import UsageError, make_console, make_parser, make_table, print_json
from espnet3.cli.recipe_configs import enter_recipe_of
from espnet3.cli.recipe_options import parse_line
from espnet3.errors import EspnetError
from espnet3.findings import Finding, has_problem, never_raises
from espnet3.parallel.clusters.ray import is_started_here
from espnet3.parallel.clusters.registry import ON_THIS_MACHINE
from espnet3.text import count, on_one_line, printable

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig
    from espnet3.parallel.config import ParallelConfig

_STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}
_FOLDERS = ("exp_dir", "inference_dir", "output_dir")
_TIMEOUT = 300.0
_EPILOG = (
    "The files are merged left to right, like those of run.py --config, but a `parallel` block "
    "that names a cluster wins wherever it stands. KEY.PATH=VALUE changes a value. The exit code "
    "is 1 if there is a problem."
)


@dataclass(frozen=True)
class _Subject:
    """The subject of a checkup."""

    loaded: "LoadedConfig"
    values: dict[str, Any]
    """The config without interpolations."""
    config: "ParallelConfig"
    recipe_dir: Path | None
    files: tuple[str, ...]

    @property
    def is_remote(self) -> bool:
        """Tell whether workers run on other machines."""
        if self.config.env == "ray":
            return not is_started_here(self.config)
        return self.config.env not in ON_THIS_MACHINE


def doctor(argv: Sequence[str]) -> int:
    """Check a `parallel` block, and all around it that a run would stumble over.

    Raises:
        UsageError: the line is wrong.
    """
    args, overrides = parse_line(_parser(), argv)
    try:
        subject = _load(args.configs, overrides)
    except (EspnetError, OSError) as error:
        findings = [Finding.of("config", error)]
    else:
        findings = _examine(subject, args)
    if args.json:
        print_json({"findings": [asdict(finding) for finding in findings]})
    else:
        _show(findings)
    return 1 if has_problem(findings) else 0


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "doctor",
        "Check a parallel block, and all around it, before jobs wait in a queue.",
        usage="espnet3 doctor CONFIG ... [KEY.PATH=VALUE ...] [--submit] [--timeout S] [--json]",
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add("configs", nargs="+", metavar="CONFIG",
        help="such as conf/training.yaml conf/parallel_slurm.yaml")  # fmt: skip
    add("--submit", action="store_true",
        help="also run one tiny job with these options, which reports and ends")  # fmt: skip
    add("--timeout", type=float, default=_TIMEOUT, metavar="SECONDS",
        help=f"how long that job may wait and run (default: {_TIMEOUT:.0f})")  # fmt: skip
    add("--json", action="store_true", help="print one JSON document for scripts")
    return parser


def _load(configs: Sequence[str], overrides: Sequence[str]) -> _Subject:
    from espnet3.config.load import load_config
    from espnet3.parallel.parallel import as_parallel_config
    from espnet3.systems.base.context import DEFAULTS

    recipe_dir, files = None, tuple(configs)
    with suppress(UsageError):  # a config may stand alone
        recipe_dir, files = enter_recipe_of(configs)
    files = _clusters_last(files)
    loaded = load_config(files, overrides, below=DEFAULTS, recipe_dir=recipe_dir)
    values = loaded.plain()
    return _Subject(loaded, values, as_parallel_config(loaded), recipe_dir, files)


def _clusters_last(files: tuple[str, ...]) -> tuple[str, ...]:
    """Put files that name a cluster behind those of a recipe, which mostly say `local`."""
    from espnet3.config.load import load_config

    def names_cluster(file: str) -> bool:
        block = load_config(file).config.get("parallel") or {}
        return str(block.get("env", "local")) not in ON_THIS_MACHINE

    # The sort is stable, so within each kind the order of the line stays.
    return tuple(sorted(files, key=names_cluster))


def _examine(subject: _Subject, args: argparse.Namespace) -> list[Finding]:
    from espnet3.parallel.checkup.filesystem import check_folders, check_shared

    _note("Checking ...")
    folders = _folders(subject)
    findings = [*_config(subject), *_backend(subject), *_recipe(subject), *_training(subject)]
    findings += check_folders(folders)
    judged: set[str] = set()
    if args.submit:
        tried, judged = _submit(subject, findings, folders, args.timeout)
        findings += tried
    return findings + check_shared(folders, needs_shared=subject.is_remote, judged=judged)


@never_raises("config")
def _config(subject: _Subject) -> list[Finding]:
    """Say which block is checked: with several files it may be another than one thinks."""
    config = subject.config
    told = f"parallel.env is {config.env!r} with n_workers: {config.n_workers}"
    if not subject.loaded.has("parallel"):
        fix = "Write such as: parallel: {env: slurm, n_workers: 8, options: {...}}"
        return [Finding("warning", "config", f"no parallel block is given; {told}", fix)]
    source = subject.loaded.find_source("parallel.env")
    return [Finding("ok", "config", f"{told}, set in {source}" if source else told)]


def _backend(subject: _Subject) -> list[Finding]:
    from espnet3.parallel.checkup.backend import check_backend

    others = ("lightning", "torch") if subject.values.get("trainer") else ()
    return check_backend(subject.config, others)


@never_raises("recipe")
def _recipe(subject: _Subject) -> list[Finding]:
    """Import here what the configs name."""
    from espnet3.systems.base.checks import check_targets

    targets = _targets(subject)
    if not targets:
        return []
    check_targets(subject.loaded, None)
    told = f"{count(len(targets), 'target')} of the config can be imported here"
    return [Finding("ok", "recipe", told)]


def _targets(subject: _Subject) -> list[tuple[str, str]]:
    from espnet3.systems.base.checks import find_targets

    return [(key, str(target)) for key, target in find_targets(subject.values)]


def _training(subject: _Subject) -> list[Finding]:
    if not subject.values.get("trainer"):
        return []
    from espnet3.trainer.launching.launch_check import check_training

    return check_training(
        subject.loaded,
        recipe_dir=str(subject.recipe_dir or "."),
        trains_here=not subject.is_remote,
    )


def _folders(subject: _Subject) -> dict[str, Path]:
    """Return the folders that a run writes to, by the name of the setting."""
    settings = {key: subject.values.get(key) for key in _FOLDERS}
    settings["log_directory"] = subject.config.options.get("log_directory")
    if not _is_set(subject.loaded, "inference_dir"):
        del settings["inference_dir"]  # then it is below exp_dir
    named = {key: str(value) for key, value in settings.items() if value not in (None, "", "???")}
    return {key: Path(os.path.expandvars(value)).absolute() for key, value in named.items()}


def _is_set(loaded: "LoadedConfig", key: str) -> bool:
    source = loaded.find_source(key)
    return source is not None and str(source) != "default"


def _submit(
    subject: _Subject, findings: Sequence[Finding], folders: dict[str, Path], timeout: float
) -> tuple[list[Finding], set[str]]:
    from espnet3.parallel.checkup.submit import ProbeJob, submit_probe
    from espnet3.parallel.signals import interruptible

    if has_problem(findings):
        told = "not submitted, because of the problems above"
        return [Finding("warning", "job", told, "Fix them, then run the same line again")], set()
    _note("Starting one worker with these options ...")
    trial = ProbeJob(
        config=subject.config,
        folders=folders,
        targets=_targets(subject),
        recipe_dir=subject.recipe_dir,
        timeout=timeout,
        tell=_note,
    )
    with interruptible():
        return submit_probe(trial)


def _note(line: str) -> None:
    # Not on stdout, where --json promises one document.
    print(on_one_line(line), file=sys.stderr, flush=True)


def _show(findings: Sequence[Finding]) -> None:
    console = make_console()
    if console.is_terminal:
        _show_table(findings)
    else:
        for finding in findings:
            print(f"{finding.level:8} {finding.what}: {_indented(finding.told)}")
            if finding.fix:
                print(f"{'':8} fix: {_indented(finding.fix)}")
    numbers = {level: sum(f.level == level for f in findings) for level in _STYLES}
    print(
        f"\n{count(numbers['problem'], 'problem')}, {count(numbers['warning'], 'warning')}, "
        f"{numbers['ok']} ok"
    )


def _indented(text: str) -> str:
    """Keep the lines of a log apart from those of the findings."""
    return printable(text).replace("\n", f"\n{'':11}")


def _show_table(findings: Sequence[Finding]) -> None:
    from rich.text import Text

    table = make_table("", "Check", "Found")
    for finding in findings:
        found = Text(printable(finding.told))
        if finding.fix:
            found.append(f"\nfix: {printable(finding.fix)}", style="bold")
        table.add_row(Text(finding.level, style=_STYLES[finding.level]), finding.what, found)
    make_console().print(table)
