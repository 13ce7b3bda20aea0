"""What a log says of a run that is under way."""

import re

import pytest

from espnet3.parallel import progress
from espnet3.parallel.progress import Progress


@pytest.mark.parametrize(
    ("audio_seconds", "expected"),
    [
        (None, r"40 of 100 items, [\d.]+ items/s, [\d.]+ s left"),
        (1000.0, r"40 of 100 items, ([\d.]+) items/s, ([\d.]+) times real time, [\d.]+ s left"),
    ],
)
def test_a_line_tells_rate_real_time_and_what_is_left(caplog, monkeypatch, audio_seconds, expected):
    monkeypatch.setattr(progress, "_LINE_SECONDS", 0.01)
    done = iter([0] + [40] * 10_000)
    with caplog.at_level("INFO"), Progress(100, lambda: next(done), "run", audio_seconds) as shown:
        while not caplog.records:
            shown._stop.wait(0.005)
    found = re.search(f"run: {expected}", caplog.text)
    assert found
    if audio_seconds:
        assert float(found[2]) == pytest.approx(10 * float(found[1]), rel=0.1)
