"""Resampling: lengths, quality, and that a result depends on nothing but the samples."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from espnet3.components.data.audio import change_rate, read_audio, read_duration, resampled_length
from tests.helpers.bad_audio import encode, tone
from tests.helpers.exhaustive import pairs

RATES = [(44100, 16000), (48000, 16000), (22050, 16000), (8000, 16000), (16000, 8000)]


def noise(n_samples, seed=0):
    return np.random.default_rng(seed).normal(0, 0.1, n_samples).astype(np.float32)


@pytest.mark.parametrize(("before", "after"), RATES)
def test_the_length_is_that_of_the_seconds_to_half_a_sample(before, after):
    for n_samples in [0, 1, 2, 3, 10, 799, 4410, 44099, 44100, 44101]:
        made = change_rate(noise(n_samples), before, after)
        assert len(made) == resampled_length(n_samples, before, after)
        assert abs(2 * (len(made) * before - n_samples * after)) <= before
        assert made.dtype == np.float32
        assert np.isfinite(made).all()


@pytest.mark.parametrize(("rates", "share"), pairs(RATES, [0.01, 0.3, 0.85]))
def test_a_tone_stays_the_same_tone(rates, share):
    before, after = rates
    hertz = share * min(before, after) / 2
    made = change_rate(tone(0.5, before, hertz=hertz), before, after)
    expected = tone(0.5, after, hertz=hertz)
    middle = slice(after // 20, -after // 20)
    error = np.sqrt(np.mean((made[middle] - expected[middle]) ** 2) / np.mean(expected**2))
    assert 20 * np.log10(error) < -60


@pytest.mark.parametrize(("before", "after"), [pair for pair in RATES if pair[0] > pair[1]])
def test_what_would_alias_is_removed(before, after):
    hertz = min(0.55 * after, 0.49 * before)
    made = change_rate(tone(0.5, before, hertz=hertz), before, after)
    middle = slice(after // 20, -after // 20)
    assert 20 * np.log10(np.abs(made[middle]).max() * 3) < -90


def test_the_result_depends_on_the_samples_alone():
    parts = [noise(n, seed=n) for n in (100, 44100, 7777, 160000)]
    alone = [change_rate(part, 44100, 16000) for part in parts]
    again = [change_rate(part, 44100, 16000) for part in reversed(parts)][::-1]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(lambda part: change_rate(part, 44100, 16000), parts))
    for one, two, three in zip(alone, again, together, strict=True):
        assert one.tobytes() == two.tobytes() == three.tobytes()


def test_channels_are_resampled_each_for_itself():
    both = np.stack([noise(5000), noise(5000, seed=1)], axis=1)
    made = change_rate(both, 44100, 16000)
    assert made.shape == (1814, 2)
    for channel in range(2):
        assert made[:, channel] == pytest.approx(
            change_rate(both[:, channel], 44100, 16000), abs=1e-6
        )


def test_a_part_is_that_part_of_the_whole_but_for_its_edges(tmp_path):
    path = tmp_path / "a.wav"
    path.write_bytes(encode(noise(3 * 44100), 44100))
    whole = read_audio(path, sample_rate=16000, resample=True).samples
    part = read_audio(path, sample_rate=16000, resample=True, start=1.0, end=2.0).samples
    assert len(part) == 16000
    assert part[400:-400] == pytest.approx(whole[16400:31600], abs=1e-5)


@pytest.mark.parametrize("n_samples", [1, 2205, 2206, 44101, 99999])
def test_the_duration_in_the_header_is_that_of_the_resampled_samples(tmp_path, n_samples):
    path = tmp_path / "a.wav"
    path.write_bytes(encode(noise(n_samples), 44100))
    samples, rate = read_audio(path, sample_rate=16000, resample=True)
    assert abs(len(samples) / rate - read_duration(path)) <= 0.5 / rate


def test_the_same_rate_leaves_the_samples_as_they_are():
    samples = noise(1000)
    assert np.array_equal(change_rate(samples, 16000, 16000), samples)
