"""The last lines of a recipe's run: the scores, the speed, the minutes, and where the page is."""

from io import StringIO

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table

from espnet3.systems.base.reporting import number_words as words
from espnet3.systems.base.reporting.gather import Report
from espnet3.systems.base.reporting.scores import Score

_WIDTH = 100


def format_summary(report: Report) -> str:
    """Return the tables as plain text of at most 100 columns, for a terminal or a log file."""
    parts: list[RenderableType] = []
    if any(test_set.scores or test_set.run for test_set in report.test_sets):
        parts.append(_scores(report))
    if report.learning is not None:
        parts.append(_training(report))
    if report.stages:
        parts.append(_minutes(report))
    buffer = StringIO()
    console = Console(file=buffer, width=_WIDTH, highlight=False, markup=False, emoji=False)
    for part in parts:
        console.print(part)
    lines = [line.rstrip() for line in buffer.getvalue().splitlines()]
    return "\n".join(lines).strip("\n")


def _table(*titles: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for i, title in enumerate(titles):
        table.add_column(title, justify="right" if i else "left", overflow="fold")
    return table


def _scores(report: Report) -> Table:
    metrics = list(dict.fromkeys(s.metric for t in report.test_sets for s in t.scores))
    rates = {s.metric for t in report.test_sets for s in t.scores if s.is_error_rate}
    titles = [f"{metric} %" if metric in rates else metric for metric in metrics]
    table = _table("Test set", *titles, "RTF")
    for test_set in report.test_sets:
        scores = {score.metric: score for score in test_set.scores}
        rtf = test_set.run.real_time_factor if test_set.run else None
        cells = [_cell(scores.get(metric)) for metric in metrics]
        table.add_row(test_set.name, *cells, words.short(rtf))
    return table


def _cell(score: Score | None) -> str:
    if score is None:
        return words.NOTHING
    if not score.is_error_rate:
        return ", ".join(f"{key} {words.number(value)}" for key, value in score.scalars.items())
    if score.interval is None:
        return words.rate(score.rate)
    return f"{words.rate(score.rate)} [{score.interval[0]:.2f}, {score.interval[1]:.2f}]"


def _training(report: Report) -> str:
    learning = report.learning
    assert learning is not None
    speed = (
        f"{words.short(learning.audio_per_second)} audio seconds per second"
        if learning.audio_per_second is not None
        else f"{words.short(learning.samples_per_second)} samples per second"
    )
    return f"\nTraining: {speed}, {learning.n_steps:,} steps, {learning.n_epochs} epochs\n"


def _minutes(report: Report) -> Table:
    table = _table("Stage", "Minutes")
    for stage in report.stages:
        table.add_row(stage.name, words.minutes(stage.seconds))
    table.add_section()
    table.add_row("together", words.minutes(sum(stage.seconds for stage in report.stages)))
    return table
