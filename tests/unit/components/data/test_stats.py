"""Statistics of features: as exact as two passes over all, whatever the offset."""

import math

import numpy as np
import pytest

from espnet3.components.data.errors import DataError
from espnet3.components.data.stats import Moments, MomentsSum, load_stats, save_stats


def merged(parts):
    total = MomentsSum()
    for part in parts:
        total.add(Moments.of(part))
    return total.total()


@pytest.mark.parametrize(
    ("offset", "scale", "tolerance"),
    # A mean of 1e6 is itself rounded to 1e-10, a tenth of a millionth of the deviation.
    [(0, 1, 1e-13), (1e6, 1e-3, 1e-8), (-1e8, 1e-4, 1e-5), (1e-9, 1e-12, 1e-12), (0, 1e12, 1e-13)],
)
def test_any_offset_gives_the_variance_of_two_passes(offset, scale, tolerance):
    random = np.random.default_rng(0)
    parts = [offset + scale * random.standard_normal((n, 5)) for n in random.integers(1, 60, 2000)]
    data = np.concatenate(parts)
    mean = np.array([math.fsum(column) / len(data) for column in data.T])
    var = np.array([math.fsum(column) / len(data) for column in np.square(data - mean).T])
    found = merged(parts)
    assert found.count == len(data)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-15, atol=1e-15 * scale)
    np.testing.assert_allclose(found.var, var, rtol=tolerance)


def test_squares_alone_would_have_lost_the_variance():
    data = 1e6 + 1e-3 * np.random.default_rng(1).standard_normal((10_000, 1))
    naive = np.square(data).mean(axis=0) - data.mean(axis=0) ** 2
    exact = (data - 1e6).var(axis=0)
    assert abs(naive - exact) > 0.9 * exact
    np.testing.assert_allclose(merged([data]).var, exact, rtol=1e-9)


def test_many_small_parts_do_not_add_up_their_rounding():
    frame = np.float64(0.1)  # no sum of it is exact
    found = merged([[frame]] * 20_000)
    assert found.mean == frame
    assert found.deviation == 0


def test_a_long_waveform_and_features_of_two_axes():
    speech = 3 + np.random.default_rng(2).standard_normal(50_000).astype(np.float32)
    found = Moments.of(speech)
    np.testing.assert_allclose(found.var, speech.astype(np.float64).var(), rtol=1e-13)
    assert found.mean.shape == ()
    assert Moments.of(np.ones((7, 2, 3))).mean.shape == (2, 3)


def test_an_empty_part_counts_for_nothing():
    assert Moments.of(np.empty((0, 3))).count == 0
    found = merged([np.empty((0, 2)), [[1.0, 2.0]], np.empty((0, 2))])
    assert found.count == 1
    assert found.mean.tolist() == [1, 2]


def test_another_dimension_is_refused():
    with pytest.raises(DataError, match=r"\[80\] and \[40\].*along its first axis"):
        merged([np.ones((1, 80)), np.ones((1, 40))])


@pytest.mark.parametrize("shape", [(10,), (10, 3), (10, 2, 3)])
def test_plain_values_hold_each_bit(shape):
    moments = Moments.of(np.random.default_rng(3).standard_normal(shape))
    again = Moments.from_json(moments.to_json())
    assert again.count == 10
    assert again.mean.tobytes() == moments.mean.tobytes()
    assert again.deviation.tobytes() == moments.deviation.tobytes()
    assert again.mean.shape == shape[1:]


def test_a_file_has_the_known_sums_and_the_sound_variance(awkward):
    data = np.random.default_rng(4).standard_normal((100, 3))
    path = awkward / "feats_stats.npz"
    save_stats(path, Moments.of(data))
    with np.load(path) as file:
        assert file["count"] == 100
        np.testing.assert_allclose(file["sum"], data.sum(0))
        np.testing.assert_allclose(file["sum_square"], (data**2).sum(0))
    found = load_stats(path)
    np.testing.assert_allclose(found.mean, data.mean(0))
    np.testing.assert_allclose(found.var, data.var(0))


def test_the_same_moments_are_the_same_bytes(tmp_path):
    moments = Moments.of(np.ones((3, 2)))
    save_stats(tmp_path / "a", moments)
    save_stats(tmp_path / "b", moments)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_file_of_sums_alone_is_read(tmp_path):
    path = tmp_path / "old.npz"
    np.savez(path, count=4, sum=[8.0], sum_square=[20.0])
    found = load_stats(path)
    assert (found.count, found.mean, found.var) == (4, [2.0], [1.0])


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "does not exist"),
        (b"", "cannot be read"),
        (b"text", "cannot be read"),
        (b"PK\x03\x04 cut", "cannot be read"),
        ({"count": 3}, "has no 'sum'"),
        ({"count": 0, "sum": [0.0], "sum_square": [0.0]}, "its count is 0"),
        ({"mean": np.array([None])}, "cannot be read"),
    ],
)
def test_a_bad_file_says_how_to_make_it(tmp_path, content, problem):
    path = tmp_path / "feats_stats.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        np.savez(path, **content)
    with pytest.raises(DataError, match=f"{problem}.*--stages collect_stats"):
        load_stats(path)


def test_a_truncated_file_is_not_taken_for_whole(tmp_path):
    path = tmp_path / "feats_stats.npz"
    save_stats(path, Moments.of(np.ones((3, 2))))
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match="cannot be read"):
        load_stats(path)
