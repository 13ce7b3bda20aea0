import numpy as np
import pytest

from espnet3.components.data.augmentation import Gain, SpeedPerturb, change_speed
from espnet3.components.data.dataset import CombinedDataset, TransformedDataset, sample_rng
from espnet3.components.data.errors import DataError
from espnet3.errors import ConfigError
from tests.helpers.exhaustive import pairs

RATE = 16000


def tone(hertz, n=RATE, dtype=np.float32, speed=1.0):
    return np.sin(2 * np.pi * hertz * np.arange(n) * speed / RATE).astype(dtype)


@pytest.mark.parametrize(("factor", "hertz"), pairs([0.5, 0.9, 1.05, 1.1, 2.0], [100, 1000, 3000]))
def test_a_tone_at_another_speed_is_the_tone_of_that_pitch(factor, hertz):
    changed = change_speed(tone(hertz), factor)
    expected = tone(hertz, len(changed), speed=factor)
    assert len(changed) == int(np.ceil(RATE / factor - 1e-9))
    assert changed.dtype == np.float32
    inner = slice(100, -100)
    assert np.abs(changed[inner] - expected[inner]).max() < 1e-3


def test_what_would_alias_is_filtered_out():
    assert np.abs(change_speed(tone(6000), 2.0)[100:-100]).max() < 1e-3


def test_speed_of_channels_and_of_nothing():
    stereo = np.stack([tone(100), tone(200)], axis=1)
    assert np.array_equal(change_speed(stereo, 1.1)[:, 1], change_speed(tone(200), 1.1))
    assert len(change_speed(tone(100)[:0], 1.1)) == 0
    assert len(change_speed(tone(100)[:3], 0.9)) == 4
    assert change_speed(tone(100), 1.0) is not None


def test_the_same_generator_gives_the_same_sample():
    sample = {"utt_id": "a", "speech": tone(100)}
    for augment in (Gain(-6, 6), SpeedPerturb([0.8, 0.9, 1.1, 1.2, 1.3])):
        first = augment(sample, sample_rng(1, 0, 5))["speech"]
        assert np.array_equal(augment(sample, sample_rng(1, 0, 5))["speech"], first)
        sums = {float(abs(augment(sample, sample_rng(1, e, 5))["speech"]).sum()) for e in range(9)}
        assert len(sums) > 1
        assert first.dtype == np.float32
        assert np.array_equal(sample["speech"], tone(100))


def test_gain_stays_in_its_range():
    gains = [Gain(-6, 0)({"speech": np.ones(1)}, sample_rng(0, 0, i))["speech"][0]
             for i in range(200)]  # fmt: skip
    assert 0.501 <= min(gains) < 0.55
    assert 0.95 < max(gains) <= 1


def test_transforms_of_a_dataset_get_the_generator():
    def plain(sample):
        return {**sample, "plain": True}

    def noisy(sample, rng):
        return {**sample, "noise": rng.random()}

    class Drawing(list):
        def sample_with(self, index, rng):
            return {**self[index], "drawn": rng.random()}

    inner = TransformedDataset(Drawing([{"x": 0}, {"x": 1}]), noisy, plain)
    dataset = CombinedDataset([[{"x": 2}], inner])
    assert dataset.uses_rng()
    assert not CombinedDataset([[{"x": 2}]]).uses_rng()
    sample = dataset.sample_with(2, sample_rng(0, 0, 2))
    rng = sample_rng(0, 0, 2)
    assert sample == {"x": 1, "drawn": rng.random(), "noise": rng.random(), "plain": True}
    assert dataset.sample_with(0, rng) == {"x": 2}
    # Outside of training there is a generator as well, always the same one.
    assert inner[0] == inner[0] != inner[1]
    assert inner[-1] == inner[1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gain(6, -6), "Swap them"),
        (lambda: SpeedPerturb([0.9, 0]), r"write factors: \[0.9, 1.0, 1.1\]"),
        (lambda: SpeedPerturb([]), "write factors"),
    ],
)
def test_wrong_arguments_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_field_that_is_not_there_is_named():
    with pytest.raises(DataError, match=r"'speech'.*None in a sample with audio.*key: NAME"):
        Gain()({"audio": tone(100)}, sample_rng(0, 0, 0))
