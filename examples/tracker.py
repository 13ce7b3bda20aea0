"""Pitch by autocorrelation: enough work per file for the examples to be worth spreading."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Audio = NDArray[np.float64]


def median_pitch(audio: Audio, rate: int) -> float:
    """Return the median pitch of the voiced frames in hertz; 0 if there are none."""
    pitch = [hertz for frame in _frames(audio, rate) if (hertz := _pitch_of(frame, rate))]
    return float(np.median(pitch)) if pitch else 0.0


def _frames(audio: Audio, rate: int, seconds: float = 0.04, hop: float = 0.005) -> Iterator[Audio]:
    size = int(seconds * rate)
    return (audio[i : i + size] for i in range(0, len(audio) - size, int(hop * rate)))


def _pitch_of(frame: Audio, rate: int, low: int = 60, high: int = 400) -> float | None:
    frame = frame - frame.mean()
    power = np.correlate(frame, frame, "full")[len(frame) - 1 :]
    lag = rate // high + int(np.argmax(power[rate // high : rate // low]))
    is_voiced = power[0] > 0.01 and power[lag] > 0.5 * power[0]
    return rate / lag if is_voiced else None
