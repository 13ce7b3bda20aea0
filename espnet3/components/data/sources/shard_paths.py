"""Find the shards of a corpus: a file, a folder, a pattern such as `train-{000..009}.tar`."""

import os
import re
from collections.abc import Sequence
from glob import glob, has_magic
from itertools import product
from pathlib import Path

from espnet3.components.data.errors import create_command
from espnet3.components.data.shard_writer import check_written
from espnet3.components.data.sources.paths import StrPath, find_input
from espnet3.errors import ConfigError

Paths = StrPath | Sequence[StrPath]

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_SHOWN = 5


def find_shards(path: Paths, ending: str, recipe_dir: StrPath | None = None) -> list[Path]:
    """Return the absolute paths of all shards, in the order of the pattern, else of the names.

    Args:
        path: A file, a folder (all its files with the ending), a pattern of the shell with
            `{000..009}`, `{a,b}`, `*` or `?`, or a list of these. Relative ones count from the
            current folder or the recipe's.
        ending: Such as ".tar".
        recipe_dir: The recipe's folder.

    Raises:
        ConfigError: A shard is missing, there is none, or one comes twice.
        DataError: They are not all written yet.
    """
    parts = [path] if isinstance(path, str | os.PathLike) else list(path)
    shards = [shard for part in parts for shard in _expand(part, ending, recipe_dir)]
    if not shards:
        raise ConfigError(f"path is {path!r}, without shards. Write: path: FOLDER/*{ending}")
    seen: set[Path] = set()
    for shard in shards:
        if shard in seen:
            raise ConfigError(
                f"path names the shard {shard} twice. Each utterance comes once; for more of them "
                "write a weight: 2 beside data_src."
            )
        seen.add(shard)
    check_written(shards)
    return shards


def expand_braces(pattern: str) -> list[str]:
    """Return what a shell makes of `{000..009}` and `{a,b}`, the last brace changing fastest.

    Example:
        >>> expand_braces("{a,b}-{08..10}.tar")[:4]
        ['a-08.tar', 'a-09.tar', 'a-10.tar', 'b-08.tar']
    """
    pieces = _BRACES.split(pattern)
    choices = [_choices(piece) if i % 2 else [piece] for i, piece in enumerate(pieces)]
    return ["".join(words) for words in product(*choices)]


def _choices(inside: str) -> list[str]:
    ends = _RANGE.fullmatch(inside)
    if ends is None:
        return inside.split(",")
    first, last = ends.groups()
    if int(last) < int(first):
        raise ConfigError(f"path holds {{{inside}}}, which counts down. Write: {{{last}..{first}}}")
    width = max(map(len, ends.groups())) if "0" in (first[0], last[0]) else 0
    return [f"{number:0{width}d}" for number in range(int(first), int(last) + 1)]


def _expand(part: StrPath, ending: str, recipe_dir: StrPath | None) -> list[Path]:
    text = os.fspath(part)
    places = [Path(text).absolute()]
    if recipe_dir is not None:
        places.append(Path(recipe_dir, text).absolute())
    if any(place.exists() for place in places):  # also of a name with braces or stars
        found = find_input(part, recipe_dir)
        return _in_folder(found, ending) if found.is_dir() else [found]
    if _BRACES.search(text):
        return _braced([expand_braces(os.fspath(place)) for place in places], text)
    if has_magic(text):
        return _globbed(places, text)
    return [find_input(part, recipe_dir)]  # raises, with the closest name


def _in_folder(folder: Path, ending: str) -> list[Path]:
    files = [f for f in folder.iterdir() if f.name.endswith(ending) and f.name[0] != "."]
    if not files:
        raise ConfigError(
            f"path is the folder {folder}, which has no file *{ending}. Correct it, or make the "
            f"data: {create_command()}"
        )
    return sorted(files)


def _globbed(places: Sequence[Path], pattern: str) -> list[Path]:
    for place in places:
        found = sorted(Path(name) for name in glob(os.fspath(place)))
        if found:
            return found
    tried = " or ".join(map(str, places))
    raise ConfigError(
        f"path is {pattern!r}, but no file is called like {tried}. Correct it, or make the data: "
        f"{create_command()}"
    )


def _braced(expansions: Sequence[Sequence[str]], pattern: str) -> list[Path]:
    missing = [[name for name in names if not os.path.exists(name)] for names in expansions]
    best = min(range(len(missing)), key=lambda i: len(missing[i]))
    names, lost = expansions[best], missing[best]
    if not lost:
        return [Path(name) for name in names]
    shown = ", ".join(lost[:_SHOWN]) + (", ..." if len(lost) > _SHOWN else "")
    raise ConfigError(
        f"path is {pattern!r}, but {len(lost)} of its {len(names)} shards are missing: {shown}. "
        f"{_advice(pattern, names, lost)}"
    )


def _advice(pattern: str, names: Sequence[str], lost: Sequence[str]) -> str:
    """Return how to go on; with the shorter range where only the last shards are missing."""
    n_there = len(names) - len(lost)
    braces = _BRACES.findall(pattern)
    is_range = len(braces) == 1 and _RANGE.fullmatch(braces[0])
    make = f"Copy or make them: {create_command()}"
    if not is_range or not n_there or list(names[n_there:]) != list(lost):
        return make
    first, last = (_choices(braces[0])[i] for i in (0, n_there - 1))
    shorter = pattern.replace(f"{{{braces[0]}}}", f"{{{first}..{last}}}")
    return f"{make}; or take those that are there: path: {shorter}"
