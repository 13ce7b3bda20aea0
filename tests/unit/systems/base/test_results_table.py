import numpy as np
import pytest

from espnet3.components.metrics.error_rate import Bootstrap, intervals, tally
from espnet3.systems.base.results_table import format_results, summary_lines


def error_rate(*rows, run=None):
    counts = np.array(rows)
    return {
        "unit": "words",
        **tally(counts),
        **intervals(counts, None, Bootstrap()),
        "confidence": 0.9,
        "measured_from": {"settings": {"clean_types": None}, "run": run or {}},
    }


def rows_of(text):
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_shares_are_of_the_reference_and_the_interval_names_its_confidence():
    text = format_results({"WER": {"clean": error_rate((6, 2, 2, 1), (10, 0, 0, 0))}})
    header, _, row = rows_of(text)
    cells = dict(zip(header, row, strict=True))
    assert cells["words"] == "20"
    assert (cells["Corr"], cells["Sub"], cells["Del"], cells["Ins"]) == (
        "80.00", "10.00", "10.00", "5.00",
    )  # fmt: skip
    assert cells["Err [90%]"] == "25.00 [0.00, 50.00]"
    assert "Text normalisation: none." in text


@pytest.mark.parametrize(
    ("seconds", "shown"), [(12.34, "12 s"), (600, "10 min"), (19440, "5 h 24 min")]
)
def test_speed_stands_beside_where_it_is_known(seconds, shown):
    run = {"audio_seconds": seconds, "real_time_factor": 0.02346}
    sets = {"a": error_rate((1, 0, 0, 0), run=run), "b": error_rate((1, 0, 0, 0))}
    header, _, known, unknown = rows_of(format_results({"WER": sets}))
    assert header[-2:] == ["audio", "RTF"]
    assert known[-2:] == [shown, "0.0235"]
    assert unknown[-2:] == ["-", "-"]


def test_numbers_of_other_metrics_make_their_own_columns():
    sets = {"a": {"bleu": 31.4159, "n": 12345, "by": {"x": 1}}, "b": {"bleu": None, "kind": "x|y"}}
    text = format_results({"BLEU|4": sets})
    assert "## BLEU\\|4" in text
    assert rows_of(text) == [
        ["test set", "bleu", "n", "kind"],
        ["---", "--:", "--:", "--:"],
        ["a", "31.42", "12,345", "-"],
        ["b", "-", "-", "x\\|y"],
    ]


def test_the_log_has_a_line_for_each_metric_and_test_set_in_columns():
    results = {
        "WER": {"clean": error_rate((9, 1, 0, 0)), "other": error_rate((0, 0, 0, 1))},
        "BLEU": {"clean": {"bleu": 0.01234}},
    }
    assert summary_lines(results) == [
        "WER   clean  1 utterances  10 words  Err 10.00  S.Err 100.00",
        "WER   other  1 utterances  0 words   Err -      S.Err 100.00",
        "BLEU  clean  bleu 0.0123",
    ]
