"""Base class of WER, CER and TER, and the files that they write beside a rate.

Edits that turn a reference into a hypothesis are found by RapidFuzz.
"""

import logging
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self
from unicodedata import combining, east_asian_width

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import Levenshtein

from espnet3.components.text.spelling import TextCleaner
from espnet3.errors import ConfigError
from espnet3.io.atomic import dump_json, open_atomic
from espnet3.io.scp import escape_value, safe_name

logger = logging.getLogger(__name__)

CORRECT, SUBSTITUTIONS, DELETIONS, INSERTIONS = range(4)
"""Columns of `count_edits`."""

Counts = NDArray[np.int64]


class Span(NamedTuple):
    """A stretch of an alignment, by positions in reference and hypothesis.

    `kind` is `equal`, `replace` (both sides of one length), `delete` or `insert`.
    """

    kind: str
    ref_start: int
    ref_stop: int
    hyp_start: int
    hyp_stop: int


def count_edits(pairs: Iterable[tuple[Sequence[str], Sequence[str]]]) -> Counts:
    """Return a row for each pair: correct units, substitutions, deletions, insertions.

    Their sum of errors is the least possible. How it divides into the three kinds is not unique;
    it is the choice of RapidFuzz, and so that of jiwer. An empty reference has insertions only.

    Args:
        pairs: Reference and hypothesis, each a list of words, or a text for its characters.
    """
    numbers = _Numbers()
    rows = [_count(reference, hypothesis, numbers) for reference, hypothesis in pairs]
    return np.array(rows, dtype=np.int64).reshape(len(rows), 4)


def align(reference: Sequence[str], hypothesis: Sequence[str]) -> list[Span]:
    """Return the alignment that `count_edits` counts."""
    return [Span(*span) for span in _opcodes(reference, hypothesis, _Numbers())]


class _Numbers(defaultdict[str, int]):
    """A number for each word: RapidFuzz would compare the hashes of words, which may collide."""

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        return number


def _opcodes(reference: Sequence[str], hypothesis: Sequence[str], numbers: _Numbers) -> Any:
    # Characters are compared by their codes, which cannot collide, so they need no numbers.
    if isinstance(reference, str) and isinstance(hypothesis, str):
        return Levenshtein.opcodes(reference, hypothesis)
    return Levenshtein.opcodes(
        [numbers[word] for word in reference], [numbers[word] for word in hypothesis]
    )


def _count(
    reference: Sequence[str], hypothesis: Sequence[str], numbers: _Numbers
) -> tuple[int, int, int, int]:
    # True for most utterances of a good recogniser, and much cheaper than an alignment.
    if reference == hypothesis:
        return len(reference), 0, 0, 0
    substitutions = deletions = insertions = 0
    for kind, ref_start, ref_stop, hyp_start, hyp_stop in _opcodes(reference, hypothesis, numbers):
        if kind == "replace":
            substitutions += ref_stop - ref_start
        elif kind == "delete":
            deletions += ref_stop - ref_start
        elif kind == "insert":
            insertions += hyp_stop - hyp_start
    correct = len(reference) - substitutions - deletions
    return correct, substitutions, deletions, insertions


_LENGTH_STARTS = (1, 5, 10, 20, 50, 100, 200, 500, 1000)
_DRAWS_AT_ONCE = 1 << 22
"""Bounds the memory: 32 MB of counts."""


@dataclass(frozen=True)
class Bootstrap:
    """Settings of the bootstrap for confidence intervals."""

    n_resamples: int = 1000
    confidence: float = 0.95
    seed: int = 0


def n_units(counts: Counts) -> Counts:
    """Return the length of each reference."""
    lengths: Counts = counts[:, : DELETIONS + 1].sum(axis=1)
    return lengths


def n_errors(counts: Counts) -> Counts:
    """Return the errors of each utterance."""
    errors: Counts = counts[:, SUBSTITUTIONS : INSERTIONS + 1].sum(axis=1)
    return errors


def percentage(part: float, whole: float) -> float | None:
    """Return a share in percent, or None of nothing."""
    return 100 * part / whole if whole else None


def tally(counts: Counts) -> dict[str, Any]:
    """Return the numbers of a set; rates are in percent, and None where there is no unit."""
    totals = [int(total) for total in counts.sum(axis=0)]
    units, errors = sum(totals[: DELETIONS + 1]), sum(totals[SUBSTITUTIONS:])
    sentence_errors = int((n_errors(counts) > 0).sum())
    return {
        "rate": percentage(errors, units),
        "n_utterances": len(counts),
        "n_units": units,
        "correct": totals[CORRECT],
        "substitutions": totals[SUBSTITUTIONS],
        "deletions": totals[DELETIONS],
        "insertions": totals[INSERTIONS],
        "errors": errors,
        "sentence_errors": sentence_errors,
        "sentence_error_rate": percentage(sentence_errors, len(counts)),
    }


def intervals(
    counts: Counts, groups: Sequence[str] | None, bootstrap: Bootstrap
) -> dict[str, tuple[float, float] | None]:
    """Return `interval` of the rate and `sentence_error_interval`.

    They are None where there are fewer than two utterances or groups: one says nothing about how
    much another would differ.

    Args:
        counts: A row for each utterance.
        groups: The group of each utterance, where whole groups (speakers) are to be resampled.
        bootstrap: How.
    """
    names = ("interval", "sentence_error_interval")
    errors = n_errors(counts)
    ones = np.ones_like(errors)
    rows = np.stack([errors, n_units(counts), (errors > 0).astype(np.int64), ones], axis=1)
    if groups is not None:
        rows = sum_by(rows, groups)
    if len(rows) < 2 or bootstrap.n_resamples == 0:
        return dict.fromkeys(names)
    sums = resample_sums(rows, bootstrap.n_resamples, bootstrap.seed)
    pairs = ((sums[:, 0], sums[:, 1]), (sums[:, 2], sums[:, 3]))
    found = [percentile_interval(*pair, bootstrap.confidence) for pair in pairs]
    return dict(zip(names, found, strict=True))


def tally_by(counts: Counts, groups: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the numbers of each group, in order of first appearance."""
    positions: dict[str, list[int]] = {}
    for position, group in enumerate(groups):
        positions.setdefault(group, []).append(position)
    return {group: tally(counts[chosen]) for group, chosen in positions.items()}


def length_groups(counts: Counts) -> list[str]:
    """Return the range that each reference's length is in, such as `10-19`."""
    labels = ["0", *map(_range_label, _LENGTH_STARTS, (*_LENGTH_STARTS[1:], None))]
    return [labels[bisect_right(_LENGTH_STARTS, length)] for length in n_units(counts).tolist()]


def length_order(label: str) -> int:
    """Return a key that sorts the labels of `length_groups`."""
    return int(label.partition("-")[0].rstrip("+"))


def _range_label(start: int, following: int | None) -> str:
    return f"{start}+" if following is None else f"{start}-{following - 1}"


def sum_by(rows: NDArray[Any], groups: Sequence[str]) -> NDArray[Any]:
    """Return the sum of the rows of each group."""
    # Not as fixed-width strings, in which each entry takes as much memory as the longest.
    _, members = np.unique(np.asarray(groups, dtype=object), return_inverse=True)
    sums = np.zeros((members.max(initial=-1) + 1, rows.shape[1]), dtype=rows.dtype)
    np.add.at(sums, members, rows)
    return sums


def resample_sums(rows: NDArray[Any], n_resamples: int, seed: int = 0) -> NDArray[np.float64]:
    """Draw as many rows as there are, with replacement, `n_resamples` times, and sum each draw.

    Equal rows are drawn together, by how often each occurs. That is the same distribution as
    drawing row by row, and its cost does not grow with the number of utterances.

    Returns:
        [n_resamples, columns]; the same for the same rows, in any order, and seed.
    """
    unique, counts = np.unique(rows, axis=0, return_counts=True)
    generator = np.random.default_rng(seed)
    shares, values = counts / len(rows), unique.astype(np.float64)
    step = max(1, _DRAWS_AT_ONCE // len(unique))
    sums = [
        generator.multinomial(len(rows), shares, size=min(step, n_resamples - start)) @ values
        for start in range(0, n_resamples, step)
    ]
    return np.concatenate(sums) if sums else np.empty((0, rows.shape[1]))


def percentile_interval(
    errors: NDArray[np.float64], totals: NDArray[np.float64], confidence: float
) -> tuple[float, float] | None:
    """Return where the middle share `confidence` of the rates lies, in percent.

    Draws without any total have no rate and are left out; None if no draw is left.
    """
    drawn = totals > 0
    if not drawn.any():
        return None
    rates = 100 * errors[drawn] / totals[drawn]
    low, high = np.quantile(rates, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


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
            object.__setattr__(self, key, as_tuple(getattr(self, key)))
        for key in ("ref_key", "hyp_key", "speaker_key", "resample"):
            check_setting(
                key, getattr(self, key), lambda name: isinstance(name, str) and name, "FIELD"
            )
        # Not isinstance, which also accepts `true`.
        check_setting("n_bootstrap", self.n_bootstrap, lambda n: type(n) is int and n >= 0, 1000)
        check_setting("confidence", self.confidence, lambda share: 0 < share < 1, 0.95)
        for group in self._by:
            check_spelling("by", group, _LENGTH)
        check_spelling("resample", self.resample, _UTTERANCE)
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
        """Settings that the numbers depend on, as plain data."""
        values = asdict(self)
        # The same metric under another name gives the same numbers.
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
        return as_tuple(self.by) or ()

    @property
    def _title(self) -> str:
        return self.name or type(self).__name__

    @cached_property
    def _clean(self) -> TextCleaner:
        return TextCleaner(as_tuple(self.clean_types))


def file_stem(name: str) -> str:
    """Return the name of a metric as that of its files: `WER (hyp=lm)` becomes `WER_hyp=lm`."""
    return safe_name(re.sub(r"[\s()]+", "_", name).strip("_") or name)


def as_tuple(names: Any) -> tuple[str, ...] | None:
    """Return one name or a list of names as a tuple; None stays None."""
    if names is None:
        return None
    return (names,) if isinstance(names, str) else tuple(map(str, names))


def check_setting(key: str, value: Any, is_fine: Callable[[Any], object], example: object) -> None:
    """Refuse a value that is not fine, with one that would be.

    Raises:
        ConfigError: It is not.
    """
    # A value that cannot even be compared is a wrong one.
    with suppress(TypeError):
        if is_fine(value):
            return
    raise ConfigError(f"{key} is {value!r}, which cannot be.", fix=f"Write: {key}: {example}")


def check_spelling(key: str, word: str, known: str) -> None:
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
    # Stable, so that the file is the same each time.
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
