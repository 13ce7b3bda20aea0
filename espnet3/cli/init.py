"""Write a new recipe: for a corpus of yours, or from a template that runs as it is."""

import argparse
import os
import shlex
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import espnet3
from espnet3.cli.config_files import KINDS
from espnet3.cli.console import UsageError, make_parser
from espnet3.cli.corpus_options import (
    FORMATS,
    add_corpus_options,
    check_corpus_options,
    format_of,
    line_with,
    read_corpus,
)
from espnet3.cli.schema import modeline, write_schemas
from espnet3.errors import ResourceError, suggest
from espnet3.text import on_one_line

_NOT_COPIED = ("__pycache__", "data", "exp", "logs")  # nor hidden folders: caches of tools


@dataclass(frozen=True)
class _Template:
    help: str
    folder: str
    """Below `egs3/`, and in a wheel below `espnet3/templates/`."""
    arguments: str
    """Of `run.py`, for all that the recipe does."""


_TRAINED = (
    "--training_config conf/training.yaml --inference_config conf/inference.yaml "
    "--metrics_config conf/metrics.yaml"
)
TEMPLATES = {
    "own-model": _Template(
        "speech recognition with a network of your own: data, a model, and its error rate",
        "TEMPLATE/asr",
        "--stages all --config conf/inference.yaml conf/metrics.yaml",
    ),
    "classifier": _Template(
        "a task that is no recognition: a class for each recording, trained and scored",
        "TEMPLATE/classifier",
        f"--stages create_dataset train-report {_TRAINED}",
    ),
    "runner": _Template(
        "one function over many audio files, as a stage of its own",
        "TEMPLATE/runner",
        "--stages all --config conf/loudness.yaml",
    ),
    "digits": _Template(
        "a copy of egs3/digits/asr, which makes its own corpus (extra: demo)",
        "digits/asr",
        f"--stages create_dataset train_tokenizer train-report {_TRAINED}",
    ),
}
_FORMER_NAMES = {"asr": "own-model"}
_FOR_CORPORA = "digits"
"""The template whose files, but for the configs that depend on the data, suit every corpus."""


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "init",
        __doc__ or "",
        usage="espnet3 init NAME --data FORMAT --train PATH [--valid PATH] [--test PATH ...]\n"
        "       espnet3 init NAME --template TEMPLATE",
    )
    parser.add_argument("name", metavar="NAME", help="the new folder, such as my_corpus/asr")
    add_corpus_options(parser)
    listed = "; ".join(f"{name}: {template.help}" for name, template in TEMPLATES.items())
    parser.add_argument("--template", metavar="TEMPLATE", help=f"instead of data: {listed}")
    return parser


def init(argv: Sequence[str]) -> int:
    """Write the recipe, and print its files and the lines to type next.

    Raises:
        UsageError: there is no such template or data, or the folder is in use.
    """
    args = _parser().parse_args(argv)
    args.words = [*argv]
    folder = Path(os.path.expanduser(args.name))
    if args.data is None:
        return _init_template(folder, args)
    if args.template is not None:
        raise UsageError(
            f"--data {args.data} and --template {args.template} are two kinds of recipes. Leave "
            "one of them out."
        )
    return _init_corpus(folder, args)


def _init_template(folder: Path, args: argparse.Namespace) -> int:
    name = args.template
    if name is None:
        of_data = ("train", "valid", "test", "columns", "sample_rate")
        given = [option for option in of_data if getattr(args, option)]
        told = f"--{given[0].replace('_', '-')} is set, but --data is not. " if given else ""
        own = shlex.quote(args.name)
        if given and (found := format_of(args.train)):
            line = line_with(args, "--data", found)
            raise UsageError(f"{told}It is {FORMATS[found]}. Write: {line}")
        raise UsageError(
            f"{told}Say what the recipe is for. A corpus of yours ({', '.join(FORMATS)}): espnet3 "
            f"init {own} --data kaldi --train PATH --valid PATH --test PATH; or a template: "
            f"espnet3 init {own} --template own-model. Templates: {', '.join(TEMPLATES)}."
        )
    template = TEMPLATES.get(name)
    if template is None:
        former = _FORMER_NAMES.get(name)
        hint = f" It is called {former} now." if former else suggest(name, TEMPLATES)
        raise UsageError(f"there is no template {name!r}.{hint} Templates: {', '.join(TEMPLATES)}.")
    _check_free(folder, args)
    files = _copy(_find_template(name), folder)
    write_schemas(folder / "conf")  # which the first lines of these files name to editors
    print(f"Wrote {on_one_line(folder)} from the template {name}:")
    print(*(f"  {file}" for file in files), sep="\n")
    print("\nIt runs as it is:")
    if folder.resolve() != Path.cwd():
        print(f"  cd {on_one_line(shlex.quote(str(folder)))}")
    print(f"  python run.py {template.arguments}\n\nREADME.md says which file to change for what.")
    return 0


def _init_corpus(folder: Path, args: argparse.Namespace) -> int:
    # All is looked at and thought out before the first file is written.
    check_corpus_options(args)
    _check_free(folder, args)
    source = _find_template(_FOR_CORPORA)
    from espnet3.systems.asr.new_recipe import ARGUMENTS, recipe_files

    written, told = recipe_files(read_corpus(args))
    kept = ["run.py", ".gitignore", *_parallel_files(source)]
    for name in kept:
        _copy_file(source / name, folder / name)
    for name, text in written.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_with_schema(name, text), encoding="utf-8")
    write_schemas(folder / "conf")
    print(f"Looked at the data ({args.data}):")
    print(*(f"  {on_one_line(line)}" for line in told), sep="\n")
    print(f"\nWrote {on_one_line(folder)}; why each setting was chosen stands beside it:")
    print(*(f"  {name}" for name in sorted([*kept, *written])), sep="\n")
    print("\nFrom here to an error rate and a report:")
    print(f"  espnet3 run {on_one_line(shlex.quote(str(folder)))} {ARGUMENTS}")
    return 0


def _with_schema(name: str, text: str) -> str:
    """Return a file; a config with the line that names its schema to editors."""
    kind = Path(name).stem
    return f"{modeline(kind)}\n{text}" if kind in KINDS else text


def _parallel_files(source: Path) -> list[str]:
    return sorted(f"conf/{path.name}" for path in (source / "conf").glob("parallel_*.yaml"))


def _check_free(folder: Path, args: argparse.Namespace) -> None:
    """Refuse a folder with something in it: nothing is ever written over."""
    # `exists` says no to a dangling link, in whose place no folder can be made.
    if not os.path.lexists(folder) or (folder.is_dir() and not any(folder.iterdir())):
        return
    has_name = folder.name not in ("", "..")
    other = f"{os.path.normpath(folder)}_2" if has_name else "my_recipe"
    words = [other if word == args.name else word for word in args.words]
    way_on = f"Choose another name: {shlex.join(['espnet3', 'init', *words])}"
    if (folder / "run.py").is_file():
        recipe = shlex.quote(str(folder))
        way_on += f"; or use the recipe that is there: espnet3 run {recipe} --list-stages"
    problem = "is not empty" if folder.is_dir() else "is no folder"
    raise UsageError(on_one_line(f"{folder} is there already, and {problem}. {way_on}"))


def _find_template(name: str) -> Path:
    package = Path(espnet3.__file__).parent
    folder = TEMPLATES[name].folder
    # A wheel holds a copy; in a clone they are beside the package.
    places = [package / "templates" / folder, package.parent / "egs3" / folder]
    found = next((place for place in places if place.is_dir()), None)
    if found is None:
        listed = " nor ".join(on_one_line(place) for place in places)
        raise ResourceError(
            f"The template {name!r} is neither {listed}.",
            fix=f"Install ESPnet3 again; in a clone: git checkout -- egs3/{folder}",
        )
    return found


def _copy(source: Path, target: Path) -> list[str]:
    """Copy all files but results, and return their paths below the target."""
    files = sorted(_files(source))
    for file in files:
        _copy_file(source / file, target / file)
    return [file.as_posix() for file in files]


def _copy_file(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    # The content alone: the package may be read-only, and the recipe is to be changed.
    shutil.copyfile(source, target)


def _files(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        # In place, which is how os.walk learns where not to go.
        folders[:] = [n for n in folders if n not in _NOT_COPIED and not n.startswith(".")]
        yield from (Path(root, name).relative_to(folder) for name in names)
