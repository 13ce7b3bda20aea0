"""The files beside a rate: numbers and alignment of each utterance, numbers of each group."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from espnet3.components.metrics.aligned_text import format_alignment
from espnet3.components.metrics.edits import Counts
from espnet3.components.metrics.tally import n_errors, n_units, percentage
from espnet3.io.atomic import open_atomic
from espnet3.io.json_text import dump_json
from espnet3.io.scp import escape_value

Units = Sequence[str]

_KINDS = ("correct", "substitutions", "deletions", "insertions")
_GROUP_COLUMNS = (
    "rate", "n_utterances", "n_units", *_KINDS, "sentence_errors", "sentence_error_rate",
)  # fmt: skip


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
