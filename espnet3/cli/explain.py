"""Tell why runs do not get on: what jobs wait for, how they ended, what died where, with a
suggestion for each."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from espnet3.cli.console import make_console, print_error, print_json
from espnet3.cli.run_folders import find_all_runs
from espnet3.errors import EspnetError
from espnet3.parallel.detached.explain import explain_run
from espnet3.parallel.detached.folder_access import in_words, told_in_words
from espnet3.text import on_one_line, printable

if TYPE_CHECKING:
    from rich.console import Console

    from espnet3.findings import Finding

_STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `espnet3 explain`."""
    parser.add_argument(
        "dirs", metavar="DIR", nargs="+", type=Path, help="a run folder, or a folder of such"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document for scripts")


@told_in_words
def run(args: argparse.Namespace) -> int:
    """Print what was found; 1 if some folder could not be read."""
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
            _show(finding, console)
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


def _show(finding: "Finding", console: "Console") -> None:
    from rich.text import Text

    first, *rest = printable(finding.told).split("\n")
    line = Text(f"  {finding.level}: ", style=_STYLES[finding.level])
    line.append(f"{finding.what}: ", style="bold")
    line.append(first, style="default")
    console.print(line, soft_wrap=True)
    for text in rest:  # not wrapped, so that it can be searched for
        console.print(f"    {text}", style="dim", soft_wrap=True)
    if finding.fix:
        console.print(f"    -> {on_one_line(finding.fix)}", soft_wrap=True)
