"""Base class of WER, CER and TER, and the files that they write beside a rate."""

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any, ClassVar, Self
from unicodedata import combining, east_asian_width

from espnet3.components.metrics.tally import (
    Bootstrap,
    Counts,
    Span,
    align,
    count_edits,
    intervals,
    length_groups,
    length_order,
    n_errors,
    n_units,
    percentage,
    tally,
    tally_by,
)
from espnet3.components.metrics.text_cleaning import TextCleaner
from espnet3.errors import ConfigError
from espnet3.io.atomic import open_atomic
from espnet3.io.json_text import dump_json
from espnet3.io.scp import escape_value, safe_name

logger = logging.getLogger(__name__)

Data = Mapping[str, Sequence[str]]

_LENGTH = "length"
_UTTERANCE = "utterance"
_OURS = (_LENGTH, _UTTERANCE)


@dataclass(frozen=True)
class ErrorRate:
    """Edit distance to the reference over its length, in percent; a subclass says in what units.

    Called with the texts of a test set, it returns the numbers of the set and writes, into the
    folder of the test set, `<name>.jsonl` (each utterance), `<name>.txt` (aligned text of those
    with errors, worst first) and `<name>.by_<group>.tsv`.

    An empty reference counts no unit: with an empty hypothesis it changes nothing, else it has
    insertions. Without any unit the rate is None.
    """

    unit: ClassVar[str]

    ref_key: str = "ref"
    """Field with the references."""
    hyp_key: str = "hyp"
    """Field with the hypotheses."""
    clean_types: Sequence[str] | str | None = None
    """Normalisation of both texts, applied in order, by the names of `TextCleaner`; None: none."""
    name: str | None = None
    """What it is called in `metrics.json`, and its files; None: the name of the class."""
    n_bootstrap: int = 1000
    """Resamples for the confidence interval; 0: no interval."""
    confidence: float = 0.95
    """Of the interval."""
    seed: int = 0
    """Of the resampling."""
    by: Sequence[str] | str | None = None
    """Groups to break the numbers down by: `length` (of the reference, in units), `speaker`, or any
    other field that names a group for each utterance."""
    resample: str = _UTTERANCE
    """What the interval is about: other utterances, or, with `speaker` or another field, other
    groups. The utterances of one speaker are alike, so this interval is wider and more honest."""
    speaker_key: str = "speaker"
    """Field that `speaker` stands for."""
    details: bool = True
    """Write the files of utterances and alignments."""

    def __post_init__(self) -> None:
        for key in ("clean_types", "by"):
            # Lists arrive as those of OmegaConf, which cannot be compared or written.
            object.__setattr__(self, key, _as_tuple(getattr(self, key)))
        for key in ("ref_key", "hyp_key", "speaker_key", "resample"):
            _check(key, getattr(self, key), lambda name: isinstance(name, str) and name, "FIELD")
        _check("n_bootstrap", self.n_bootstrap, lambda n: type(n) is int and n >= 0, 1000)
        _check("confidence", self.confidence, lambda share: 0 < share < 1, 0.95)
        for group in self._by:
            _check_spelling("by", group, _LENGTH)
        _check_spelling("resample", self.resample, _UTTERANCE)
        if self.resample == _LENGTH:
            raise ConfigError(
                "resample is 'length', but a set has few lengths to draw from.",
                fix="Write: resample: utterance, or resample: speaker",
            )
        self._clean  # noqa: B018  # a wrong name is an error now, not after hours

    def split(self, text: str) -> Sequence[str]:
        """Return the units of a cleaned text."""
        raise NotImplementedError(f"{type(self).__name__} must say what its units are: split().")

    @property
    def input_keys(self) -> tuple[str, ...]:
        """The fields that it needs, references first."""
        return (self.ref_key, self.hyp_key, *self.group_keys)

    @property
    def group_keys(self) -> tuple[str, ...]:
        """Those of them that name a group for each utterance; they may know of more utterances."""
        wanted = [group for group in (*self._by, self.resample) if group not in _OURS]
        return tuple(dict.fromkeys(map(self._group_key, wanted)))

    @property
    def settings(self) -> dict[str, Any]:
        """What the numbers depend on, as plain data."""
        values = asdict(self)
        del values["name"]
        return values

    def named(self, name: str) -> Self:
        """Return a copy with another name."""
        return replace(self, name=name)

    def count(self, references: Sequence[str], hypotheses: Sequence[str]) -> Counts:
        """Return the counts of each utterance; see `count_edits`."""
        return count_edits(self._pairs(references, hypotheses))

    def compute(self, data: Data) -> dict[str, Any]:
        """Return the numbers of a set, and write nothing.

        Example:
            >>> from espnet3.systems.asr.metrics.wer import WER
            >>> WER().compute({"ref": ["hello world"], "hyp": ["hello duck"]})["rate"]
            50.0
        """
        return self._numbers(data, self.count(data[self.ref_key], data[self.hyp_key]))

    def __call__(self, data: Data, test_name: str, inference_dir: Path) -> dict[str, Any]:
        """Return the numbers of a test set and write its detail files.

        Args:
            data: Values by key, in one order: `utt_id`, and those in `input_keys`.
            test_name: Folder of the test set.
            inference_dir: Folder of all test sets.
        """
        counts = self.count(data[self.ref_key], data[self.hyp_key])
        numbers = self._numbers(data, counts)
        if numbers["rate"] is None:
            logger.warning(
                "%s of %s: all %d references are empty, so there is no rate, only %d insertions; "
                "look at the field %r",
                self._title, test_name, len(counts), numbers["insertions"], self.ref_key,
            )  # fmt: skip
        self._write_details(data, counts, Path(inference_dir) / test_name)
        return numbers

    def _numbers(self, data: Data, counts: Counts) -> dict[str, Any]:
        groups = None
        if self.resample != _UTTERANCE:
            groups = data[self._group_key(self.resample)]
        bootstrap = Bootstrap(self.n_bootstrap, self.confidence, self.seed)
        return {
            "unit": self.unit,
            **tally(counts),
            **intervals(counts, groups, bootstrap),
            "confidence": self.confidence,
        }

    def _write_details(self, data: Data, counts: Counts, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        stem = file_stem(self._title)
        for group in self._by:
            groups = length_groups(counts) if group == _LENGTH else data[self._group_key(group)]
            tallied = tally_by(counts, groups)
            order = length_order if group == _LENGTH else str
            ordered = {label: tallied[label] for label in sorted(tallied, key=order)}
            write_groups(folder / f"{stem}.by_{safe_name(group)}.tsv", group, ordered)
        if self.details:
            write_utterances(folder / f"{stem}.jsonl", data["utt_id"], counts)
            write_alignments(folder / f"{stem}.txt", data["utt_id"], counts, self._units_of(data))

    def _units_of(self, data: Data) -> Callable[[int], tuple[Sequence[str], Sequence[str]]]:
        references, hypotheses = data[self.ref_key], data[self.hyp_key]
        # Split again for the few that have errors: the units of ten million words fill the memory.
        return lambda number: (
            self.split(self._clean(references[number])),
            self.split(self._clean(hypotheses[number])),
        )

    def _pairs(
        self, references: Sequence[str], hypotheses: Sequence[str]
    ) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
        clean, split = self._clean, self.split
        for reference, hypothesis in zip(references, hypotheses, strict=True):
            yield split(clean(reference)), split(clean(hypothesis))

    def _group_key(self, group: str) -> str:
        return self.speaker_key if group == "speaker" else group

    @property
    def _by(self) -> tuple[str, ...]:
        return _as_tuple(self.by) or ()

    @property
    def _title(self) -> str:
        return self.name or type(self).__name__

    @cached_property
    def _clean(self) -> TextCleaner:
        return TextCleaner(_as_tuple(self.clean_types))


def file_stem(name: str) -> str:
    """Return the name of a metric as that of its files: `WER (hyp=lm)` becomes `WER_hyp=lm`."""
    return safe_name(re.sub(r"[\s()]+", "_", name).strip("_") or name)


def _as_tuple(names: Any) -> tuple[str, ...] | None:
    if names is None:
        return None
    return (names,) if isinstance(names, str) else tuple(map(str, names))


def _check(key: str, value: Any, is_fine: Callable[[Any], object], example: object) -> None:
    with suppress(TypeError):
        if is_fine(value):
            return
    raise ConfigError(f"{key} is {value!r}, which cannot be.", fix=f"Write: {key}: {example}")


def _check_spelling(key: str, word: str, known: str) -> None:
    """Refuse what is nearly a word of ours; other words are fields."""
    if word != known and get_close_matches(word, [known], cutoff=0.75):
        raise ConfigError(
            f"{key} has {word!r}.", fix=f"Did you mean {known!r}? Write: {key}: {known}"
        )


Units = Sequence[str]
_KINDS = ("correct", "substitutions", "deletions", "insertions")
_GROUP_COLUMNS = (
    "rate", "n_utterances", "n_units", *_KINDS, "sentence_errors", "sentence_error_rate",
)  # fmt: skip
_LETTERS = {"replace": "S", "delete": "D", "insert": "I"}
_BLANK = "\u2423"
"""Stands for a blank that is itself a unit."""


def write_utterances(path: Path, ids: Sequence[str], counts: Counts) -> None:
    """Write a line of JSON for each utterance: id, rate in percent, number of units, counts."""
    lengths, errors = n_units(counts).tolist(), n_errors(counts).tolist()
    with open_atomic(path) as file:
        for number, (id, row) in enumerate(zip(ids, counts.tolist(), strict=True)):
            record = {
                "id": id,
                "rate": percentage(errors[number], lengths[number]),
                "n_units": lengths[number],
                **dict(zip(_KINDS, row, strict=True)),
            }
            file.write(dump_json(record) + "\n")


def write_alignments(
    path: Path, ids: Sequence[str], counts: Counts, units: Callable[[int], tuple[Units, Units]]
) -> None:
    """Write the alignment of each utterance with errors, those with the most errors first.

    Args:
        path: The file.
        ids: Of all utterances.
        counts: Of all utterances.
        units: Returns the reference and hypothesis of the utterance with that number.
    """
    errors = n_errors(counts)
    worst_first = (-errors).argsort(kind="stable")[: int((errors > 0).sum())]
    with open_atomic(path) as file:
        file.write(f"# {len(worst_first)} of {len(ids)} utterances have errors; worst first\n")
        for number in worst_first.tolist():
            scores = " ".join(map(str, counts[number].tolist()))
            text = format_alignment(*units(number))
            file.write(f"\nid: {ids[number]}\nScores: (#C #S #D #I) {scores}\n{text}\n")


def write_groups(path: Path, name: str, groups: Mapping[str, Mapping[str, Any]]) -> None:
    """Write a tab-separated table with a row for each group; an empty cell is no number."""
    with open_atomic(path) as file:
        file.write("\t".join((name, *_GROUP_COLUMNS)) + "\n")
        for group, numbers in groups.items():
            cells = [_cell(numbers[column]) for column in _GROUP_COLUMNS]
            file.write("\t".join((escape_value(group), *cells)) + "\n")


def _cell(value: float | int | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def format_alignment(reference: Sequence[str], hypothesis: Sequence[str]) -> str:
    r"""Return `REF:`, `HYP:` and `Eval:` lines, unit below unit, with `*` where one has none.

    Units keep their case; control characters in them are escaped.

    Example:
        >>> print(format_alignment("the cat sat".split(), "a cat sat down".split()))
        REF:  the cat sat ****
        HYP:  a   cat sat down
        Eval: S           I
    """
    cells = [
        cell
        for span in align(reference, hypothesis)
        for cell in _cells(span, reference, hypothesis)
    ]
    names = ("REF: ", "HYP: ", "Eval:")
    lines = zip(*cells, strict=True) if cells else ((), (), ())
    return "\n".join(
        " ".join([name, *line]).rstrip() for name, line in zip(names, lines, strict=True)
    )


def _cells(
    span: Span, reference: Sequence[str], hypothesis: Sequence[str]
) -> Iterator[tuple[str, str, str]]:
    """Yield what stands in the three lines, of equal width; most units are equal, and one cell."""
    refs = [_show(unit) for unit in reference[span.ref_start : span.ref_stop]]
    if span.kind == "equal":
        text = " ".join(refs)
        yield text, text, " " * _width(text)
        return
    hyps = [_show(unit) for unit in hypothesis[span.hyp_start : span.hyp_stop]]
    for ref, hyp in zip_longest(refs, hyps, fillvalue=""):
        width = max(_width(ref), _width(hyp), 1)
        cells = (ref or "*" * width, hyp or "*" * width, _LETTERS[span.kind])
        padded = [cell + " " * (width - _width(cell)) for cell in cells]
        yield padded[0], padded[1], padded[2]


def _show(unit: str) -> str:
    return _BLANK if unit == " " else escape_value(unit)


def _width(text: str) -> int:
    """Return how many columns of a terminal the text takes."""
    if text.isascii():
        return len(text)
    return sum(_character_width(character) for character in text)


def _character_width(character: str) -> int:
    if combining(character):
        return 0
    return 2 if east_asian_width(character) in "WF" else 1
