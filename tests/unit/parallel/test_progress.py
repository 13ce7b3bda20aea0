"""What a log says of a run that is under way."""

import re
import time

import pytest

from espnet3.parallel import BaseRunner, driver, use_parallel
from espnet3.parallel.driver import Progress


@pytest.mark.parametrize(
    ("audio_seconds", "expected"),
    [
        (None, r"40 of 100 items, [\d.]+ items/s, [\d.]+ s left"),
        (1000.0, r"40 of 100 items, ([\d.]+) items/s, ([\d.]+) times real time, [\d.]+ s left"),
    ],
)
def test_a_line_tells_rate_real_time_and_what_is_left(caplog, monkeypatch, audio_seconds, expected):
    monkeypatch.setattr(driver, "_LINE_SECONDS", 0.01)
    done = iter([0] + [40] * 10_000)
    with caplog.at_level("INFO"), Progress(100, lambda: next(done), "run", audio_seconds) as shown:
        while not caplog.records:
            shown._stop.wait(0.005)
    found = re.search(f"run: {expected}", caplog.text)
    assert found
    if audio_seconds:
        assert float(found[2]) == pytest.approx(10 * float(found[1]), rel=0.1)


def test_the_start_of_workers_is_told_and_does_not_count_as_speed(monkeypatch):
    now, done, waits_for = [0.0], [0], ["4 workers are building the environment (model, data)"]
    monkeypatch.setattr(driver.time, "monotonic", lambda: now[0])
    progress = Progress(2000, lambda: done[0], "infer", starting=lambda: waits_for[0])

    def line(seconds):
        now[0] = seconds
        return progress._line(progress._look())

    told = line(35.0)
    assert told == "0 of 2000 items, 4 workers are building the environment (model, data), 35 s"
    line(54.0)
    waits_for[0], done[0] = "", 18
    assert line(60.0) == "18 of 2000 items, 3.0 items/s, 11 min left"  # not 1 h 50 min
    waits_for[0] = "waiting for workers"  # all of them died: it has begun for all that
    assert "items/s" in line(61.0)


def test_items_of_another_driver_count_while_this_one_waits(monkeypatch):
    now, done = [0.0], [0]
    monkeypatch.setattr(driver.time, "monotonic", lambda: now[0])
    progress = Progress(100, lambda: done[0], "run", starting=lambda: "waiting for workers")
    now[0], done[0] = 10.0, 50
    assert progress._line(progress._look()) == "50 of 100 items, 5.0 items/s, 10 s left"


class SlowProvider:
    """Takes a while to build, as a model does."""

    def build_env_local(self):
        time.sleep(1.5)
        return {}

    def build_worker_setup_fn(self):
        return self.build_env_local


class Runner(BaseRunner):
    @staticmethod
    def forward(idx):
        time.sleep(0.02)
        return idx


def test_a_run_with_a_slow_model_says_what_its_workers_do(caplog, monkeypatch):
    monkeypatch.setattr(driver, "_LINE_SECONDS", 0.2)
    with caplog.at_level("INFO"), use_parallel({"env": "local", "n_workers": 2}):
        assert Runner(SlowProvider())(range(100)) == list(range(100))
    building = "Runner: 0 of 100 items, 2 workers are building the environment (model, data), "
    assert building in caplog.text
    assert "left" not in caplog.text.rpartition(building)[0]
