"""Show an alignment as text, in three lines like those of sclite."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from unicodedata import combining, east_asian_width

from espnet3.components.metrics.edits import Span, align
from espnet3.io.scp import escape_value

_LETTERS = {"replace": "S", "delete": "D", "insert": "I"}
_BLANK = "\u2423"
"""Stands for a blank that is itself a unit."""


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
