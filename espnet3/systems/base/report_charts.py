"""Pictures of the page: learning curves, and the timeline of the workers of a run.

Curves are SVG elements, whose colours are those of the page; the timeline leaves out the time in
which no worker ran.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from markupsafe import Markup, escape

from espnet3.systems.base.report_data import ShardSpan
from espnet3.text import amount, count, value_text
from espnet3.trainer.reporting.history import HistoryEntry, Panel, panels_of, series, thin_out

_WIDTH, _HEIGHT = 340.0, 184.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 46.0, 8.0, 10.0, 22.0
_MOST_POINTS = 150
_FEW_POINTS = 25
_LOG_FROM = 50.0
"""A loss that falls by more than this factor is shown on a logarithmic axis."""
_MOST_LANES = 48
_MOST_BARS = 3000
_LEAST_PAUSE_SECONDS = 5.0
_LEAST_PAUSE_SHARE = 0.1
_PAUSE_WIDTH_SHARE = 0.02


@dataclass(frozen=True)
class Line:
    """A metric over steps; `style` is a class of the style sheet."""

    label: str
    style: str
    x: np.ndarray
    y: np.ndarray


@dataclass(frozen=True)
class Chart:
    """A picture, and what stands beside it."""

    title: str
    svg: Markup
    legend: list[tuple[str, str, str]]
    """Style, label and last value of each line."""
    is_log: bool


def draw_curves(history: Sequence[HistoryEntry]) -> list[Chart]:
    """Draw what was logged in a training, the losses first."""
    last_step = max((entry.step for entry in history), default=0)
    charts = [_draw(panel, history, max(1, last_step)) for panel in panels_of(history)]
    return [chart for chart in charts if chart is not None]


def _draw(panel: Panel, history: Sequence[HistoryEntry], last_step: int) -> Chart | None:
    lines = [line for line in _lines(panel, history) if len(line.x)]
    if not lines:
        return None
    is_log = _is_log(panel, lines)
    scale = _Scale.of(lines, last_step, is_log=is_log, from_zero=panel.is_share)
    parts = [*_grid(scale, is_share=panel.is_share)]
    for line in lines:
        parts += _drawn(line, scale)
    text = "; ".join(_described(line) for line in lines)
    label = escape(f"{panel.title} over steps. {text}")
    svg = (
        f'<svg class="chart" viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img" '
        f'aria-label="{label}">{"".join(parts)}</svg>'
    )
    legend = [(line.style, line.label, _value(line.y[-1], panel.is_share)) for line in lines]
    return Chart(panel.title, Markup(svg), legend, is_log)


def _lines(panel: Panel, history: Sequence[HistoryEntry]) -> list[Line]:
    lines = []
    others = 0
    for label, name in panel.lines.items():
        steps, values = series(history, name)
        x, y = np.asarray(steps, float), np.asarray(values, float)
        # NaN would end the SVG path, and spoil the scale.
        x, y = x[np.isfinite(y)], y[np.isfinite(y)]
        style = label if label in ("train", "valid") else f"other-{others % 3}"
        others += style not in ("train", "valid")
        lines.append(Line(label or panel.title, style, x, y))
    return lines


def _is_log(panel: Panel, lines: Sequence[Line]) -> bool:
    values = np.concatenate([line.y for line in lines])
    # A logarithm of a loss of 0 or less does not exist.
    if not (panel.is_log or "loss" in panel.title) or values.min() <= 0:
        return False
    return bool(values.max() / values.min() > _LOG_FROM)


def _value(value: float, is_share: bool) -> str:
    return f"{100 * value:.1f}%" if is_share else value_text(float(value))


def _described(line: Line) -> str:
    return f"{line.label}: from {value_text(float(line.y[0]))} to {value_text(float(line.y[-1]))}"


@dataclass(frozen=True)
class _Scale:
    last_step: int
    low: float
    high: float
    is_log: bool

    @classmethod
    def of(
        cls, lines: Sequence[Line], last_step: int, *, is_log: bool, from_zero: bool
    ) -> "_Scale":
        values = np.concatenate([line.y for line in lines])
        low, high = float(values.min()), float(values.max())
        if is_log:
            return cls(last_step, math.log10(low) - 0.05, math.log10(high) + 0.05, True)
        low = 0.0 if from_zero or 0 <= low < 0.4 * high else low
        # A constant line has no height, and would divide by zero.
        margin = 0.06 * (high - low) or max(abs(high), 1e-9) * 0.1
        return cls(last_step, low if low == 0 else low - margin, high + margin, False)

    def x(self, step: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * step / self.last_step

    def y(self, value: float) -> float:
        place = math.log10(value) if self.is_log else value
        share = (place - self.low) / (self.high - self.low)
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * min(max(share, 0.0), 1.0)

    def y_ticks(self) -> list[float]:
        if self.is_log:
            return _log_ticks(self.low, self.high)
        return _ticks(self.low, self.high, 4)


def _ticks(low: float, high: float, n_wanted: int) -> list[float]:
    step = round_step((high - low) / n_wanted)
    # The tolerance keeps a tick that rounding would push just outside.
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    powers = [10.0**i for i in range(math.ceil(low), math.floor(high) + 1)]
    return powers[:: max(1, math.ceil(len(powers) / 5))]


def _grid(scale: _Scale, *, is_share: bool) -> list[str]:
    parts = []
    for value in scale.y_ticks():
        y = scale.y(value)
        text = f"{100 * value:g}%" if is_share else _tick_text(value)
        parts.append(
            f'<path class="grid" d="M{_LEFT:g} {y:.1f}H{_WIDTH - _RIGHT:g}"/>'
            f'<text x="{_LEFT - 6:g}" y="{y + 3.5:.1f}" text-anchor="end">{escape(text)}</text>'
        )
    for step in _ticks(0, scale.last_step, 4):
        x = scale.x(step)
        anchor = "start" if step == 0 else "end" if x > _WIDTH - 24 else "middle"
        parts.append(
            f'<text x="{x:.1f}" y="{_HEIGHT - 6:g}" text-anchor="{anchor}">{amount(step)}</text>'
        )
    return parts


def _tick_text(value: float) -> str:
    if value and (abs(value) < 1e-3 or abs(value) >= 1e4):
        return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{round(value, 6):g}"


def _drawn(line: Line, scale: _Scale) -> list[str]:
    parts = []
    x, y = line.x, line.y
    if len(x) > _MOST_POINTS:
        x, y, low, high = thin_out(x, y, _MOST_POINTS)
        edge = [*zip(x, high, strict=True), *reversed(list(zip(x, low, strict=True)))]
        parts.append(f'<path class="band {line.style}" d="{_path(edge, scale)}Z"/>')
    points = list(zip(x, y, strict=True))
    parts.append(f'<path class="curve {line.style}" d="{_path(points, scale)}"/>')
    if len(points) <= _FEW_POINTS:
        parts += [
            f'<circle class="{line.style}" cx="{scale.x(a):.1f}" cy="{scale.y(b):.1f}" r="2.2">'
            f"<title>{escape(f'{line.label} at step {a:,.0f}: {value_text(float(b))}')}</title>"
            "</circle>"
            for a, b in points
        ]
    return parts


def _path(points: Sequence[tuple[float, float]], scale: _Scale) -> str:
    return "M" + "L".join(f"{scale.x(x):.1f} {scale.y(y):.1f}" for x, y in points)


@dataclass(frozen=True)
class Bar:
    """A stretch of a lane, in percent of the axis."""

    kind: str
    """load, work, retried or failed."""
    left: float
    width: float
    title: str


@dataclass(frozen=True)
class Lane:
    """Timeline of one worker."""

    label: str
    title: str
    bars: list[Bar]


@dataclass(frozen=True)
class Stretch:
    """A period of work, and its offset on the axis."""

    start: float
    end: float
    offset: float
    n_workers: int


@dataclass(frozen=True)
class Timeline:
    """The lanes, and where the time of the workers went."""

    lanes: list[Lane]
    n_hidden: int
    """Workers beyond those that are shown."""
    n_workers: int
    seconds: float
    """Of the axis: from the first start to the last end, without pauses."""
    pauses: list[tuple[float, float]]
    """Where the axis leaves something out, in percent, and how many seconds."""
    ticks: list[tuple[float, float]]
    """Percent and seconds."""
    load_share: float
    work_share: float
    idle_share: float


def make_timeline(spans: Sequence[ShardSpan]) -> Timeline | None:
    """Lay shards out in lanes; None if there are none."""
    if not spans:
        return None
    stretches = _stretches(spans)
    gap = _PAUSE_WIDTH_SHARE * _working(stretches)
    axis = stretches[-1].offset + stretches[-1].end - stretches[-1].start
    axis = max(axis, 1e-3)
    workers = _by_worker(spans)
    shown = dict(list(workers.items())[:_MOST_LANES])
    place = _Place(stretches, axis)
    lanes = [_lane(i, worker, own, place) for i, (worker, own) in enumerate(shown.items(), 1)]
    if sum(len(lane.bars) for lane in lanes) > _MOST_BARS:
        lanes = [Lane(lane.label, lane.title, _joined(lane.bars)) for lane in lanes]
    load = sum(span.load_end - span.start for span in spans)
    work = sum(span.end - span.load_end for span in spans)
    # At least load and work, so that the shares never exceed 1.
    there = max(sum(s.n_workers * (s.end - s.start) for s in stretches), load + work, 1e-9)
    return Timeline(
        lanes,
        len(workers) - len(shown),
        max(stretch.n_workers for stretch in stretches),
        _working(stretches),
        [
            (100 * (after.offset - gap / 2) / axis, after.start - before.end)
            for before, after in pairwise(stretches)
        ],
        _second_ticks(stretches, axis),
        load / there,
        work / there,
        max(0.0, 1 - (load + work) / there),
    )


def _working(stretches: Sequence[Stretch]) -> float:
    return sum(stretch.end - stretch.start for stretch in stretches)


def _stretches(spans: Sequence[ShardSpan]) -> list[Stretch]:
    """Cut long idle periods, as between a kill and the next start."""
    merged = list[tuple[float, float]]()
    for start, end in sorted((span.start, span.end) for span in spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    busy = sum(end - start for start, end in merged)
    least = max(_LEAST_PAUSE_SECONDS, _LEAST_PAUSE_SHARE * busy)
    groups = [[merged[0][0], merged[0][1]]]
    for start, end in merged[1:]:
        if start - groups[-1][1] > least:
            groups.append([start, end])
        else:
            groups[-1][1] = end
    gap = _PAUSE_WIDTH_SHARE * sum(end - start for start, end in groups)
    stretches, offset = list[Stretch](), 0.0
    for start, end in groups:
        inside = {span.worker for span in spans if start <= span.start <= end}
        stretches.append(Stretch(start, end, offset, len(inside)))
        offset += end - start + gap
    return stretches


def _by_worker(spans: Sequence[ShardSpan]) -> dict[tuple[str, int], list[ShardSpan]]:
    workers: dict[tuple[str, int], list[ShardSpan]] = {}
    for span in sorted(spans, key=lambda span: span.start):
        workers.setdefault(span.worker, []).append(span)
    return workers


@dataclass(frozen=True)
class _Place:
    stretches: Sequence[Stretch]
    axis: float

    def __call__(self, moment: float) -> float:
        """Return where a moment is, in percent."""
        stretch = next((s for s in reversed(self.stretches) if s.start <= moment), None)
        stretch = stretch or self.stretches[0]
        return 100 * (stretch.offset + min(moment, stretch.end) - stretch.start) / self.axis


def _lane(number: int, worker: tuple[str, int], spans: list[ShardSpan], place: _Place) -> Lane:
    bars = list[Bar]()
    for span in spans:
        if span.load_end > span.start:
            seconds = span.load_end - span.start
            bars.append(_bar("load", span.start, span.load_end, f"loading, {seconds:.2f} s", place))
        kind = "failed" if span.n_failed else "retried" if span.n_deaths else "work"
        bars.append(_bar(kind, span.load_end, span.end, _title(span), place))
    host, pid = worker
    return Lane(str(number), f"process {pid} on {host}", bars)


def _bar(kind: str, start: float, end: float, title: str, place: _Place) -> Bar:
    left = place(start)
    # Shards of milliseconds would be too thin to see.
    return Bar(kind, round(left, 3), round(max(place(end) - left, 0.05), 3), title)


def _title(span: ShardSpan) -> str:
    parts = [
        f"shard {span.shard}, {count(span.n_items, 'item')}, {span.end - span.load_end:.2f} s",
        f"{span.n_failed} failed" if span.n_failed else "",
        f"after {count(span.n_deaths, 'death')} of its worker" if span.n_deaths else "",
    ]
    return ", ".join(filter(None, parts))


def _joined(bars: Sequence[Bar]) -> list[Bar]:
    """Join neighbours of one kind that a reader could not tell apart."""
    joined = list[Bar]()
    n_joined = 1
    for bar in bars:
        last = joined[-1] if joined else None
        is_near = last is not None and bar.left - last.left - last.width < 0.1
        if last is not None and is_near and bar.kind == last.kind == "work":
            n_joined += 1
            width = bar.left + bar.width - last.left
            joined[-1] = Bar(bar.kind, last.left, round(width, 3), f"{n_joined} shards")
        else:
            joined.append(bar)
            n_joined = 1
    return joined


def _second_ticks(stretches: Sequence[Stretch], axis: float) -> list[tuple[float, float]]:
    """Return round seconds of the first stretch; behind a pause they would count other things."""
    first = stretches[0].end - stretches[0].start
    step = round_step(axis / 6)
    n_ticks = int(first / step) + 1
    return [(100 * i * step / axis, i * step) for i in range(n_ticks)]


def round_step(size: float) -> float:
    """Return the least of 1, 2, 5, 10, ... (times a power of ten) that is not below `size`."""
    power = 1e-6
    while power * 10 <= size:
        power *= 10
    return next((power * n for n in (1, 2, 5, 10) if power * n >= size * 0.999), power * 10)
