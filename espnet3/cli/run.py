"""`espnet3 run [RECIPE_DIR] ...`: the recipe's `run.py`, from any folder."""

import os
import runpy
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from espnet3.cli.console import UsageError
from espnet3.cli.recipe_options import is_override, make_parser
from espnet3.text import on_one_line

_SCRIPT = "run.py"
_HELP = {"-h", "--help"}


def run(argv: Sequence[str]) -> int:
    """Run the script of a recipe as `python run.py` would, with the rest of the line.

    Raises:
        UsageError: the folder has no script.
    """
    names_folder = bool(argv) and not argv[0].startswith("-") and not is_override(argv[0])
    folder = Path(argv[0] if names_folder else ".")
    rest = list(argv[1:] if names_folder else argv)
    script = folder / _SCRIPT
    if not script.is_file():
        if _HELP & set(rest):
            return print_help()
        raise UsageError(_no_script(folder, rest))
    return _run_script(Path(os.path.abspath(script)), rest)


def _run_script(script: Path, argv: list[str]) -> int:
    sys.path.insert(0, str(script.parent))  # the script itself imports from its folder
    sys.argv = [str(script), *argv]
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):  # as Python itself does with sys.exit("text")
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    return 0


def print_help() -> int:
    """Print the options that every recipe has, without its own stages."""
    from espnet3.systems.base.stages import stages_of
    from espnet3.systems.base.system import BaseSystem

    make_parser(stages_of(BaseSystem), prog="espnet3 run [RECIPE_DIR]").print_help()
    return 0


def _no_script(folder: Path, rest: Sequence[str]) -> str:
    below = sorted(path.parent for path in folder.glob(f"egs3/*/*/{_SCRIPT}"))
    example = shlex.quote(str(below[0])) if below else "RECIPE_DIR"
    what = f"holds no {_SCRIPT}" if folder.is_dir() else "is no folder"
    command = f"espnet3 run {example} {shlex.join(rest) or '--list-stages'}"
    return f"{on_one_line(folder)} {what}. Name the folder of a recipe: {on_one_line(command)}"
