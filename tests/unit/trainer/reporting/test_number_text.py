"""Numbers as people read them."""

import math

import pytest

from espnet3.trainer.reporting.number_text import (
    amount,
    counted,
    duration,
    n_bytes,
    share_text,
    value_text,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.004, "0.00 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (600, "10 min"),
        (3599, "1 h 00 min"),
        (90_000, "25 h 00 min"),
    ],
)
def test_a_time_span_is_rounded_to_what_matters(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2.13449, "2.134"),
        (0.0, "0"),
        (0.00031, "0.00031"),
        (1.5e-5, "1.5e-05"),
        (12345.6, "12,346"),
        (-3.5, "-3.5"),
        (math.nan, "nan"),
        (math.inf, "inf"),
    ],
)
def test_a_metric_has_four_digits(value, text):
    assert value_text(value) == text


def test_counts_and_sizes_are_short():
    assert amount(999_600) == "1 M"
    assert amount(123_456_789) == "123 M"
    assert n_bytes(119_000_000) == "119 MB"
    assert n_bytes(12) == "12 B"
    assert [counted(1, "batch"), counted(2, "batch")] == ["1 batch", "2 batches"]
    assert counted(1200, "epoch") == "1,200 epochs"
    assert [share_text(x) for x in (0, 0.021, 0.25)] == ["0%", "2.1%", "25%"]
