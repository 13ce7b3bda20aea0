import pytest
from hypothesis import given
from hypothesis import strategies as st

from espnet3.components.metrics.error_rate import format_alignment


def test_columns_line_up_and_case_is_kept():
    reference = ["The", "cat", "sat", "on", "mat"]
    hypothesis = ["the", "cat", "sat", "the", "big", "mat"]
    assert format_alignment(reference, hypothesis).splitlines() == [
        "REF:  The cat sat *** on  mat",
        "HYP:  the cat sat the big mat",
        "Eval: S           I   S",
    ]


@pytest.mark.parametrize(
    ("reference", "hypothesis", "lines"),
    [
        ([], ["a"], ["REF:  *", "HYP:  a", "Eval: I"]),
        (["ab"], [], ["REF:  ab", "HYP:  **", "Eval: D"]),
        ([], [], ["REF:", "HYP:", "Eval:"]),
        (["a"], ["a"], ["REF:  a", "HYP:  a", "Eval:"]),
    ],
)
def test_one_side_may_be_empty(reference, hypothesis, lines):
    assert format_alignment(reference, hypothesis).splitlines() == lines


def test_wide_characters_take_two_columns_and_accents_none():
    text = format_alignment(["東京", "cafe\u0301", "x"], ["大阪市", "cafe", "x"])
    assert text.splitlines() == [
        "REF:  東京   cafe\u0301 x",
        "HYP:  大阪市 cafe x",
        "Eval: S      S",
    ]


def test_a_blank_that_is_a_unit_can_be_seen():
    assert format_alignment("a b", "ab").splitlines() == [
        "REF:  a \u2423 b",
        "HYP:  a * b",
        "Eval:   D",
    ]


@given(st.lists(st.text(min_size=1), max_size=6), st.lists(st.text(min_size=1), max_size=6))
def test_whatever_the_words_hold_it_is_three_lines(reference, hypothesis):
    assert len(format_alignment(reference, hypothesis).splitlines()) == 3
