import numpy as np
import pytest

from espnet3.components.metrics.error_rate import (
    Bootstrap,
    intervals,
    length_groups,
    length_order,
    tally,
    tally_by,
)


def counts(*rows: tuple[int, int, int, int]) -> np.ndarray:
    return np.array(rows, dtype=np.int64).reshape(len(rows), 4)


def test_a_rate_is_of_the_whole_set_and_not_the_mean_of_its_utterances():
    numbers = tally(counts((9, 1, 0, 0), (0, 1, 0, 1)))
    assert numbers["rate"] == pytest.approx(100 * 3 / 11)
    assert numbers["n_units"] == 11
    assert numbers["errors"] == 3
    assert numbers["sentence_error_rate"] == 100.0


def test_all_empty_references_have_no_rate_but_count_their_insertions():
    numbers = tally(counts((0, 0, 0, 2), (0, 0, 0, 0)))
    assert numbers["rate"] is None
    assert numbers["insertions"] == 2
    assert numbers["sentence_error_rate"] == 50.0
    assert intervals(counts((0, 0, 0, 2), (0, 0, 0, 0)), None, Bootstrap())["interval"] is None


def test_nothing_at_all_has_no_rates():
    numbers = tally(counts())
    assert numbers["rate"] is None
    assert numbers["sentence_error_rate"] is None


def test_one_utterance_or_one_speaker_has_no_interval():
    assert intervals(counts((9, 1, 0, 0)), None, Bootstrap())["interval"] is None
    two = counts((9, 1, 0, 0), (5, 5, 0, 0))
    assert intervals(two, ["s", "s"], Bootstrap())["interval"] is None
    assert intervals(two, None, Bootstrap(n_resamples=0))["interval"] is None
    assert intervals(two, None, Bootstrap())["interval"] is not None


def test_the_interval_over_speakers_is_wider_where_speakers_differ():
    rows = counts(*[(10, 0, 0, 0)] * 50, *[(5, 5, 0, 0)] * 50)
    speakers = ["good"] * 25 + ["fine"] * 25 + ["poor"] * 25 + ["bad"] * 25
    plain = intervals(rows, None, Bootstrap())["interval"]
    clustered = intervals(rows, speakers, Bootstrap())["interval"]
    assert clustered[1] - clustered[0] > 2 * (plain[1] - plain[0])


def test_the_interval_holds_the_rate_and_grows_with_confidence():
    rows = counts(*[(8, 1, 1, 0), (10, 0, 0, 0), (7, 2, 1, 1)] * 30)
    low, high = intervals(rows, None, Bootstrap(confidence=0.8))["interval"]
    wide_low, wide_high = intervals(rows, None, Bootstrap(confidence=0.99))["interval"]
    assert wide_low < low < tally(rows)["rate"] < high < wide_high


def test_groups_add_up_to_the_whole():
    rows = counts((9, 1, 0, 0), (0, 1, 0, 1), (5, 0, 2, 0))
    groups = tally_by(rows, ["b", "a", "b"])
    assert list(groups) == ["b", "a"]
    assert groups["b"]["n_utterances"] == 2
    for key in ("n_units", "errors", "insertions", "sentence_errors"):
        assert sum(group[key] for group in groups.values()) == tally(rows)[key]


def test_lengths_fall_into_ranges_that_sort():
    lengths = [0, 1, 4, 5, 19, 20, 999, 1000, 12345]
    labels = length_groups(counts(*[(n, 0, 0, 0) for n in lengths]))
    assert labels == ["0", "1-4", "1-4", "5-9", "10-19", "20-49", "500-999", "1000+", "1000+"]
    assert sorted(set(labels), key=length_order) == list(dict.fromkeys(labels))
