"""Write a new recipe that runs without changes."""

import argparse
import os
import shlex
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import espnet3
from espnet3.cli.console import UsageError, make_parser
from espnet3.errors import ResourceError, suggest
from espnet3.text import on_one_line

_NOT_COPIED = ("__pycache__", "data", "exp", "logs")  # nor hidden folders: caches of tools


@dataclass(frozen=True)
class _Template:
    help: str
    arguments: str
    """Of `run.py`, for all that the recipe does."""


TEMPLATES = {
    "asr": _Template(
        "speech recognition: data, a model, and its error rate",
        "--stages all --config conf/inference.yaml conf/metrics.yaml",
    ),
    "runner": _Template(
        "one function over many audio files, as a stage of its own",
        "--stages all --config conf/loudness.yaml",
    ),
}
"""Each is a folder in `egs3/TEMPLATE`."""


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("init", __doc__ or "")
    parser.add_argument("name", metavar="NAME", help="the new folder, such as egs3/my_corpus/asr")
    listed = "; ".join(f"{name}: {template.help}" for name, template in TEMPLATES.items())
    parser.add_argument(
        "--template", metavar="TEMPLATE", default="asr", help=f"{listed} (default: asr)"
    )
    return parser


def init(argv: Sequence[str]) -> int:
    """Write the recipe, and print its files and the lines to type next.

    Raises:
        UsageError: there is no such template, or the folder is in use.
    """
    args = _parser().parse_args(argv)
    template = TEMPLATES.get(args.template)
    if template is None:
        raise UsageError(
            f"there is no template {args.template!r}.{suggest(args.template, TEMPLATES)} "
            f"Templates: {', '.join(TEMPLATES)}."
        )
    folder = Path(os.path.expanduser(args.name))
    _check_free(folder, args.template)
    files = _copy(_find_template(args.template), folder)
    print(f"Wrote {on_one_line(folder)} from the template {args.template}:")
    print(*(f"  {file}" for file in files), sep="\n")
    print("\nIt runs as it is:")
    if folder.resolve() != Path.cwd():
        print(f"  cd {on_one_line(shlex.quote(str(folder)))}")
    print(f"  python run.py {template.arguments}\n\nREADME.md says which file to change for what.")
    return 0


def _check_free(folder: Path, template: str) -> None:
    """Refuse a folder with something in it: nothing is ever written over."""
    if not os.path.lexists(folder) or (folder.is_dir() and not any(folder.iterdir())):
        return
    has_name = folder.name not in ("", "..")
    other = f"{os.path.normpath(folder)}_2" if has_name else "my_recipe"
    way_on = f"Choose another name: espnet3 init {shlex.quote(other)} --template {template}"
    if (folder / "run.py").is_file():
        recipe = shlex.quote(str(folder))
        way_on += f"; or use the recipe that is there: espnet3 run {recipe} --list-stages"
    problem = "is not empty" if folder.is_dir() else "is no folder"
    raise UsageError(on_one_line(f"{folder} is there already, and {problem}. {way_on}"))


def _find_template(name: str) -> Path:
    package = Path(espnet3.__file__).parent
    # A wheel holds a copy; in a clone they are beside the package.
    places = [package / "templates" / name, package.parent / "egs3" / "TEMPLATE" / name]
    found = next((place for place in places if place.is_dir()), None)
    if found is None:
        listed = " nor ".join(on_one_line(place) for place in places)
        raise ResourceError(
            f"The template {name!r} is neither {listed}.",
            fix="Install ESPnet3 again; in a clone: git checkout -- egs3/TEMPLATE",
        )
    return found


def _copy(source: Path, target: Path) -> list[str]:
    """Copy all files but results, and return their paths below the target."""
    files = sorted(_files(source))
    for file in files:
        path = target / file
        path.parent.mkdir(parents=True, exist_ok=True)
        # The content alone: the package may be read-only, and the recipe is to be changed.
        shutil.copyfile(source / file, path)
    return [file.as_posix() for file in files]


def _files(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders[:] = [n for n in folders if n not in _NOT_COPIED and not n.startswith(".")]
        yield from (Path(root, name).relative_to(folder) for name in names)
