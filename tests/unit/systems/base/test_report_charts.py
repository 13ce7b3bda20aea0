from xml.etree import ElementTree

from espnet3.systems.base.report_charts import draw_curves, make_timeline, round_step
from espnet3.systems.base.report_data import ShardSpan, read_learning
from espnet3.trainer.reporting.history import HistoryEntry
from tests.helpers.report_page_parts import write_history


def history(values, name="valid/loss"):
    return [HistoryEntry(i, 1, 0.0, {name: value}, i) for i, value in enumerate(values, 1)]


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
        HistoryEntry(10, 1, 0.0, {"perf/padding_share": 0.1, "perf/step_seconds": 1.0}, 10),
        HistoryEntry(40, 1, 0.0, {"perf/padding_share": 0.3, "perf/step_seconds": 1.0}, 40),
    ]
    text = "".join(entry.to_line() + "\n" for entry in entries)
    (tmp_path / "history.jsonl").write_text(text)
    learning = read_learning(tmp_path)
    assert abs(learning.padding_share - 0.25) < 1e-9
    assert learning.audio_per_second is None
    assert read_learning(tmp_path / "nowhere") is None


def span(shard, pid, start, end, load=0.0, **more):
    return ShardSpan(shard, ("host", pid), start, start + load, end, 10, **more)


def test_no_shards_have_no_timeline():
    assert make_timeline([]) is None


def test_shares_of_the_workers_time_add_up():
    line = make_timeline([span(0, 1, 0, 10, load=2), span(1, 2, 0, 5)])
    assert (line.n_workers, line.seconds) == (2, 10)
    assert line.load_share == 0.1
    assert line.work_share == 0.65
    assert abs(line.idle_share - 0.25) < 1e-9


def test_bars_are_where_the_work_was():
    line = make_timeline([span(0, 1, 100, 110, load=2), span(1, 1, 110, 120)])
    (lane,) = line.lanes
    assert [(bar.kind, bar.left, bar.width) for bar in lane.bars] == [
        ("load", 0, 10), ("work", 10, 40), ("work", 50, 50),
    ]  # fmt: skip
    assert lane.title == "process 1 on host"


def test_failed_and_repeated_shards_are_marked_and_told():
    line = make_timeline([span(0, 1, 0, 5, n_failed=2), span(1, 1, 5, 9, n_deaths=1)])
    failed, retried = line.lanes[0].bars
    assert failed.kind == "failed"
    assert "2 failed" in failed.title
    assert retried.kind == "retried"
    assert "after 1 death of" in retried.title


def test_a_night_between_two_starts_is_left_out():
    night = 36_000
    line = make_timeline([span(0, 1, 0, 10), span(1, 2, night, night + 10)])
    assert line.seconds == 20
    assert [round(seconds) for _, seconds in line.pauses] == [night - 10]
    assert line.n_workers == 1, "the process of the second start replaced that of the first"
    assert line.idle_share < 0.01
    (before,), (after,) = (lane.bars for lane in line.lanes)
    assert before.left + before.width < line.pauses[0][0] < after.left
    assert abs(before.width - after.width) < 0.01


def test_many_workers_and_shards_stay_few_elements():
    spans = [
        span(worker * 200 + i, worker, i, i + 0.999) for worker in range(300) for i in range(200)
    ]
    line = make_timeline(spans)
    assert line.n_workers == 300
    assert len(line.lanes) + line.n_hidden == 300
    assert sum(len(lane.bars) for lane in line.lanes) < 3000


def test_ticks_are_round():
    line = make_timeline([span(0, 1, 0, 13)])
    assert [seconds for _, seconds in line.ticks] == [0, 5, 10]
    assert [round_step(size) for size in (0.03, 1, 1.2, 7)] == [0.05, 1, 2, 10]
