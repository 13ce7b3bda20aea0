import io
from base64 import b64decode

import numpy as np
import pytest
import soundfile

from espnet3.systems.base.report_clips import ClipMaker, NoClip, ReportConfig


def decoded(clip):
    head, _, data = clip.address.partition(",")
    assert head in ("data:audio/wav;base64", "data:audio/mpeg;base64")
    return soundfile.read(io.BytesIO(b64decode(data)), dtype="int16")


def make(speech, seconds=None, **sample):
    return ClipMaker(ReportConfig()).make({"speech": speech, **sample}, seconds)


def test_audio_comes_back_as_it_was():
    speech = np.sin(np.arange(1600) / 9).astype(np.float32)
    samples, rate = decoded(make(speech, sample_rate=16000))
    assert rate == 16000
    np.testing.assert_allclose(samples / 32767, speech, atol=1e-4)


def test_stereo_whole_numbers_and_what_no_file_can_hold():
    assert decoded(make(np.zeros((800, 2), np.float32), sample_rate=8000))[0].shape == (800, 2)
    assert decoded(make(np.zeros((2, 800), np.float32), sample_rate=8000))[0].shape == (800, 2)
    assert decoded(make(np.array([1, -5], np.int16), sample_rate=8000))[0].tolist() == [1, -5]
    wild = np.array([np.nan, np.inf, -9, 0.5])
    assert decoded(make(wild, sample_rate=8000))[0].tolist() == [0, 32767, -32767, 16384]


def test_rate_follows_from_the_duration():
    assert decoded(make(np.zeros(8010), seconds=1.0))[1] == 8000
    with pytest.raises(NoClip, match=r"report: \{sample_rate: 16000\}"):
        make(np.zeros(8800), seconds=1.0)
    with pytest.raises(NoClip, match="sample_rate"):
        make(np.zeros(8000))


@pytest.mark.parametrize(
    ("speech", "problem"),
    [
        (np.zeros(0), "speech is empty"),
        (np.zeros((50, 80)), r"no waveform, but float64 of shape \[50, 80\]"),
        (["a"], "no waveform"),
    ],
)
def test_what_is_no_audio_is_told(speech, problem):
    with pytest.raises(NoClip, match=problem):
        make(speech, sample_rate=8000)


def test_the_page_has_a_limit():
    maker = ClipMaker(ReportConfig(audio_megabytes=0.1, n_worst=2))
    noise = {"speech": np.random.default_rng(0).uniform(-1, 1, 16000), "sample_rate": 8000}
    assert maker.make(noise, None).seconds == 2
    second = maker.make(noise, None)
    assert maker.n_bytes == 2 * len(second.address)
    with pytest.raises(NoClip, match=r"at most 0\.1 MB"):
        maker.make(noise, None)


def test_long_audio_is_compressed_so_that_more_of_it_fits():
    maker = ClipMaker(ReportConfig(audio_megabytes=2))
    tone = {"speech": 0.5 * np.sin(np.arange(16000 * 15) / 9), "sample_rate": 16000}
    clip = maker.make(tone, None)
    assert clip.address.startswith("data:audio/mpeg;base64,")
    assert len(clip.address) < 0.1 * 2e6
    samples, rate = decoded(clip)
    assert rate == 16000
    assert abs(len(samples) / rate - 15) < 0.2
    assert 0.4 < np.abs(samples).max() / 32767 < 0.6
