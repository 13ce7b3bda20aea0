"""Show figures as a table, and keep them as JSON and Markdown."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.figures import Figure, Skipped

RESULTS = Path(__file__).parent / "results"
COLUMNS = ("benchmark", "what", "ours", "baseline", "ratio", "limit", "")
Row = tuple[str, Figure | Skipped]


def show_table(rows: list[Row]) -> None:
    """Print the figures."""
    table = Table()
    for column in COLUMNS:
        table.add_column(column, justify="right" if column in COLUMNS[2:6] else "left")
    for row in rows:
        style = "red" if isinstance(row[1], Figure) and row[1].is_over else None
        table.add_row(*_cells(*row), style=style)
    console = Console()
    # Piped into a file there is no width to keep to.
    Console(width=None if console.is_terminal else 170).print(table)


def _cells(benchmark: str, line: Figure | Skipped) -> list[str]:
    if isinstance(line, Skipped):
        return [benchmark, line.what, line.why, "", "", "", ""]
    has_ratio = line.baseline is not None
    return [
        benchmark,
        line.what,
        _number(line.ours, line.unit),
        _number(line.baseline, line.unit) if has_ratio else "",
        f"{line.value:.2f}" if has_ratio else "",
        "" if line.limit is None else f"{line.limit:g} {'' if has_ratio else line.unit}".strip(),
        "" if line.limit is None else ("over" if line.is_over else "ok"),
    ]


def _number(value: float, unit: str) -> str:
    digits = 0 if value >= 100 or value == int(value) else 2
    return f"{value:.{digits}f} {unit}".strip()


def write_report(rows: list[Row], machine: dict[str, Any], name: str = "") -> Path:
    """Write the figures of a run under `results/`, named by the day; return the Markdown.

    A full run has no other name; what one benchmark says must not replace it.
    """
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / (f"{machine['date']}-{name}" if name else machine["date"])
    values = {"machine": machine, "figures": [_record(*row) for row in rows]}
    path.with_suffix(".json").write_text(json.dumps(values, indent=1) + "\n")
    path.with_suffix(".md").write_text(_markdown(rows, machine))
    return path.with_suffix(".md")


def _record(benchmark: str, line: Figure | Skipped) -> dict[str, Any]:
    record = {"benchmark": benchmark, **asdict(line)}
    if isinstance(line, Figure):
        record |= {"ratio": line.value if line.baseline else None, "over": line.is_over}
    return record


def _markdown(rows: list[Row], machine: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {found}" for name, found in machine["versions"].items())
    lines = [
        f"# Benchmarks of {machine['date']}",
        "",
        f"- Command: `{machine['command']}`, commit {machine['commit']}",
        f"- Hardware: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB of "
        f"memory; load before the run {machine['load_before']}",
        f"- Versions: Python {machine['python']}, {machine['system']}, {versions}",
        "",
        "How to read it: [README](../README.md).",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|---|---|--:|--:|--:|--:|---|",
    ]
    lines += ["| " + " | ".join(_cells(*row)) + " |" for row in rows]
    return "\n".join(lines) + "\n"
