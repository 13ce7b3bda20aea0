"""Long audio: windows give the frames of the whole utterance, at the right times."""

from itertools import pairwise

import pytest
import torch

from espnet3.components.decoding.windows import encode_windows, join_texts, windows_of
from espnet3.errors import ConfigError

RATE = 100
HOP = 4  # samples of an encoder frame


class Convolutions(torch.nn.Module):
    """An encoder whose frames see 14 samples to each side."""

    sample_rate = RATE
    frame_seconds = HOP / RATE

    def __init__(self, padding=1):
        super().__init__()
        torch.manual_seed(0)
        options = {"kernel_size": 5, "padding": 2 * padding}
        self.layers = torch.nn.Sequential(
            torch.nn.Conv1d(1, 4, stride=2, **options),
            torch.nn.Tanh(),
            torch.nn.Conv1d(4, 4, stride=2, **options),
            torch.nn.Tanh(),
            torch.nn.Conv1d(4, 3, kernel_size=5, padding=2 * padding),
        ).double()
        self.largest = (0, 0)

    def encode(self, speech, lengths):
        self.largest = max(self.largest, tuple(speech.shape))
        encoded = [
            self.layers(s[None, None, :n])[0].T for s, n in zip(speech, lengths, strict=True)
        ]
        n_frames = torch.tensor([len(frames) for frames in encoded])
        return torch.nn.utils.rnn.pad_sequence(encoded, batch_first=True), n_frames


def speech_of(n_samples):
    return torch.randn(n_samples, generator=torch.Generator().manual_seed(1)).double()


def check_same(model, n_samples, window, overlap, batch_size=3):
    speech = speech_of(n_samples)
    whole, lengths = model.encode(speech[None], torch.tensor([n_samples]))
    found, n_frames = encode_windows(model, speech, window, overlap, batch_size)
    assert n_frames.tolist() == lengths.tolist() == [found.shape[1]]
    torch.testing.assert_close(found, whole.detach(), atol=1e-12, rtol=0)


@pytest.mark.parametrize("n_windows", [1, 2, 3, 7])
def test_windows_give_the_whole_at_all_lengths_around_the_boundaries(n_windows):
    window, overlap = 200, 60
    border = window + (n_windows - 1) * (window - overlap)
    for n_samples in range(border - 2 * HOP - 1, border + 2 * HOP + 2):
        check_same(Convolutions(), n_samples, window / RATE, overlap / RATE)


@pytest.mark.parametrize(("window", "overlap"), [(2.013, 0.577), (1.37, 0.66), (3.999, 0.71)])
def test_windows_need_not_be_whole_frames(window, overlap):
    for n_samples in range(900, 960):
        check_same(Convolutions(), n_samples, window, overlap)


def test_an_encoder_that_cuts_off_the_ends_keeps_its_times():
    for n_samples in range(500, 520):
        check_same(Convolutions(padding=0), n_samples, 2.0, 0.8)


def test_short_audio_is_one_window():
    check_same(Convolutions(), 30, 2.0, 0.6)


def test_the_size_of_what_is_encoded_at_a_time_is_bounded():
    model = Convolutions()
    encode_windows(model, speech_of(10_000), 2.0, 0.6, batch_size=3)
    assert model.largest == (3, 200)


def test_samples_may_be_an_array():
    model = Convolutions()
    speech = speech_of(700)
    expected = encode_windows(model, speech, 2.0, 0.6)[0]
    torch.testing.assert_close(encode_windows(model, speech.numpy(), 2.0, 0.6)[0], expected)


def test_each_sample_is_in_a_window_and_none_is_too_long():
    for n_samples in range(150, 2000, 7):
        windows = windows_of(Convolutions(), n_samples, 2.0, 0.6)
        assert windows[0].start == 0
        assert windows[-1].end == n_samples
        assert all(a.end - b.start >= 60 for a, b in pairwise(windows))
        assert all(window.end - window.start <= 200 for window in windows)


@pytest.mark.parametrize(("window", "overlap"), [(2.0, 1.0), (2.0, 0.0), (2.0, 3.0), (0.0, 0.0)])
def test_windows_that_cannot_be_joined_are_refused(window, overlap):
    with pytest.raises(ConfigError, match="overlap_seconds: 4"):
        encode_windows(Convolutions(), speech_of(500), window, overlap)


def test_an_overlap_shorter_than_what_the_encoder_cuts_off_is_refused():
    with pytest.raises(ConfigError, match="longer overlap"):
        encode_windows(Convolutions(padding=0), speech_of(500), 2.0, 0.08)


@pytest.mark.parametrize(
    ("texts", "joined"),
    [
        ([], ""),
        (["", "one", ""], "one"),
        (["a b c d", "c d e f", "e f g"], "a b c d e f g"),
        (["one two thr", "wo three four"], "one two thr wo three four"),
        (["a b c d x", "y c d e"], "a b c d e"),
    ],
)
def test_texts_are_joined_where_they_agree(texts, joined):
    assert join_texts(texts) == joined
