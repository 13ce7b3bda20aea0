from espnet3.systems.base.reporting.timeline import ShardSpan, make_timeline, round_step


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
    assert "after 1 death(s)" in retried.title


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
