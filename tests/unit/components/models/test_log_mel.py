import kaldi_native_fbank
import numpy as np
import pytest
import torch

from espnet3.components.models.log_mel import KALDI_FLOOR, LogMel
from espnet3.errors import ConfigError


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def _speech_like(n_samples, seed=0):
    """Noise whose loudness wanders over 60 dB, with a peak of 1."""
    rng = np.random.default_rng(seed)
    loudness = np.exp(3 * np.sin(np.arange(n_samples) / 700))
    samples = rng.normal(size=n_samples) * loudness
    return (samples / abs(samples).max()).astype(np.float32)


def _kaldi(samples, sample_rate, n_mels, window, **mel_options):
    options = kaldi_native_fbank.FbankOptions()
    options.frame_opts.samp_freq = sample_rate
    options.frame_opts.dither = 0.0
    options.frame_opts.preemph_coeff = 0.0
    options.frame_opts.remove_dc_offset = False
    options.frame_opts.window_type = {"hann": "hanning", "povey": "povey"}[window]
    options.mel_opts.num_bins = n_mels
    for name, value in mel_options.items():
        setattr(options.mel_opts, name, value)
    bank = kaldi_native_fbank.OnlineFbank(options)
    bank.accept_waveform(sample_rate, samples.tolist())
    bank.input_finished()
    return np.stack([bank.get_frame(i) for i in range(bank.num_frames_ready)])


@pytest.mark.parametrize("n_samples", [200, 12345, 16000])
@pytest.mark.parametrize(
    ("sample_rate", "n_mels", "window"), [(8000, 40, "povey"), (16000, 80, "hann")]
)
def test_features_are_those_of_kaldi_in_the_stated_convention(
    sample_rate, n_mels, window, n_samples
):
    n_samples = n_samples * sample_rate // 8000
    samples = _speech_like(n_samples)
    expected = _kaldi(samples, sample_rate, n_mels, window)
    feats, lengths = LogMel(sample_rate, n_mels, window=window)(
        torch.from_numpy(samples)[None], torch.tensor([n_samples])
    )
    assert lengths.tolist() == [len(expected)]
    assert expected.std() > 0.5
    np.testing.assert_allclose(feats[0], expected, atol=1e-3)


def test_limits_of_the_bands_mean_what_kaldi_means():
    samples = _speech_like(8000)
    expected = _kaldi(samples, 8000, 23, "povey", low_freq=100, high_freq=3400)
    front = LogMel(8000, 23, low_hz=100, high_hz=3400)
    feats, _ = front(torch.from_numpy(samples)[None], torch.tensor([8000]))
    np.testing.assert_allclose(feats[0], expected, atol=1e-3)


def test_silence_is_the_floor_as_in_kaldi():
    silence = np.zeros(400, np.float32)
    feats, _ = LogMel(8000, 40)(torch.from_numpy(silence)[None], torch.tensor([400]))
    np.testing.assert_allclose(feats[0], _kaldi(silence, 8000, 40, "povey"), atol=1e-5)
    assert feats.max() == feats.min() == torch.tensor(KALDI_FLOOR).log()


@pytest.mark.parametrize("normalize_peak", [False, True])
def test_frames_do_not_depend_on_what_lies_behind_the_end(normalize_peak):
    front = LogMel(8000, 40, normalize_peak=normalize_peak)
    lengths = torch.tensor([4003, 1000, 279, 280, 199, 1, 0])
    speech = 0.3 * torch.randn(len(lengths), 4003)
    for row, length in zip(speech, lengths.tolist(), strict=True):
        row[length:] = float("nan")
    feats, n_frames = front(speech, lengths)
    assert feats.isfinite().all()
    assert n_frames.tolist() == [48, 11, 1, 2, 1, 1, 1]
    for i, length in enumerate(lengths.tolist()):
        alone, n_alone = front(speech[i : i + 1, :length], lengths[i : i + 1])
        assert n_alone == n_frames[i]
        assert alone.shape == (1, n_alone.item(), 40)
        torch.testing.assert_close(feats[i, : n_alone.item()], alone[0], rtol=0, atol=1e-5)
        assert not feats[i, n_alone.item() :].any()


@pytest.mark.parametrize("n_samples", [0, 1, 100, 199])
def test_audio_shorter_than_a_window_is_one_finite_frame(n_samples):
    front = LogMel(8000, 40, normalize_peak=True)
    feats, n_frames = front(torch.randn(1, n_samples), torch.tensor([n_samples]))
    assert n_frames.tolist() == [1]
    assert feats.shape == (1, 1, 40)
    assert feats.isfinite().all()


def test_loudness_does_not_matter_once_the_peak_is_normalised():
    speech = torch.randn(1, 8000)
    speech /= speech.abs().max()
    lengths = torch.tensor([8000])
    expected, _ = LogMel(8000, 40)(speech, lengths)
    feats, _ = LogMel(8000, 40, normalize_peak=True)(0.018 * speech, lengths)
    torch.testing.assert_close(feats, expected, rtol=0, atol=1e-4)


def test_faint_noise_is_not_blown_up_to_full_scale():
    speech = 1e-7 * torch.randn(1, 8000)
    feats, _ = LogMel(8000, 40, normalize_peak=True)(speech, torch.tensor([8000]))
    loud, _ = LogMel(8000, 40)(torch.randn(1, 8000), torch.tensor([8000]))
    assert feats.mean() < loud.mean() - 10


def test_attributes_tell_the_rest_of_the_model_what_comes_out():
    front = LogMel(16000, 80, window_ms=32, shift_ms=12.5)
    assert (front.sample_rate, front.output_size, front.shift_seconds) == (16000, 80, 0.0125)
    assert front.n_fft == 512
    assert not front.state_dict()  # all follows from the settings
    assert "shift=200" in repr(front)


def test_the_spectrum_is_exact_under_autocast():
    front, speech = LogMel(8000, 40), 0.1 * torch.randn(2, 4000)
    lengths = torch.tensor([4000, 3000])
    expected, _ = front(speech, lengths)
    with torch.autocast("cpu", torch.bfloat16):
        feats, _ = front(speech, lengths)
    assert torch.equal(feats, expected)


def test_it_can_be_exported_for_any_batch_and_length():
    front = LogMel(8000, 40, normalize_peak=True)
    auto = torch.export.Dim.AUTO
    example = (torch.randn(3, 8000), torch.tensor([8000, 7000, 100]))
    exported = torch.export.export(front, example, dynamic_shapes=({0: auto, 1: auto}, {0: auto}))
    speech, lengths = torch.randn(2, 4003), torch.tensor([4003, 150])
    feats, n_frames = exported.module()(speech, lengths)
    torch.testing.assert_close(feats, front(speech, lengths)[0])
    assert n_frames.tolist() == [48, 1]


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"n_mels": 200}, "n_mels: 100"),
        ({"n_mels": 0}, "n_mels: 40"),
        ({"high_hz": 8000}, "between 0 and 4000.0 Hz"),
        ({"low_hz": 4000}, "low_hz: 20"),
        ({"window_ms": 0.025}, "window_ms: 25"),
        ({"shift_ms": 0.01}, "shift_ms: 10"),
        ({"window": "hamming"}, "povey, hann"),
        ({"log_floor": 0.0}, "log_floor: 1.0e-7"),
    ],
)
def test_settings_that_cannot_work_are_refused(options, hint):
    with pytest.raises(ConfigError, match=hint):
        LogMel(**{"sample_rate": 8000, "n_mels": 40, **options})
