"""Files beside a rate: numbers and alignment of each utterance, as sclite shows it; groups."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any
from unicodedata import combining, east_asian_width

from espnet3.components.metrics.edits import Counts, Span, align
from espnet3.components.metrics.tally import n_errors, n_units, percentage
from espnet3.io.atomic import open_atomic
from espnet3.io.json_text import dump_json
from espnet3.io.scp import escape_value

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
