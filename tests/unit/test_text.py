"""Counts, times, lists and the ends of logs, as people read them."""

import math

import pytest

from espnet3.text import (
    amount,
    count,
    duration,
    end_of_log,
    first_few,
    first_line,
    folded,
    hms,
    last_lines,
    listed,
    n_bytes,
    on_one_line,
    printable,
    share_text,
    short_repr,
    shortened,
    value_text,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.004, "0.00 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
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
    assert [count(1, "batch"), count(2, "batch")] == ["1 batch", "2 batches"]
    assert count(1200, "epoch") == "1,200 epochs"
    assert [share_text(x) for x in (0, 0.021, 0.25)] == ["0%", "2.1%", "25%"]
    assert [count(2, noun) for noun in ("process", "shard", "box")] == [
        "2 processes",
        "2 shards",
        "2 boxes",
    ]


def test_a_walltime_is_spelled_for_schedulers():
    assert [hms(5), hms(3600 * 36 + 65.9)] == ["00:00:05", "36:01:05"]


def test_a_list_reads_like_a_sentence():
    assert [listed([]), listed(["a"]), listed(["a", "b"])] == ["", "a", "a and b"]
    assert [first_few([], 2), first_few(range(3), 3)] == ["", "0, 1, 2"]
    assert first_few(range(2000), 2) == "0, 1 and 1,998 more"


def test_texts_of_others_fit_on_a_line():
    assert folded(" an error\n  of\tothers ") == "an error of others"
    assert first_line("\n\n first \nsecond") == "first"
    assert shortened("abcdef", 3) == "abc ... (3 more characters)"
    assert short_repr("x" * 100, 10) == "'xxxx...xxxx'"


def test_what_steers_a_terminal_is_spelled_out():
    odd = "a\x1b[2J\tb\nc\u202e\udce9"
    assert printable(odd) == "a\\x1b[2J\tb\nc\\u202e\\udce9"
    assert on_one_line(odd) == "a\\x1b[2J\\tb\\nc\\u202e\\udce9"


@pytest.mark.parametrize("n_lines", [1, 3, 20_000, 50_000])
def test_the_end_of_a_long_log_is_read_from_its_end(tmp_path, n_lines):
    lines = [f"line {number} " + "x" * (number % 50) for number in range(30_000)]
    (tmp_path / "log").write_text("\n".join(lines))
    assert last_lines(tmp_path / "log", n_lines) == lines[-n_lines:]
    assert last_lines(tmp_path / "absent", n_lines) == []


def test_one_endless_line_is_not_read_whole(tmp_path):
    (tmp_path / "log").write_text("x" * 1_000_000 + "\rthe end\n\n")
    assert last_lines(tmp_path / "log")[-1] == "the end"
    assert len("".join(last_lines(tmp_path / "log"))) < 500_000


def test_the_end_of_a_log_stands_below_its_name(tmp_path):
    log = tmp_path / "dask-worker-12.err"
    log.write_text("".join(f"line {number}\n" for number in range(100_000)) + "the end\n")
    assert end_of_log(log).splitlines()[1] == f"The end of {log}:"
    assert end_of_log(log).splitlines()[-1] == "  the end"
    assert len(end_of_log(log).splitlines()) < 20
    assert end_of_log(None) == end_of_log(tmp_path / "missing") == ""
