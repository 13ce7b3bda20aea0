"""The folder of a recipe: where it is, its configs, and what can be imported from it."""

import os
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from espnet3.cli.console import UsageError
from espnet3.cli.recipe_options import Options
from espnet3.systems.base.stages import Stage
from espnet3.text import on_one_line

SCRIPT = "run.py"
_STEM_LETTERS = 5  # `conf/infer_beam10.yaml` is meant for --inference_config


def find_recipe_dir() -> Path:
    """Return the folder of the script that runs, or the current one where there is no script."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(os.path.abspath(script)).parent if script else Path.cwd()


def recipe_of(config: str) -> Path:
    """Return the folder of the recipe that a config belongs to: the current one, or its own.

    Raises:
        UsageError: there is no script in any of them.
    """
    folder = Path(os.path.abspath(os.path.expanduser(config))).parent
    for place in (Path.cwd(), folder, folder.parent):
        if (place / SCRIPT).is_file():
            return place
    raise UsageError(
        f"there is no {SCRIPT} here, nor beside {on_one_line(config)}. Change into the folder of "
        "the recipe first: cd egs3/CORPUS/TASK"
    )


def enter_recipe(recipe_dir: Path) -> None:
    """Change into the folder, and import from it first, then from the one that holds `egs3`.

    Worker processes get the same `sys.path`.
    """
    os.chdir(recipe_dir)
    roots = [parent.parent for parent in recipe_dir.parents if parent.name == "egs3"]
    first = [str(recipe_dir), *map(str, roots[:1])]
    sys.path[:] = [*first, *(entry for entry in sys.path if entry not in first)]


def find_files(files: Iterable[str], start_dir: Path, recipe_dir: Path) -> tuple[str, ...]:
    """Return config files as seen from the recipe: those of `start_dir` come before its own."""
    return tuple(_find_file(file, start_dir, recipe_dir) for file in files)


def _find_file(file: str, start_dir: Path, recipe_dir: Path) -> str:
    path = os.path.abspath(os.path.join(start_dir, os.path.expanduser(file)))
    if not os.path.exists(path):
        return file  # the recipe's, or the error that it does not exist
    inside = os.path.relpath(path, recipe_dir)
    return path if inside.startswith(os.pardir) else inside


def assign_configs(options: Options, stages: Sequence[Stage]) -> dict[str, tuple[str, ...]]:
    """Return the files of each kind of config; `--config` fills in where a stage has none."""
    files = dict(options.configs)
    for stage in stages if options.config else ():
        own, *others = stage.configs
        # Whether a config of another kind has the key that is needed shows when it is loaded.
        serving = [own] if stage.alternative_key else [own, *others]
        if not any(kind in files for kind in serving):
            files[own] = options.config
    return files


def check_given(
    stages: Sequence[Stage], has_config: Callable[[Stage], bool], recipe_dir: Path
) -> None:
    """Refuse to start if a stage has no config.

    Raises:
        UsageError: with the option that supplies it, and a file of the recipe that looks right.
    """
    missing: dict[str, Stage] = {}
    for stage in stages:
        if not has_config(stage):
            missing.setdefault(stage.configs[0], stage)
    if missing:
        raise UsageError("\n".join(_missing(stage, recipe_dir) for stage in missing.values()))


def fitting_configs(kind: str, recipe_dir: Path) -> list[str]:
    """Return the files in the recipe's `conf/` whose names look like this kind."""
    return [n for n in _configs(recipe_dir) if Path(n).stem.startswith(kind[:_STEM_LETTERS])]


def _configs(recipe_dir: Path) -> list[str]:
    return sorted(
        path.relative_to(recipe_dir).as_posix()
        for path in (recipe_dir / "conf").glob("*")
        if path.suffix in {".yaml", ".yml"}
    )


def _missing(stage: Stage, recipe_dir: Path) -> str:
    kind = stage.configs[0]
    found, fitting = _configs(recipe_dir), fitting_configs(kind, recipe_dir)
    best = f"conf/{kind}.yaml"
    file = best if best in found or not found else fitting[0] if fitting else "FILE"
    others = f" (there are {', '.join(found)})" if file == "FILE" else ""
    return f"Stage {stage} needs a config: add --{kind}_config {shlex.quote(file)}{others}"
