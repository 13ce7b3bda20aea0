"""Write a new recipe: for a corpus of yours, or from a template that runs as it is."""

import argparse
import json
import os
import shlex
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import espnet3
from espnet3.cli.console import UsageError, make_parser, whole_number
from espnet3.cli.schema import KINDS, modeline, write_schemas
from espnet3.errors import EspnetError, ResourceError, closest, suggest
from espnet3.text import count, listed, on_one_line

if TYPE_CHECKING:
    from espnet3.systems.asr.new_recipe import CorpusSet, NewCorpus


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


FORMATS = {
    "kaldi": "a data directory with wav.scp, text, utt2spk",
    "jsonl": "a manifest with a JSON object per line",
    "tsv": "a manifest with tabs, and a first line that names the columns",
    "huggingface": "a folder that datasets.save_to_disk wrote; FOLDER:SPLIT for one of several",
    "lhotse": "a CutSet, .jsonl or .jsonl.gz",
    "folder": "audio files, with a text file beside each",
}
"""Kinds of data that `--data` takes."""
_WITH_COLUMNS = ("jsonl", "tsv", "huggingface")


def add_corpus_options(parser: argparse.ArgumentParser) -> None:
    """Add the options; none of them is needed for a template."""
    group = parser.add_argument_group("a recipe for your corpus")
    kinds = "; ".join(f"{name}: {text}" for name, text in FORMATS.items())
    group.add_argument("--data", metavar="FORMAT", help=f"format of the data. {kinds}")
    group.add_argument("--train", metavar="PATH", help="what to train on")
    group.add_argument("--valid", metavar="PATH", help="what chooses the weights; else held out")
    group.add_argument(
        "--test", metavar="PATH", nargs="+", action="extend", default=[], help="what to decode"
    )
    group.add_argument(
        "--columns", metavar="FIELD=COLUMN", nargs="+", action="extend", default=[],
        help="columns of a table that have other names, such as text=sentence",
    )  # fmt: skip
    group.add_argument(
        "--sample-rate", metavar="HERTZ", type=whole_number, help="bring all audio to this rate"
    )


def check_corpus_options(args: argparse.Namespace) -> None:
    """Refuse options that do not fit each other, before any data is looked at.

    Raises:
        UsageError: With the line to type.
    """
    if args.data not in FORMATS:
        meant = closest(args.data, FORMATS) or format_of(args.train)
        write = f" Write: {line_with(args, '--data', meant)}" if meant else ""
        raise UsageError(
            f"--data is {args.data!r}, which is no format that is read here. Formats: "
            f"{', '.join(FORMATS)}.{write}"
        )
    if args.train is None:
        line = line_with(args, "--train", "PATH")
        raise UsageError(f"--train is not set. Name the data to train on: {line}")
    if args.columns and args.data not in _WITH_COLUMNS:
        raise UsageError(
            f"--columns is {' '.join(args.columns)}, but {args.data} data has no columns. Leave it "
            f"out; it is for {listed(_WITH_COLUMNS)}."
        )
    named = [("--train", args.train), ("--valid", args.valid), *(("--test", t) for t in args.test)]
    seen: dict[str, str] = {}
    for option, path in named:
        if path is None:
            continue
        _check_exists(option, path, args)
        real = os.path.realpath(os.path.expanduser(path))
        if real in seen:
            raise UsageError(
                f"{option} is {path!r}, which {seen[real]} is as well: rates of data that a model "
                f"was trained or chosen on say nothing. Name another set, or leave {option} out."
            )
        seen[real] = option


def read_corpus(args: argparse.Namespace) -> "NewCorpus":
    """Look at the sets that the options name.

    Raises:
        EspnetError: What the data lacks, with the option that named it.
    """
    from espnet3.components.data.survey import most_frequent
    from espnet3.systems.asr.new_recipe import NewCorpus, hold_out, test_name

    columns = _columns(args.columns)
    train = _read_set("--train", args.train, args.data, columns)
    valid = _read_set("--valid", args.valid, args.data, columns) if args.valid else None
    tests: list[CorpusSet] = []
    for path in args.test:
        name = test_name(path, [test.name for test in tests])
        tests.append(_read_set("--test", path, args.data, columns, name))
    if valid is None and hold_out(train.seen) is None:
        raise UsageError(
            f"--valid is not set, and {count(train.seen.n_utterances, 'utterance')} are too few to "
            "hold some out. Name a validation set: --valid PATH"
        )
    sets = [train, *([valid] if valid else []), *tests]
    rates = most_frequent(one.seen.sample_rates for one in sets)
    rate = args.sample_rate or _only_rate(rates, sets)
    return NewCorpus(
        data_src=args.data,
        train=train,
        valid=valid,
        tests=tests,
        sample_rate=rate,
        resample=any(found != rate for found in rates),
        channel="mix" if any(one.seen.n_channels > 1 for one in sets) else None,
    )


def _only_rate(rates: Counter[int], sets: "Sequence[CorpusSet]") -> int:
    (rate, _), *others = rates.most_common()
    if not others:
        return rate
    found = listed(f"{hertz} Hz ({count(n, 'utterance')})" for hertz, n in rates.most_common())
    odd = next(one.path for one in sets if set(one.seen.sample_rates) - {rate})
    raise UsageError(
        on_one_line(
            f"the sampling rates differ: of those that were read, {found}; the first set with "
            f"another rate is {odd}. Name the rate to bring all audio to: --sample-rate {rate}"
        )
    )


def _columns(given: Sequence[str]) -> dict[str, str]:
    columns = {}
    for word in given:
        field, equals, column = word.partition("=")
        if not (field and equals and column):
            raise UsageError(
                f"--columns has {word!r}. Write a field and its column: --columns text=sentence"
            )
        columns[field] = column
    return columns


def line_with(args: argparse.Namespace, option: str, value: str, old: str = "") -> str:
    """Return the line that was typed with another value of an option.

    Args:
        args: with the words as they were typed.
        option: such as `--data`; added at the end if it was not typed.
        value: the right one.
        old: the wrong one, where an option takes several.
    """
    words, values = [*args.words], (old or getattr(args, option.strip("-")) or "", value)
    for i, word in enumerate(words):
        if word == f"{option}={values[0]}":
            words[i] = f"{option}={value}"
            break
        if word == values[0] and any(before.startswith(option) for before in words[:i]):
            words[i] = value
            break
    else:
        words += [option, value]
    return shlex.join(["espnet3", "init", *words])


def format_of(path: str | None) -> str | None:
    """Return the format that data has, if its files tell."""
    place = Path(os.path.expanduser(path or ""))
    if path and place.is_dir():
        marks = {
            "wav.scp": "kaldi",
            "dataset_dict.json": "huggingface",
            "state.json": "huggingface",
        }
        found = next((marks[name] for name in marks if (place / name).is_file()), None)
        return found or (
            "folder"
            if any(f.with_suffix(".txt").is_file() for f in place.glob("*.[fwmo]*"))
            else None
        )
    if place.name.endswith((".jsonl", ".jsonl.gz")):
        return "lhotse" if _is_cut_set(place) else "jsonl"
    return "tsv" if place.suffix == ".tsv" else None


def _is_cut_set(file: Path) -> bool:
    if file.suffix == ".gz":
        return True
    try:
        with file.open(encoding="utf-8") as lines:
            first = json.loads(next(lines, "{}"))
    except (OSError, ValueError):
        return False
    return isinstance(first, dict) and "recording" in first


_ARE_FOLDERS = ("kaldi", "huggingface", "folder")


def _check_exists(option: str, path: str, args: argparse.Namespace) -> None:
    data = args.data
    folder, split = _divide(path, data)
    if os.path.exists(folder):
        _check_format(option, path, folder, args)
        return _check_split(option, path, folder, split) if data == "huggingface" else None
    parent = Path(folder).parent
    siblings = [file.name for file in parent.iterdir()] if parent.is_dir() else []
    siblings = [name for name in siblings if str(Path(path).parent / name) not in args.words]
    close = closest(Path(folder).name, siblings)
    meant = str(Path(path).parent / close) if close else ""
    way_on = f"Write: {line_with(args, option, meant, path)}" if close else f"Name {FORMATS[data]}."
    raise UsageError(on_one_line(f"{option} is {path!r}, which does not exist. {way_on}"))


def _check_format(option: str, path: str, folder: str, args: argparse.Namespace) -> None:
    """Refuse what is surely of another format: a file where a folder is read, or a folder."""
    found, data, is_folder = format_of(folder), args.data, os.path.isdir(folder)
    is_other = is_folder != (data in _ARE_FOLDERS) or (is_folder and found)
    if not is_other or found == data:
        if data == "kaldi" and not found and (inner := _kaldi_folders(folder)):
            raise UsageError(
                f"{option} is {path!r}, which is no data directory, but has some: "
                f"{listed(inner)}. Write: {line_with(args, option, f'{path}/{inner[0]}', path)}"
            )
        return
    what = "a folder" if is_folder else "a file"
    meant = found or ("folder" if is_folder else None)
    write = f"Write: {line_with(args, '--data', meant)}" if meant else f"Name {FORMATS[data]}."
    raise UsageError(
        on_one_line(
            f"{option} is {path!r}, {what}, but --data {data} reads {FORMATS[data]}. {write}"
        )
    )


def _kaldi_folders(folder: str) -> list[str]:
    found = sorted(file.parent.name for file in Path(folder).glob("*/wav.scp"))
    return sorted(found, key=lambda name: "train" not in name)


def _check_split(option: str, path: str, folder: str, split: str | None) -> None:
    """Refuse a split that the folder does not have, or none where it has several."""
    about = Path(folder, "dataset_dict.json")
    if not about.is_file():  # one dataset; the source tells what else may be wrong
        return
    splits = [str(name) for name in json.loads(about.read_text(encoding="utf-8"))["splits"]]
    if split in splits:
        return
    line = shlex.quote(f"{folder}:{splits[0]}")
    problem = "names no split" if split is None else f"names the split {split!r}"
    raise UsageError(
        on_one_line(
            f"{option} is {path!r}, which {problem}, but the folder has {listed(splits)}."
            f"{suggest(split or '', splits)} Write: {option} {line}"
        )
    )


def _divide(path: str, data: str) -> tuple[str, str | None]:
    """Return a path, and the split of a dataset that has several."""
    path = os.path.expanduser(path)
    folder, colon, split = path.rpartition(":")
    if data == "huggingface" and colon and not os.path.exists(path):
        return folder, split
    return path, None


def _read_set(
    option: str, path: str, data: str, columns: Mapping[str, str], name: str = ""
) -> "CorpusSet":
    from espnet3.components.data.survey import open_source, survey
    from espnet3.systems.asr.new_recipe import CorpusSet

    folder, split = _divide(path, data)
    absolute = os.path.abspath(folder)
    arguments: dict[str, Any] = {"columns": dict(columns)} if columns else {}
    if split:
        arguments["split"] = split
    if data == "folder" and _has_folders_of_speakers(absolute):
        arguments["speaker_is_folder"] = True
    try:
        seen = survey(open_source(data, absolute, arguments))
    except EspnetError as error:
        raise error.at(f"{option} {path}") from error
    return CorpusSet(absolute, seen, arguments, name)


def _has_folders_of_speakers(folder: str) -> bool:
    """Tell whether all files are in folders, of which there are several."""
    from espnet3.components.data.sources.folder import find_pairs

    try:
        parts = [file.parts for file in find_pairs(Path(folder))]
    except EspnetError:
        return False  # reported when the source is opened
    return all(len(part) > 1 for part in parts) and len({part[0] for part in parts}) > 1
