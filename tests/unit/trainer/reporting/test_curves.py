"""Learning curves of any history: none, one point, NaNs, thousands of points."""

import math

import numpy as np
import pytest
from matplotlib.image import imread

from espnet3.trainer.reporting.history import (
    FILE_NAME,
    HistoryEntry,
    panels_of,
    plot_curves,
    thin_out,
)

pytestmark = pytest.mark.cold  # elsewhere the axes stay blank, to save time
PNG = b"\x89PNG\r\n"


def entry(step: int, **values: float) -> HistoryEntry:
    names = {name.replace("__", "/"): value for name, value in values.items()}
    return HistoryEntry(step, 1 + step // 10, float(step), names)


def full(n_points: int) -> list[HistoryEntry]:
    rng = np.random.default_rng(0)
    history = list[HistoryEntry]()
    for step in range(1, n_points + 1):
        history.append(
            entry(
                step, train__loss=5 / step + rng.random(), lr__optimizer=1e-3 / step,
                grad_norm__optimizer=math.exp(rng.normal(0, 3)), perf__padding_share=0.06,
                perf__audio_seconds_per_second=400.0, perf__data_wait_share=0.02,
            )
        )  # fmt: skip
        if step % 10 == 0:
            history.append(entry(step, valid__loss=5 / step + 1, valid__acc=1 - 1 / step))
    return history


def write(folder, history) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE_NAME).write_text("".join(e.to_line() + "\n" for e in history))


def ink(path) -> float:
    """Return the share of pixels that are not white."""
    return float((imread(path)[..., :3].min(axis=2) < 0.9).mean())


@pytest.mark.parametrize("n_points", [1, 5000])
def test_a_history_of_any_length_is_drawn(awkward, n_points):
    write(awkward, full(n_points))
    path = plot_curves(awkward)
    assert path == awkward / "curves.png"
    assert path.read_bytes().startswith(PNG)
    assert ink(path) > 0.005
    assert sorted(p.name for p in awkward.iterdir()) == ["curves.png", FILE_NAME]


def test_without_history_there_is_no_plot(tmp_path):
    assert plot_curves(tmp_path) is None
    write(tmp_path, [entry(1, startup__total=3.0)])
    assert plot_curves(tmp_path) is None


def test_values_that_are_not_finite_leave_gaps_not_errors(tmp_path):
    nan, inf = math.nan, math.inf
    write(tmp_path, [entry(i, train__loss=v, valid__loss=nan, grad_norm__optimizer=inf)
                     for i, v in enumerate([nan, 2.0, inf, 1.0])])  # fmt: skip
    assert plot_curves(tmp_path) is not None


def test_losses_of_both_kinds_share_a_panel_and_come_first():
    history = [entry(1, train__acc=1, train__ctc=1), *full(10)]
    assert [(p.title, list(p.lines)) for p in panels_of(history)] == [
        ("loss", ["train", "valid"]),
        ("acc", ["train", "valid"]),
        ("ctc", ["train"]),
        ("learning rate", ["optimizer"]),
        ("gradient norm", ["optimizer"]),
        ("audio seconds per second", [""]),
        ("lost to", ["waiting for data", "padding"]),
    ]


def test_samples_stand_for_audio_where_the_seconds_are_not_known():
    history = [entry(1, train__loss=1, perf__samples_per_second=8.0)]
    assert [p.title for p in panels_of(history)] == ["loss", "samples per second"]


def test_of_a_hundred_statistics_those_of_validations_are_drawn():
    many = {f"train__a{i}": 1.0 for i in range(100)}
    panels = panels_of([entry(1, **many, valid__a50=1.0, valid__loss=1.0)])
    assert [panel.title for panel in panels[:3]] == ["loss", "a50", "a0"]
    assert len(panels) == 9


def test_thinning_keeps_the_mean_and_the_extremes():
    x, y = np.arange(1001.0), np.zeros(1001)
    y[500] = 7.0
    thin_x, mean, low, high = thin_out(x, y, 10)
    assert len(thin_x) == 10
    assert (high.max(), low.min()) == (7.0, 0.0)
    assert mean.max() == pytest.approx(0.07, rel=0.02)
    assert np.all(np.diff(thin_x) > 0)
