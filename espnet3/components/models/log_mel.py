"""Log-mel front end: from samples to mel energies."""

import math

import torch
from torch import Tensor, nn

from espnet3.components.models.frames import zero_padding
from espnet3.errors import ConfigError

KALDI_FLOOR = torch.finfo(torch.float32).eps
_LEAST_PEAK = 1e-4  # noise that is fainter than -80 dB is not blown up to full scale
_WINDOWS = ("povey", "hann")


class LogMel(nn.Module):
    """Logarithms of the energy in overlapping bands of frequency, every few milliseconds.

    The convention is that of Kaldi's filter banks without dither, pre-emphasis and removal of the
    mean: frames that lie wholly within the audio (`snip_edges`), a Povey window (Hann to the power
    of 0.85), the power spectrum of the next power of two, triangles on the mel scale of HTK,
    `1127 ln(1 + f / 700)`, and the natural logarithm of what is at least `log_floor`. In that
    convention kaldi-native-fbank gives the same to 1e-3. Samples are between -1 and 1.

    Audio shorter than a window is filled up with zeros and gives one frame, so there always is
    one. What lies behind the end of an item does not count, and frames there are 0.

    Args:
        sample_rate: Of the audio, in Hz. The front end does not resample.
        n_mels: Bands; the size of a frame.
        window_ms: Length of a frame.
        shift_ms: From one frame to the next.
        low_hz: Where the lowest band begins.
        high_hz: Where the highest band ends; None for half of the sample rate.
        window: `povey` or `hann`.
        log_floor: The least energy.
        normalize_peak: First bring the loudest sample of each item to 1, for corpora of different
            loudness. It needs the whole utterance.

    Raises:
        ConfigError: The bands do not fit the sample rate, or some would be empty.

    Example:
        >>> feats, lengths = LogMel(8000, n_mels=40)(torch.zeros(1, 8000), torch.tensor([8000]))
        >>> feats.shape, lengths
        (torch.Size([1, 98, 40]), tensor([98]))
    """

    window: Tensor
    filters: Tensor

    def __init__(  # noqa: PLR0913 - the settings that users know by these names
        self,
        sample_rate: int = 16000,
        n_mels: int = 80,
        window_ms: float = 25,
        shift_ms: float = 10,
        *,
        low_hz: float = 20.0,
        high_hz: float | None = None,
        window: str = "povey",
        log_floor: float = KALDI_FLOOR,
        normalize_peak: bool = False,
    ) -> None:
        super().__init__()
        self.sample_rate = sample_rate
        self.output_size = n_mels
        self.window_samples = int(sample_rate * window_ms / 1000)
        self.shift_samples = int(sample_rate * shift_ms / 1000)
        self.log_floor = log_floor
        self.normalize_peak = normalize_peak
        _check(self.window_samples, self.shift_samples, window, log_floor)
        self.shift_seconds = self.shift_samples / sample_rate
        self.n_fft = 2 ** math.ceil(math.log2(self.window_samples))
        high = sample_rate / 2 if high_hz is None else high_hz
        filters = mel_filters(sample_rate, self.n_fft, n_mels, low_hz, high)
        # They follow from the settings, so they are in no checkpoint.
        shape = _window(window, self.window_samples, self.n_fft)
        self.register_buffer("window", shape, persistent=False)
        self.register_buffer("filters", filters, persistent=False)

    def forward(self, speech: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return features [batch, frames, n_mels], and how many frames each item has.

        Args:
            speech: Samples, [batch, time]; whatever lies behind the end of an item is ignored.
            lengths: Samples of each item.
        """
        # A spectrum in half precision would lose all that is 60 dB below the loudest.
        with torch.autocast(speech.device.type, enabled=False):
            samples = zero_padding(speech.float(), lengths)
            if self.normalize_peak:
                samples = samples / _peak(samples).clamp_min(_LEAST_PEAK)
            n_frames = self.n_frames(lengths)
            # Digital silence has no energy at all, and log(0) is -inf.
            feats = self._energies(samples).clamp_min(self.log_floor).log()
            return zero_padding(feats, n_frames), n_frames

    def n_frames(self, lengths: Tensor) -> Tensor:
        """Return the number of frames for numbers of samples; at least 1."""
        return 1 + (lengths - self.window_samples).clamp_min(0) // self.shift_samples

    def _energies(self, samples: Tensor) -> Tensor:
        missing = max(0, self.window_samples - samples.shape[1])
        # The window is 0 behind `window_samples`; the FFT still wants samples to be there.
        samples = nn.functional.pad(samples, (0, missing + self.n_fft - self.window_samples))
        spectrum = torch.stft(
            samples,
            self.n_fft,
            self.shift_samples,
            # `model.half()` converts buffers as well.
            window=self.window.float(),
            # Kaldi's `snip_edges`: by default torch adds reflected samples and shifts the frames.
            center=False,
            return_complex=True,
        )
        # Not abs() squared, which takes a root for nothing.
        power = spectrum.real.square() + spectrum.imag.square()
        return power.transpose(1, 2) @ self.filters.float()

    def extra_repr(self) -> str:
        """Return what `print(model)` shows."""
        return (
            f"sample_rate={self.sample_rate}, n_mels={self.output_size}, "
            f"window={self.window_samples}, shift={self.shift_samples}, n_fft={self.n_fft}, "
            f"normalize_peak={self.normalize_peak}"
        )


def mel_filters(sample_rate: int, n_fft: int, n_mels: int, low_hz: float, high_hz: float) -> Tensor:
    """Return triangles [n_fft // 2 + 1, n_mels] that are straight on the mel scale of HTK.

    Raises:
        ConfigError: See `LogMel`.
    """
    if n_mels < 1 or not 0 <= low_hz < high_hz <= sample_rate / 2:
        raise ConfigError(
            f"n_mels is {n_mels}, from low_hz {low_hz} to high_hz {high_hz}, at a sample_rate of "
            f"{sample_rate}: there must be at least one band, between 0 and {sample_rate / 2} Hz.",
            fix="Write for example: n_mels: 40, low_hz: 20, high_hz: null",
        )
    ends = _mel(torch.tensor([low_hz, high_hz], dtype=torch.float64))
    edges = torch.linspace(0, 1, n_mels + 2, dtype=torch.float64) * (ends[1] - ends[0]) + ends[0]
    bins = _mel(torch.arange(n_fft // 2 + 1, dtype=torch.float64) * sample_rate / n_fft)[:, None]
    rising = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    filters = torch.minimum(rising, falling).clamp_min(0)
    n_empty = int((filters.sum(0) == 0).sum())
    if n_empty:
        raise ConfigError(
            f"n_mels is {n_mels}, but {n_empty} of these bands are narrower than the "
            f"{sample_rate / n_fft:.1f} Hz that a window can resolve.",
            fix="Write a smaller number, for "
            f"example n_mels: {max(1, n_mels // 2)}, or a longer window_ms.",
        )
    return filters.float()


def _mel(hertz: Tensor) -> Tensor:
    return 1127.0 * torch.log1p(hertz / 700.0)


def _window(name: str, n_samples: int, n_fft: int) -> Tensor:
    # Kaldi's windows are symmetric; periodic is torch's default.
    hann = torch.hann_window(n_samples, periodic=False, dtype=torch.float64)
    shape = hann**0.85 if name == "povey" else hann
    return nn.functional.pad(shape, (0, n_fft - n_samples)).float()


def _peak(samples: Tensor) -> Tensor:
    # amax() of no samples is an error.
    if samples.shape[1] == 0:
        return samples.new_ones(len(samples), 1)
    return samples.abs().amax(1, keepdim=True)


def _check(window_samples: int, shift_samples: int, window: str, log_floor: float) -> None:
    if window_samples < 2 or shift_samples < 1:
        raise ConfigError(
            f"A window of {window_samples} samples every {shift_samples} is too short. The times "
            "are in milliseconds; write: window_ms: 25, shift_ms: 10"
        )
    if window not in _WINDOWS:
        raise ConfigError(f"window is {window!r}.", fix=f"Write one of: {', '.join(_WINDOWS)}")
    if not log_floor > 0:
        raise ConfigError(
            f"log_floor is {log_floor}.", fix="Write a positive energy: log_floor: 1.0e-7"
        )
