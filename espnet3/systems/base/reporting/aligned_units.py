"""Reference and hypothesis, unit below unit."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from espnet3.components.metrics.edits import align
from espnet3.components.metrics.text_cleaning import TextCleaner

_MOST_UNITS = 2000
"""A decoder that repeats itself must not make the page endless."""
_MOST_SHOWN = 300
_LETTERS = {"equal": "", "replace": "S", "delete": "D", "insert": "I"}


@dataclass(frozen=True)
class Cell:
    """A unit of both sides; one is empty where the other has nothing to stand against."""

    kind: str
    """Empty for what is right, else S, D or I."""
    ref: str
    hyp: str


@dataclass(frozen=True)
class Alignment:
    """What is shown of an utterance."""

    cells: list[Cell]
    n_hidden: int
    """Cells that were left out at the end."""


class Aligner:
    """Cuts texts as a metric did, from its settings in `metrics.json`.

    Args:
        unit: `words` or `characters`; other units, such as tokens, are shown as words.
        settings: of the metric.
    """

    def __init__(self, unit: str, settings: Any) -> None:
        self._clean = TextCleaner(settings.get("clean_types"))
        self._is_of_characters = unit == "characters"
        self._blank = " " if settings.get("count_spaces", True) else ""

    def __call__(self, reference: str, hypothesis: str) -> Alignment:
        """Return the alignment that the metric counted."""
        ref, hyp = self._units(reference), self._units(hypothesis)
        cells = list(_cells(ref[:_MOST_UNITS], hyp[:_MOST_UNITS]))
        n_cut = max(0, max(len(ref), len(hyp)) - _MOST_UNITS)
        return Alignment(cells[:_MOST_SHOWN], max(0, len(cells) - _MOST_SHOWN) + n_cut)

    def errors(self, reference: str, hypothesis: str) -> Iterator[Cell]:
        """Yield only what is wrong."""
        ref, hyp = self._units(reference), self._units(hypothesis)
        cells = _cells(ref[:_MOST_UNITS], hyp[:_MOST_UNITS])
        return (cell for cell in cells if cell.kind)

    def _units(self, text: str) -> list[str]:
        words = self._clean(text).split()
        return list(self._blank.join(words)) if self._is_of_characters else words


def _cells(reference: Sequence[str], hypothesis: Sequence[str]) -> Iterator[Cell]:
    for span in align(reference, hypothesis):
        refs = reference[span.ref_start : span.ref_stop]
        hyps = hypothesis[span.hyp_start : span.hyp_stop]
        for ref, hyp in zip_longest(refs, hyps, fillvalue=""):
            yield Cell(_LETTERS[span.kind], ref, hyp)
