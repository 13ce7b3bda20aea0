"""The utterances with the most errors, with alignment and audio."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from espnet3.components.metrics.error_rate import align, n_errors, n_units, percentage
from espnet3.components.metrics.text_cleaning import TextCleaner
from espnet3.errors import RecordError
from espnet3.io.scp import read_scp
from espnet3.systems.base.reporting.clips import ClipMaker, EmbeddedAudio, NoClip
from espnet3.systems.base.reporting.gather import ReportFacts, TestSetReport
from espnet3.systems.base.reporting.scores import Score

_MOST_UNITS = 2000
"""A decoder that repeats itself must not make the page endless."""
_MOST_SHOWN = 300
_LETTERS = {"equal": "", "replace": "S", "delete": "D", "insert": "I"}
_MOST_ALIGNED = 20_000
"""Utterances with errors that are searched for the most frequent ones."""
_MOST_CONFUSIONS = 12


@dataclass(frozen=True)
class Cell:
    """A unit of both sides; one is empty where the other has nothing to stand against."""

    kind: str
    """Empty for what is right, else S, D or I."""
    ref: str
    hyp: str


@dataclass(frozen=True)
class Alignment:
    """Aligned texts of an utterance, as shown."""

    cells: list[Cell]
    n_hidden: int
    """Cells that were left out at the end."""


@dataclass(frozen=True)
class WorstUtterance:
    """Aligned texts of an utterance, as shown."""

    id: str
    n_errors: int
    n_units: int
    rate: float | None
    alignment: Alignment
    reference: str
    hypothesis: str
    clip: EmbeddedAudio | None
    no_clip: str
    """Why it cannot be heard."""


@dataclass(frozen=True)
class WorstOfTestSet:
    """Those of a test set."""

    test_set: str
    unit: str
    utterances: list[WorstUtterance]
    n_with_errors: int
    n_all: int
    confusions: list[tuple[Cell, int]] = field(default_factory=list)
    """The most frequent errors, and how often they came."""
    problem: str = ""
    """Why there is nothing to show."""


def find_worst(report: ReportFacts) -> list[WorstOfTestSet]:
    """Return the worst of each test set, in equal shares of `n_worst`."""
    chosen = [t for t in report.test_sets if t.main is not None and t.utterances is not None]
    if not chosen or not report.config.n_worst:
        return []
    # Rounded up, so that each test set shows at least one.
    n_each = math.ceil(report.config.n_worst / len(chosen))
    clips = ClipMaker(report.config)
    return [_of_test_set(test_set, report, clips, n_each) for test_set in chosen]


def _of_test_set(
    test_set: TestSetReport, report: ReportFacts, clips: ClipMaker, n_each: int
) -> WorstOfTestSet:
    main, utterances = test_set.main, test_set.utterances
    assert main is not None
    assert utterances is not None
    errors, units = n_errors(utterances.counts), n_units(utterances.counts)
    numbers = utterances.worst(n_each)
    n_wrong, n_all = int((errors > 0).sum()), len(utterances.ids)
    ids = [utterances.ids[number] for number in numbers]
    # Bounded: to align all of a large test set could take longer than the rest of the page.
    wrong = [utterances.ids[number] for number in (errors > 0).nonzero()[0][:_MOST_ALIGNED]]
    try:
        texts = _texts(main, report.inference_dir, [*ids, *wrong])
        aligner = Aligner(main.unit, main.settings)
    except Exception as error:  # a file or a cleaner that is not there any more
        return WorstOfTestSet(test_set.name, main.unit, [], n_wrong, n_all, problem=str(error))
    confusions = _confusions(aligner, [texts[id] for id in wrong])
    found = []
    for number, id in zip(numbers, ids, strict=True):
        reference, hypothesis = texts[id]
        clip, no_clip = _clip(test_set, id, clips)
        n_wrong_here, n_here = int(errors[number]), int(units[number])
        rate = percentage(n_wrong_here, n_here)
        alignment = aligner(reference, hypothesis)
        found.append(
            WorstUtterance(
                id, n_wrong_here, n_here, rate, alignment, reference, hypothesis, clip, no_clip
            )
        )
    return WorstOfTestSet(test_set.name, main.unit, found, n_wrong, n_all, confusions)


def _confusions(aligner: "Aligner", texts: Iterable[tuple[str, str]]) -> list[tuple[Cell, int]]:
    counts = Counter(cell for pair in texts for cell in aligner.errors(*pair))
    # Of equals the first in the alphabet, so that the same results give the same page.
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0].ref, item[0].hyp))
    return ranked[:_MOST_CONFUSIONS]


def _clip(test_set: TestSetReport, id: str, clips: ClipMaker) -> tuple[EmbeddedAudio | None, str]:
    if not clips.config.audio_megabytes:
        return None, ""
    if test_set.data is None:
        return None, test_set.no_data
    try:
        return clips.make(test_set.data.sample(id), test_set.data.duration(id)), ""
    except NoClip as error:
        return None, str(error)


def _texts(score: Score, base: Path, ids: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return reference and hypothesis of a few ids; files are read line by line."""
    wanted = set(ids)
    sides = []
    for role in ("ref_key", "hyp_key"):
        path = score.input_path(str(score.settings.get(role, role.removesuffix("_key"))), base)
        if path is None:
            raise RecordError(f"metrics.json does not record where {role} was read from.")
        sides.append({id: text for id, text in read_scp(path) if id in wanted})
    return {id: (sides[0].get(id, ""), sides[1].get(id, "")) for id in ids}


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
