"""Change the sample rate of audio, by the soxr library at its high quality."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]


def resample(samples: "Array", from_rate: int, to_rate: int) -> "Array":
    """Return [samples] or [samples, channels] at another rate, as float32.

    The same samples give the same result on any worker. Tones up to 0.85 of half the lower
    rate stay the same to within -60 dB; what would come back as another tone is removed.

    Args:
        samples: Real numbers of full scale 1. Peaks may come out slightly higher.
        from_rate: Their rate in Hz.
        to_rate: The rate of the result, which has `resampled_length` samples.

    Example:
        >>> import numpy as np
        >>> resample(np.zeros(44100, np.float32), 44100, 16000).shape
        (16000,)
    """
    import numpy as np

    samples = np.ascontiguousarray(samples, dtype=np.float32)
    if from_rate == to_rate:
        return samples
    n_samples = resampled_length(len(samples), from_rate, to_rate)
    if not n_samples:
        return np.zeros((0, *samples.shape[1:]), np.float32)
    import soxr

    changed = soxr.resample(samples, from_rate, to_rate, quality="HQ")[:n_samples]
    missing = n_samples - len(changed)
    if missing:  # soxr rounds in its own way
        changed = np.pad(changed, [(0, missing)] + [(0, 0)] * (samples.ndim - 1))
    return np.ascontiguousarray(changed)


def resampled_length(n_samples: int, from_rate: int, to_rate: int) -> int:
    """Return how many samples `resample` makes of so many: the same seconds, to the nearest sample.

    Example:
        >>> resampled_length(44101, 44100, 16000), resampled_length(1, 48000, 16000)
        (16000, 0)
    """
    return (2 * n_samples * to_rate + from_rate) // (2 * from_rate)
