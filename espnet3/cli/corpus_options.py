"""The options of `espnet3 init` that name a corpus, and what is found there."""

import argparse
import json
import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.cli.console import UsageError, whole_number
from espnet3.errors import EspnetError, suggest
from espnet3.text import count, listed, on_one_line

if TYPE_CHECKING:
    from espnet3.systems.asr.new_recipe import CorpusSet, NewCorpus

FORMATS = {
    "kaldi": "a data directory with wav.scp, text, utt2spk",
    "jsonl": "a manifest with a JSON object per line",
    "tsv": "a manifest with tabs, and a first line that names the columns",
    "huggingface": "a folder that datasets.save_to_disk wrote; FOLDER:SPLIT for one of several",
    "lhotse": "a CutSet, .jsonl or .jsonl.gz",
    "folder": "audio files, with a text file beside each",
}
"""What `--data` may be."""
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
        raise UsageError(
            f"--data is {args.data!r}, which is no format that is read here."
            f"{suggest(args.data, FORMATS)} Formats: {', '.join(FORMATS)}."
        )
    if args.train is None:
        raise UsageError(
            f"--train is not set. Name the data to train on: --data {args.data} --train PATH"
        )
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
        _check_exists(option, path, args.data)
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


def _check_exists(option: str, path: str, data: str) -> None:
    folder, split = _divide(path, data)
    if os.path.exists(folder):
        return _check_split(option, path, folder, split) if data == "huggingface" else None
    parent = Path(folder).parent
    siblings = [file.name for file in parent.iterdir()] if parent.is_dir() else []
    raise UsageError(
        on_one_line(
            f"{option} is {path!r}, which does not exist.{suggest(Path(folder).name, siblings)} "
            f"Name {FORMATS[data]}."
        )
    )


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
