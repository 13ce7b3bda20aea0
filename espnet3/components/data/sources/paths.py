"""Find the files of a source: relative paths count from where users expect them to."""

import os
from collections.abc import Sequence
from pathlib import Path

from espnet3.components.data.errors import create_command
from espnet3.errors import ConfigError, suggest

StrPath = str | os.PathLike[str]

# `dump/raw/org/test` is that far below the recipe that its paths count from.
_MAX_LEVELS = 4


def find_input(path: StrPath, recipe_dir: StrPath | None = None) -> Path:
    """Return the absolute path of a file or folder, relative to the current one or the recipe's.

    Raises:
        ConfigError: It is in neither place; the message has both, and the closest name.
    """
    tried = [Path(path).absolute()]
    if recipe_dir is not None:
        tried.append(Path(recipe_dir, path).absolute())
    found = next((place for place in tried if place.exists()), None)
    if found is not None:
        return found
    siblings = [f.name for place in tried if place.parent.is_dir() for f in place.parent.iterdir()]
    places = " or ".join(dict.fromkeys(map(str, tried)))
    raise ConfigError(
        f"path is {os.fspath(path)!r}, but there is no {places}."
        f"{suggest(Path(path).name, siblings)} Correct it, or make the data: "
        f"{create_command()}"
    )


def find_root(paths: Sequence[str], folder: Path, recipe_dir: StrPath | None) -> Path:
    """Return the folder that relative paths count from: the first one in which some are found.

    That is the current folder, as in Kaldi, else the recipe's, else `folder` or one above it. The
    first, the middle and the last path stand for all.

    Raises:
        ConfigError: None of the three is found in any of these.
    """
    relative = [path for path in paths if not path.startswith("/")]
    if not relative:
        return Path.cwd()
    samples = (relative[0], relative[len(relative) // 2], relative[-1])
    places = [Path.cwd(), *([Path(recipe_dir)] if recipe_dir else []), folder, *folder.parents]
    roots = list(dict.fromkeys(place.absolute() for place in places))[: _MAX_LEVELS + 3]
    for root in roots:
        if any((root / sample).exists() for sample in samples):
            return root
    raise ConfigError(
        f"{folder} refers to {relative[0]!r}, which is in none of "
        f"{', '.join(map(str, roots))}. Run in the folder that its paths count from, or write "
        "absolute paths."
    )
