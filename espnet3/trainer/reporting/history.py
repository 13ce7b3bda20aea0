"""`history.jsonl`, one line per log point and per validation, and `curves.png`, drawn from it.

A line is `{"step": 1250, "epoch": 2, "time": 1763260000.1, "values": {"train/loss": 2.134},
"batch": 5000}`, where `step` counts optimizer steps, `epoch` counts from 1, as in the names of
checkpoints, and `batch` counts the batches of all epochs. A value that is not finite is null.

Lightning is not imported here: reports read these files without a training.
"""

import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from espnet3.io.atomic import StrPath, write_bytes
from espnet3.text import count, value_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FILE_NAME = "history.jsonl"


@dataclass(frozen=True)
class HistoryEntry:
    """A line of the history."""

    step: int
    epoch: int
    time: float
    """Seconds since 1970."""
    values: Mapping[str, float]
    batch: int = 0

    def to_line(self) -> str:
        """Return it as JSON."""
        return json.dumps(
            {**asdict(self), "values": {k: _plain(v) for k, v in self.values.items()}}
        )


def _plain(value: float) -> float | None:
    # Most are of 32 bits, whose further digits say nothing.
    return float(f"{value:.7g}") if math.isfinite(value) else None


def read_history(path: StrPath) -> list[HistoryEntry]:
    """Read a history, or `exp_dir/history.jsonl`; a file that is not there is empty.

    Lines that a kill left unfinished are skipped: a plot is not worth an error.
    """
    file = Path(path)
    file = file / FILE_NAME if file.is_dir() else file
    if not file.exists():
        return []
    # A kill may have cut the last line within a character.
    with file.open(encoding="utf-8", errors="replace") as lines:
        return [entry for entry in map(_parse, lines) if entry is not None]


def _parse(line: str) -> HistoryEntry | None:
    try:
        record = json.loads(line)
        values = {str(k): math.nan if v is None else float(v) for k, v in record["values"].items()}
        step, epoch, batch = (int(record[key]) for key in ("step", "epoch", "batch"))
        return HistoryEntry(step, epoch, float(record["time"]), values, batch)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def series(history: Iterable[HistoryEntry], name: str) -> tuple[list[int], list[float]]:
    """Return the steps and values of a metric; of a step that comes twice, the last.

    Example:
        >>> first = HistoryEntry(1, 0, 0.0, {"a": 2.0})
        >>> series([first, HistoryEntry(1, 0, 1.0, {"a": 3.0})], "a")
        ([1], [3.0])
    """
    values = {entry.step: entry.values[name] for entry in history if name in entry.values}
    return list(values), list(values.values())


def names(history: Iterable[HistoryEntry]) -> list[str]:
    """Return the names of all metrics, in the order in which they first came."""
    return list(dict[str, Any].fromkeys(name for entry in history for name in entry.values))


_TRAIN, _VALID = "#7f8fa6", "#c23616"
_OTHERS = ("#0a7c8c", "#e1a100", "#6c5ce7", "#2f3640")
_TEXT, _GRID = "#2f3640", "#e4e7eb"
_MOST_POINTS = 200
_MOST_STATS = 9
_PER_ROW = 3
_FEW = 25


@dataclass
class Panel:
    """One plot: lines by their label, each a metric."""

    title: str
    lines: dict[str, str] = field(default_factory=dict)
    is_stat: bool = False
    """What the model reports, not how the training runs."""
    is_share: bool = False
    is_log: bool = False


def plot_curves(exp_dir: StrPath) -> Path | None:
    """Draw `exp_dir/curves.png` from `exp_dir/history.jsonl`.

    Returns:
        The file, or None if nothing was logged yet.
    """
    folder = Path(exp_dir)
    figure = _draw(read_history(folder), title=folder.name)
    if figure is None:
        return None
    image = BytesIO()
    figure.savefig(image, format="png", dpi=150)
    path = folder / "curves.png"
    write_bytes(path, image.getvalue())
    return path


def panels_of(history: Sequence[HistoryEntry]) -> list[Panel]:
    """Choose what is drawn: losses, then other metrics, learning rate, gradients and speed."""
    found = names(history)
    panels = dict[str, Panel]()
    for name in found:
        kind, _, stat = name.partition("/")
        if kind in ("train", "valid") and stat:
            panels.setdefault(stat, Panel(stat, is_stat=True)).lines[kind] = name
    # The loss first, then what validations report; models log many a detail while training.
    stats = sorted(panels.values(), key=lambda p: (p.title != "loss", "valid" not in p.lines))
    return [*stats[:_MOST_STATS], *(panel for panel in _running(found) if panel.lines)]


def _running(found: Sequence[str]) -> list[Panel]:
    has_audio = "perf/audio_seconds_per_second" in found
    speed = "audio_seconds_per_second" if has_audio else "samples_per_second"
    return [
        Panel("learning rate", _below(found, "lr/")),
        Panel("gradient norm", _below(found, "grad_norm/"), is_log=True),
        Panel(f"{'audio seconds' if has_audio else 'samples'} per second", _only(found, speed)),
        Panel(
            "lost to",
            {
                **_only(found, "data_wait_share", "waiting for data"),
                **_only(found, "padding_share", "padding"),
            },
            is_share=True,
        ),
    ]


def _below(found: Iterable[str], prefix: str) -> dict[str, str]:
    return {name.removeprefix(prefix): name for name in found if name.startswith(prefix)}


def _only(found: Sequence[str], name: str, label: str = "") -> dict[str, str]:
    return {label: f"perf/{name}"} if f"perf/{name}" in found else {}


def _draw(history: Sequence[HistoryEntry], title: str) -> "Figure | None":
    panels = panels_of(history)
    if not panels:
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = _rows(panels)
    n_columns = math.lcm(*map(len, rows))
    width = 4.4 * min(_PER_ROW, max(map(len, rows)))
    figure = Figure(figsize=(width, 2.7 * len(rows) + 0.4), layout="constrained")
    # Not by pyplot, whose global state keeps figures alive and may look for a display.
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(len(rows), n_columns)
    for i, row in enumerate(rows):
        span = n_columns // len(row)
        for j, panel in enumerate(row):
            axes = figure.add_subplot(grid[i, j * span : (j + 1) * span])
            _draw_panel(axes, panel, history)
            if row is rows[-1]:
                axes.set_xlabel("step", fontsize=8, color=_TEXT)
    figure.suptitle(_heading(history, title), fontsize=10, color=_TEXT, x=0.01, ha="left")
    return figure


def _rows(panels: Sequence[Panel]) -> list[list[Panel]]:
    """Spread the panels over rows without gaps: what the model reports, then how it runs."""
    rows = list[list[Panel]]()
    for group in ([p for p in panels if p.is_stat], [p for p in panels if not p.is_stat]):
        n_rows = math.ceil(len(group) / (_PER_ROW if group and group[0].is_stat else 4))
        size = math.ceil(len(group) / n_rows) if n_rows else 0
        rows += [list(group[i * size : (i + 1) * size]) for i in range(n_rows)]
    return [row for row in rows if row]


def _heading(history: Sequence[HistoryEntry], title: str) -> str:
    last = max(history, key=lambda entry: entry.step)
    done = f"{count(last.step, 'step')}, {count(last.epoch, 'epoch')}"
    return f"{_plain_text(title)}  ({done})" if title else done


def _draw_panel(axes: "Axes", panel: Panel, history: Sequence[HistoryEntry]) -> None:
    others = itertools.cycle(_OTHERS)
    for label, name in panel.lines.items():
        color = {"train": _TRAIN, "valid": _VALID}.get(label) or next(others)
        _draw_line(axes, *series(history, name), label=label, color=color)
    # All panels of one width: a peak of one is then seen above the dip of another.
    axes.set_xlim(0, 1.02 * max(1, *(entry.step for entry in history)))
    _style(axes, panel)
    if (len(panel.lines) > 1 or "valid" in panel.lines) and axes.get_lines():
        axes.legend(fontsize=7, frameon=False, labelcolor=_TEXT, handlelength=1.4)


def _draw_line(
    axes: "Axes", steps: Sequence[int], values: Sequence[float], *, label: str, color: str
) -> None:
    x, y = np.asarray(steps, float), np.asarray(values, float)
    x, y = x[np.isfinite(y)], y[np.isfinite(y)]
    if not len(x):
        return
    text = f"valid (last {value_text(y[-1])})" if label == "valid" else _plain_text(label)
    if len(x) > _MOST_POINTS:
        x, y, low, high = thin_out(x, y, _MOST_POINTS)
        axes.fill_between(x, low, high, color=color, alpha=0.18, linewidth=0)
    width = 1.0 if label == "train" else 1.5
    marker = "o" if len(x) <= _FEW else ""
    axes.plot(x, y, color=color, label=text, linewidth=width, marker=marker, markersize=3)


def thin_out(
    x: np.ndarray, y: np.ndarray, n_points: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the means of `n_points` stretches of a line, with the least and the most in each."""
    # There are more values than points here: `reduceat` would repeat values for an empty stretch.
    edges = np.linspace(0, len(x), n_points + 1).astype(int)
    starts, sizes = edges[:-1], np.diff(edges)
    return (
        np.add.reduceat(x, starts) / sizes,
        np.add.reduceat(y, starts) / sizes,
        np.minimum.reduceat(y, starts),
        np.maximum.reduceat(y, starts),
    )


def _style(axes: "Axes", panel: Panel) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

    axes.set_title(_plain_text(panel.title), fontsize=9, color=_TEXT, loc="left")
    axes.grid(visible=True, color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=7, colors=_TEXT, length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(_GRID)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    if panel.is_share:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
        axes.set_ylim(bottom=0)
    if panel.is_log and _is_wide(axes):
        axes.set_yscale("log")


def _is_wide(axes: "Axes") -> bool:
    """Tell whether positive values spread over more than a factor of 30."""
    parts = [np.asarray(line.get_ydata(), float) for line in axes.get_lines()]
    values = np.concatenate([np.empty(0), *parts])
    return bool(len(values) and values.min() > 0 and values.max() / values.min() > 30)


def _plain_text(text: str) -> str:
    """Keep `$` from being read as mathematics."""
    return text.replace("$", r"\$")
