"""Turn a recipe of ESPnet2, or of the public ESPnet3, into one that runs here."""

import argparse
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from espnet3.cli.console import make_parser
from espnet3.text import count, on_one_line

if TYPE_CHECKING:
    from espnet3.migration.new_recipe import NewRecipe
    from espnet3.migration.source_recipe import SourceRecipe

LEFT_OUT = 3
"""Exit code where something that changes results could not be kept."""


def _parser() -> argparse.ArgumentParser:
    epilog = (
        "The old recipe is only read: no shell is run, nothing in it changes. MIGRATION.md of the "
        "new one lists every option and file with what became of it. Exit code 3: something that "
        "changes results was left out."
    )
    parser = make_parser("migrate", __doc__ or "", epilog=epilog)
    parser.add_argument(
        "source", metavar="OLD_RECIPE", help="such as egs2/an4/asr1, or egs3/an4/asr"
    )
    parser.add_argument("target", metavar="FOLDER", help="the new recipe, such as an4/asr")
    parser.add_argument(
        "--model",
        choices=["espnet2", "native"],
        default="espnet2",
        help="keep ESPnet2's, which needs its package (default), or take the nearest of ESPnet3",
    )
    parser.add_argument(
        "--script", metavar="FILE", default="run.sh", help="in place of run.sh (run_ctc.sh, ...)"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="show MIGRATION.md and the files; write nothing"
    )
    return parser


def _other_task(recipe: "SourceRecipe", args: argparse.Namespace) -> "NewRecipe":
    """Return a recipe of another task, of which there are no models of ours."""
    from espnet3.migration.source_recipe import MigrationError
    from espnet3.migration.task_recipe import build_task_recipe, check_kind

    check_kind(recipe)
    if args.model == "native":
        raise MigrationError(
            f"{recipe.folder / recipe.script} calls {recipe.task}.sh, and ESPnet3 has no model of "
            "its own for it.",
            fix="Keep ESPnet2's, which is the default: --model espnet2",
        )
    return build_task_recipe(recipe)


def _first_lines(new: "NewRecipe") -> list[str]:
    """Return the lines to type up to the one that does everything."""
    notes = [note.startswith("everything") for _, note in new.commands]
    last = notes.index(True) if True in notes else 0
    return [line for line, _ in new.commands[: last + 1]]


def migrate(argv: Sequence[str]) -> int:
    """Read the old recipe, write the new one, and say what is left to do.

    Raises:
        MigrationError: There is no such recipe, or the target is in use.
    """
    from espnet3.migration.new_recipe import build_recipe, check_target, report, write_recipe
    from espnet3.migration.public_recipe import build_public_recipe, is_public_recipe
    from espnet3.migration.source_recipe import read_recipe

    args = _parser().parse_args(argv)
    source, target = (Path(os.path.expanduser(name)) for name in (args.source, args.target))
    check_target(source, target)
    if is_public_recipe(source):
        new = build_public_recipe(source)
    else:
        recipe = read_recipe(source, args.script)
        new = (
            build_recipe(recipe, args.model) if recipe.task == "asr" else _other_task(recipe, args)
        )
    if args.dry_run:
        print(report(new))
        print("Files that would be written:")
        print(*(f"  {target / name}" for name in sorted(new.files)), sep="\n")
    else:
        write_recipe(new, target)
        print(f"Wrote {on_one_line(target)} from {on_one_line(source)}:")
        print(*(f"  {name}" for name in sorted([*new.files, "MIGRATION.md"])), sep="\n")
        print(f"\nNext:\n  cd {shlex.quote(str(target))}")
        print(*(f"  {line} --dry-run" for line in _first_lines(new)), sep="\n")
    for todo in new.journal.todos:
        print(f"\nTo do first: {on_one_line(todo)}")
    left = new.journal.left_behind
    if not left:
        return 0
    change = "changes" if len(left) == 1 else "change"
    print(f"\n{count(len(left), 'setting')} that {change} results could not be kept (exit code 3):")
    for entry in left:
        print(on_one_line(f"  {entry.origin} {entry.name}: {entry.note}"))
    return LEFT_OUT
