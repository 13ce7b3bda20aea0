"""Results of `measure`: what `metrics.json` was measured from, and its numbers as tables.

The tables are Markdown to keep, and short lines for the log.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from espnet3.config.fingerprint import file_identity, same_file
from espnet3.text import count, duration

Numbers = Mapping[str, Any]
Results = Mapping[str, Mapping[str, Numbers]]
MEASURED_FROM = "measured_from"
"""The key beside the numbers of a test set."""

_IDENTITY = ("path", "size", "mtime_ns", "sha256")
_ERROR_RATE = ("rate", "unit", "n_units", "substitutions", "deletions", "insertions")
_NOTHING = "-"
_FATE = {
    "skip": "without reference or hypothesis, left out",
    "count_as_deletions": "without hypothesis, counted as deletions",
}


def format_results(results: Results) -> str:
    """Return `RESULTS.md`: a table for each metric, with a row for each test set."""
    sections = ["# Results", *(_section(name, sets) for name, sets in results.items())]
    return "\n\n".join(sections) + "\n"


def summary_lines(results: Results) -> list[str]:
    """Return a short line for each metric and test set, in columns."""
    rows = [
        [name, test_set, *_summary(numbers)]
        for name, sets in results.items()
        for test_set, numbers in sets.items()
    ]
    return in_columns(rows)


def _section(name: str, sets: Mapping[str, Numbers]) -> str:
    numbers = list(sets.values())
    # Of several kinds, the columns of error rates would not fit all rows.
    if all(is_error_rate(entry) for entry in numbers):
        columns = [_error_columns(entry) for entry in numbers]
    else:
        columns = [_plain_columns(entry) for entry in numbers]
    columns = [{**cells, **_speed(entry)} for cells, entry in zip(columns, numbers, strict=True)]
    header = list(dict.fromkeys(key for cells in columns for key in cells))
    rows = [
        [test_set, *(cells.get(key, _NOTHING) for key in header)]
        for test_set, cells in zip(sets, columns, strict=True)
    ]
    table = markdown_table(["test set", *header], rows)
    return "\n\n".join(filter(None, [f"## {_escape(name)}", table, _notes(sets)]))


def is_error_rate(numbers: Numbers) -> bool:
    """Tell whether these are counts of edits of words, characters or tokens."""
    return all(key in numbers for key in _ERROR_RATE)


def _error_columns(numbers: Numbers) -> dict[str, str]:
    interval = f" [{100 * numbers['confidence']:g}%]"
    units = numbers["n_units"]
    return {
        "utterances": f"{numbers['n_utterances']:,}",
        numbers["unit"]: f"{units:,}",
        "Corr": _share(numbers["correct"], units),
        "Sub": _share(numbers["substitutions"], units),
        "Del": _share(numbers["deletions"], units),
        "Ins": _share(numbers["insertions"], units),
        f"Err{interval}": with_interval(numbers["rate"], numbers["interval"]),
        f"S.Err{interval}": with_interval(
            numbers["sentence_error_rate"], numbers["sentence_error_interval"]
        ),
    }


def _plain_columns(numbers: Numbers) -> dict[str, str]:
    share = numbers.get("confidence")
    found = {key for key in plain_numbers(numbers) if interval_of(numbers, key)}
    note = f" [{100 * share:g}%]" if isinstance(share, float) else " [interval]"
    return {
        f"{key}{note}" if key in found else key: with_interval(value, interval_of(numbers, key))
        if key in found
        else _cell(value)
        for key, value in plain_numbers(numbers).items()
    }


def plain_numbers(numbers: Numbers) -> dict[str, Any]:
    """Return the numbers and texts of a metric, of any kind, without those about its intervals."""
    cells = {key: _scalar(value) for key, value in numbers.items() if key != MEASURED_FROM}
    has_interval = any(interval_of(numbers, key) for key in cells)
    return {
        key: value
        for key, value in cells.items()
        if _fits(value)
        and not (has_interval and key == "confidence")
        and not _is_absent(numbers, key)
    }


def interval_of(numbers: Numbers, key: str) -> tuple[float, float] | None:
    """Return the interval of a number: what stands beside it as `<key>_interval`."""
    ends = numbers.get(f"{key}_interval")
    if not isinstance(ends, list | tuple) or len(ends) != 2:
        return None
    return float(ends[0]), float(ends[1])


def _is_absent(numbers: Numbers, key: str) -> bool:
    """Tell whether this is an interval that there is none of, as of a single utterance."""
    return numbers[key] is None and key.removesuffix("_interval") in numbers.keys() - {key}


def _scalar(value: Any) -> Any:
    """Return a number of numpy or torch as one of Python."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", None) == 0 else value


def _fits(value: Any) -> bool:
    return isinstance(value, str | int | float | None)


def _left_out(numbers: Numbers) -> list[str]:
    """Return what a metric returned that does not fit into a cell, such as a list."""
    if is_error_rate(numbers):
        return []
    shown = {f"{key}_interval" for key in numbers if interval_of(numbers, key)} | {MEASURED_FROM}
    return [k for k, v in numbers.items() if k not in shown and not _fits(_scalar(v))]


def _speed(numbers: Numbers) -> dict[str, str]:
    run = numbers.get(MEASURED_FROM, {}).get("run", {})
    if "real_time_factor" not in run:
        return {}
    return {
        "audio": duration(run["audio_seconds"]),
        "RTF": f"{run['real_time_factor']:.3g}",
    }


def _summary(numbers: Numbers) -> list[str]:
    if is_error_rate(numbers):
        cells = [
            f"{numbers['n_utterances']:,} utterances",
            f"{numbers['n_units']:,} {numbers['unit']}",
            f"Err {with_interval(numbers['rate'], numbers['interval'])}",
            f"S.Err {_cell(numbers['sentence_error_rate'])}",
        ]
    else:
        cells = [f"{key} {value}" for key, value in _plain_columns(numbers).items()]
    return cells + [f"{key} {value}" for key, value in _speed(numbers).items()]


def _notes(sets: Mapping[str, Numbers]) -> str:
    """Say how the texts were changed, and of what the numbers say nothing."""
    records = {test_set: numbers.get(MEASURED_FROM, {}) for test_set, numbers in sets.items()}
    first: Mapping[str, Any] = next(iter(records.values()), {})
    settings = first.get("settings", {})
    notes = []
    if "clean_types" in settings:
        names = ", ".join(settings["clean_types"] or ()) or "none"
        notes.append(f"Text normalisation: {names}.")
    if settings.get("resample", "utterance") != "utterance":
        notes.append(f"Intervals: whole groups of one {settings['resample']} were resampled.")
    kept = dict.fromkeys(key for numbers in sets.values() for key in _left_out(numbers))
    if kept:
        notes.append(f"In metrics.json only: {', '.join(kept)}.")
    for test_set, record in records.items():
        if n_missing := record.get("n_missing"):
            notes.append(
                f"{test_set}: {count(n_missing, 'utterance')} {_FATE[record['on_missing']]}."
            )
        if n_failed := record.get("run", {}).get("n_failed"):
            notes.append(
                f"{test_set}: {count(n_failed, 'utterance')} failed in inference, not counted."
            )
    return _escape(" ".join(notes))


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f}" if whole else _NOTHING


def with_interval(rate: float | None, interval: Sequence[float] | None) -> str:
    """Return a rate as in the tables, with its interval if it has one."""
    if rate is None or interval is None:
        return _cell(rate)
    return f"{rate:.2f} [{interval[0]:.2f}, {interval[1]:.2f}]"


def _cell(value: Any) -> str:
    if value is None:
        return _NOTHING
    if isinstance(value, float):
        # Small numbers keep their digits: 0.004 must not become 0.00.
        return f"{value:.2f}" if abs(value) >= 0.1 or value == 0 else f"{value:.3g}"
    return f"{value:,}" if type(value) is int else str(value)


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table with the first column on the left, and the others on the right."""
    rule = ["---"] + ["--:"] * (len(header) - 1)
    lines = [list(map(_escape, header)), rule, *(list(map(_escape, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _escape(text: str) -> str:
    # A pipe would begin another cell, and a line break another row.
    return " ".join(text.replace("|", "\\|").split())


def in_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a line for each row, with cells of equal width below each other."""
    n_columns = max((len(row) for row in rows), default=0)
    padded = [[*row, *[""] * (n_columns - len(row))] for row in rows]
    widths = [max(map(len, column)) for column in zip(*padded, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in padded]


def identify(path: Path, base: Path) -> dict[str, Any]:
    """Return path, size, time and digest of a file.

    Below `base` the path is relative to it: the folder may be moved.
    """
    inside = path.absolute().is_relative_to(base.absolute())
    shown = path.absolute().relative_to(base.absolute()) if inside else path.absolute()
    return {"path": str(shown), **file_identity(path)}


def stale_inputs(metrics_json: Path) -> list[str]:
    """Return a line for each file that changed or went since `metrics.json` was computed from it.

    An empty list means that the numbers are those of the files as they are now.
    """
    results = json.loads(metrics_json.read_bytes())
    # By path, since several metrics read the same file.
    base, changed = metrics_json.parent, dict[str, str]()
    for identity in _identities(results):
        path = base / identity["path"]
        if not path.is_file():
            changed[str(path)] = f"{path} is gone"
        elif not same_file(identity, path):
            changed[str(path)] = f"{path} has other content"
    return list(changed.values())


def _identities(values: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(values, Mapping):
        if all(key in values for key in _IDENTITY):
            yield values
        for value in values.values():
            yield from _identities(value)
    elif isinstance(values, list):
        for value in values:
            yield from _identities(value)
