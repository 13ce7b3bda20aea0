import math

import numpy as np
import pytest

from espnet3.components.metrics import error_rate
from espnet3.components.metrics.error_rate import percentile_interval, resample_sums


def rows_of(n: int, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, 8, n)
    return np.stack([generator.binomial(lengths, 0.2), lengths], axis=1)


def test_sums_are_distributed_as_if_utterances_were_drawn_one_by_one():
    rows = rows_of(150)
    ours = resample_sums(rows, 20_000)
    draws = np.random.default_rng(1).integers(0, len(rows), (20_000, len(rows)))
    plain = rows[draws].sum(axis=1)
    np.testing.assert_allclose(ours.mean(axis=0), plain.mean(axis=0), rtol=0.005)
    np.testing.assert_allclose(ours.std(axis=0), plain.std(axis=0), rtol=0.03)
    correlation = np.corrcoef(ours.T)[0, 1]
    assert correlation == pytest.approx(np.corrcoef(plain.T)[0, 1], abs=0.03)


def test_each_resample_draws_as_many_utterances_as_there_are():
    rows = np.ones((37, 1), dtype=np.int64)
    assert set(resample_sums(rows, 50).ravel()) == {37.0}


def test_the_order_of_utterances_does_not_matter_and_the_seed_does():
    rows = rows_of(100)
    assert np.array_equal(resample_sums(rows, 20), resample_sums(rows[::-1], 20))
    assert not np.array_equal(resample_sums(rows, 20), resample_sums(rows, 20, seed=1))


def test_drawing_in_small_steps_changes_nothing(monkeypatch):
    rows = rows_of(100)
    whole = resample_sums(rows, 30)
    monkeypatch.setattr(error_rate, "_DRAWS_AT_ONCE", 70)
    assert np.array_equal(resample_sums(rows, 30), whole)


def test_the_interval_of_independent_words_is_that_of_theory():
    n = 1000
    rows = np.stack([np.arange(n) < 200, np.ones(n)], axis=1).astype(np.int64)
    sums = resample_sums(rows, 10_000)
    low, high = percentile_interval(sums[:, 0], sums[:, 1], 0.95)
    half = 100 * 1.96 * math.sqrt(0.2 * 0.8 / n)
    assert low == pytest.approx(20 - half, abs=0.25)
    assert high == pytest.approx(20 + half, abs=0.25)


def test_draws_without_words_are_left_out():
    errors, words = np.array([1.0, 0.0]), np.array([2.0, 0.0])
    assert percentile_interval(errors, words, 0.9) == (50.0, 50.0)
    assert percentile_interval(errors, np.zeros(2), 0.9) is None
