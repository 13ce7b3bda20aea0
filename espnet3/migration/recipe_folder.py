"""Write a migrated recipe, as a whole or not at all."""

import os
import shutil
from pathlib import Path

from espnet3.migration.language_models import TOKENIZER
from espnet3.migration.new_recipe import NewRecipe
from espnet3.migration.source_recipe import MigrationError
from espnet3.text import count


def check_target(source: Path, target: Path) -> None:
    """Refuse a folder that is there, and one within the old recipe.

    Raises:
        MigrationError: The message has another name.
    """
    if os.path.lexists(target):
        raise MigrationError(
            f"{target} is there already, and nothing is ever written over.",
            fix=f"Choose another name: espnet3 migrate {source} {target}_2",
        )
    inside = source.resolve()
    if target.absolute() == inside or inside in target.resolve().parents:
        raise MigrationError(
            f"{target} lies within the old recipe, of which nothing is changed.",
            fix=f"Choose a folder elsewhere: espnet3 migrate {source} my_corpus/asr",
        )


def write_recipe(new: NewRecipe, target: Path) -> None:
    """Write all files beside the target, then rename the folder: half a recipe is never seen."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.migrating-{os.getpid()}")
    try:
        for name, text in sorted({**new.files, "MIGRATION.md": report(new)}.items()):
            path = part / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        if new.tokenizer is not None:
            new.tokenizer.save(part / TOKENIZER, {"migrated_from": str(new.source)})
        os.rename(part, target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def report(new: NewRecipe) -> str:
    """Return MIGRATION.md."""
    journal = new.journal
    left = journal.left_behind
    lines = [
        f"# Migrated from {new.source}",
        "",
        f"Written by `espnet3 migrate`; nothing of the old recipe was changed or run. "
        f"{new.model_note}".strip(),
        "",
        "## Run it",
        "",
        "```sh",
        *(f"{command}  # {what}" for command, what in new.commands),
        "```",
        "",
    ]
    if journal.todos:
        lines += ["## To do first", "", *(f"- {' '.join(t.split())}" for t in journal.todos), ""]
    lines += ["## What changes results", ""]
    if left:
        lines += [f"{count(len(left), 'setting')} of the old recipe could not be kept:", ""]
        lines += [journal.table(left), ""]
    else:
        lines += ["Nothing was left out.", ""]
    lines += ["## All that was read", "", journal.table(), ""]
    return "\n".join(lines)
