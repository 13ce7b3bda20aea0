"""Line charts as SVG elements, whose colours are those of the page."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape

from espnet3.systems.base.reporting.timeline import round_step
from espnet3.text import amount, value_text
from espnet3.trainer.reporting.curves import Panel, panels_of, thin_out
from espnet3.trainer.reporting.history_entries import Entry, series

_WIDTH, _HEIGHT = 340.0, 184.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 46.0, 8.0, 10.0, 22.0
_MOST_POINTS = 150
_FEW_POINTS = 25
_LOG_FROM = 50.0
"""A loss that falls by more than this factor is shown on a logarithmic axis."""


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


def draw_curves(history: Sequence[Entry]) -> list[Chart]:
    """Draw what was logged in a training, the losses first."""
    last_step = max((entry.step for entry in history), default=0)
    charts = [_draw(panel, history, max(1, last_step)) for panel in panels_of(history)]
    return [chart for chart in charts if chart is not None]


def _draw(panel: Panel, history: Sequence[Entry], last_step: int) -> Chart | None:
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


def _lines(panel: Panel, history: Sequence[Entry]) -> list[Line]:
    lines = []
    others = 0
    for label, name in panel.lines.items():
        steps, values = series(history, name)
        x, y = np.asarray(steps, float), np.asarray(values, float)
        x, y = x[np.isfinite(y)], y[np.isfinite(y)]
        style = label if label in ("train", "valid") else f"other-{others % 3}"
        others += style not in ("train", "valid")
        lines.append(Line(label or panel.title, style, x, y))
    return lines


def _is_log(panel: Panel, lines: Sequence[Line]) -> bool:
    values = np.concatenate([line.y for line in lines])
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
