import random

import jiwer
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from espnet3.components.metrics.error_rate import align, count_edits

WORDS = st.lists(st.sampled_from(["a", "b", "c", "é", "東京"]), max_size=12)
JIWER_EXAMPLES = [
    (["hello world"], ["hello duck"]),
    (["hello world", "i like monthy python"], ["hello duck", "i like python"]),
    (
        ["short one here", "quite a bit of longer sentence"],
        ["shoe order one", "quite bit of an even longest sentence here"],
    ),
    ([""], ["now defined behaviour"]),
]
CHARACTER_EXAMPLES = [(["i can spell", "i hope"], ["i kan cpell", "i hop"]), ([""], ["abcde"])]


def random_texts(n_pairs: int) -> tuple[list[str], list[str]]:
    chance = random.Random(7)
    words = ["the", "a", "cat", "Cat", "naïve", "東京", "don't", "x", "yes", "no", "😀"]
    references, hypotheses = [], []
    for _ in range(n_pairs):
        reference = chance.choices(words, k=chance.randint(0, 9))
        hypothesis = [w if chance.random() < 0.7 else chance.choice(words) for w in reference]
        if chance.random() < 0.3:
            hypothesis = hypothesis[chance.randint(0, 3) :]
        if chance.random() < 0.3:
            hypothesis.insert(chance.randint(0, len(hypothesis)), chance.choice(words))
        references.append(" ".join(reference))
        hypotheses.append(" ".join(hypothesis))
    return references, hypotheses


@pytest.mark.parametrize("n_pairs", [5_000, pytest.param(100_000, marks=pytest.mark.exhaustive)])
def test_random_pairs_are_counted_as_by_jiwer(n_pairs):
    references, hypotheses = random_texts(n_pairs)
    assert "" in references
    assert "" in hypotheses
    pairs = zip(map(str.split, references), map(str.split, hypotheses), strict=True)
    totals = count_edits(pairs).sum(axis=0).tolist()
    theirs = jiwer.process_words(references, hypotheses)
    assert totals == [theirs.hits, theirs.substitutions, theirs.deletions, theirs.insertions]
    errors, words = sum(totals[1:]), sum(totals[:3])
    assert errors / words == theirs.wer == jiwer.wer(references, hypotheses)


@pytest.mark.parametrize(("references", "hypotheses"), JIWER_EXAMPLES)
def test_published_examples_of_word_errors(references, hypotheses):
    pairs = zip(map(str.split, references), map(str.split, hypotheses), strict=True)
    theirs = jiwer.process_words(references, hypotheses)
    expected = [theirs.hits, theirs.substitutions, theirs.deletions, theirs.insertions]
    assert count_edits(pairs).sum(axis=0).tolist() == expected


@pytest.mark.parametrize(("references", "hypotheses"), CHARACTER_EXAMPLES)
def test_published_examples_of_character_errors(references, hypotheses):
    theirs = jiwer.process_characters(references, hypotheses)
    expected = [theirs.hits, theirs.substitutions, theirs.deletions, theirs.insertions]
    counts = count_edits(zip(references, hypotheses, strict=True))
    assert counts.sum(axis=0).tolist() == expected


def test_the_figures_that_jiwer_prints_for_its_example():
    references, hypotheses = JIWER_EXAMPLES[2]
    pairs = zip(map(str.split, references), map(str.split, hypotheses), strict=True)
    assert count_edits(pairs).sum(axis=0).tolist() == [5, 2, 2, 4]  # wer=88.89%


@given(WORDS, WORDS)
def test_an_alignment_turns_the_reference_into_the_hypothesis(reference, hypothesis):
    rebuilt, counts = [], dict.fromkeys(["equal", "replace", "delete", "insert"], 0)
    position = 0
    for kind, ref_start, ref_stop, hyp_start, hyp_stop in align(reference, hypothesis):
        assert ref_start == position
        position = ref_stop
        kept = reference[ref_start:ref_stop] if kind == "equal" else hypothesis[hyp_start:hyp_stop]
        rebuilt += kept
        counts[kind] += max(ref_stop - ref_start, hyp_stop - hyp_start)
    assert position == len(reference)
    assert rebuilt == hypothesis
    assert count_edits([(reference, hypothesis)]).tolist() == [list(counts.values())]


@given(st.text(max_size=12), st.text(max_size=12))
def test_a_text_is_counted_by_its_characters(reference, hypothesis):
    as_lists = count_edits([(list(reference), list(hypothesis))])
    assert count_edits([(reference, hypothesis)]).tolist() == as_lists.tolist()


def test_an_empty_reference_has_insertions_only_and_two_empty_texts_have_nothing():
    counts = count_edits([([], ["a", "b"]), ([], []), (["a"], [])])
    assert counts.tolist() == [[0, 0, 0, 2], [0, 0, 0, 0], [0, 0, 1, 0]]


def test_no_pairs_give_no_rows():
    counts = count_edits([])
    assert counts.shape == (0, 4)
    assert counts.dtype == np.int64
