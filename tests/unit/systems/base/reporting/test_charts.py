from xml.etree import ElementTree

from espnet3.systems.base.reporting.charts import draw_curves
from espnet3.systems.base.reporting.gather import read_learning
from espnet3.trainer.reporting.history_entries import Entry
from tests.helpers.report_page_parts import write_history


def history(values, name="valid/loss"):
    return [Entry(i, 1, 0.0, {name: value}, i) for i, value in enumerate(values, 1)]


def test_charts_are_well_formed_and_described(tmp_path):
    write_history(tmp_path, 400)
    charts = draw_curves(read_learning(tmp_path).history)
    assert charts[0].title == "loss"
    for chart in charts:
        svg = ElementTree.fromstring(str(chart.svg))
        assert chart.title in svg.get("aria-label")
        assert len(str(chart.svg)) < 30_000
    assert [style for style, _, _ in charts[0].legend] == ["train", "valid"]


def test_points_stay_inside_the_chart():
    (chart,) = draw_curves(history([5.0, -3.0, float("nan"), 1e-9, 4.0]))
    circles = [e for e in ElementTree.fromstring(str(chart.svg)).iter() if e.tag == "circle"]
    assert len(circles) == 4
    for circle in circles:
        assert 0 <= float(circle.get("cx")) <= 340
        assert 0 <= float(circle.get("cy")) <= 184


def test_a_loss_that_falls_far_is_logarithmic_and_says_so():
    assert draw_curves(history([100.0, 1.0, 0.1]))[0].is_log
    assert not draw_curves(history([3.0, 2.0, 1.0]))[0].is_log
    assert not draw_curves(history([100.0, 0.0, 0.1]))[0].is_log


def test_constant_or_unknown_values_do_no_harm():
    assert len(draw_curves(history([0.0, 0.0]))) == 1
    assert draw_curves(history([float("nan")])) == []
    assert draw_curves([]) == []


def test_means_are_over_time(tmp_path):
    entries = [
        Entry(10, 1, 0.0, {"perf/padding_share": 0.1, "perf/step_seconds": 1.0}, 10),
        Entry(40, 1, 0.0, {"perf/padding_share": 0.3, "perf/step_seconds": 1.0}, 40),
    ]
    text = "".join(entry.to_line() + "\n" for entry in entries)
    (tmp_path / "history.jsonl").write_text(text)
    learning = read_learning(tmp_path)
    assert abs(learning.padding_share - 0.25) < 1e-9
    assert learning.audio_per_second is None
    assert read_learning(tmp_path / "nowhere") is None
