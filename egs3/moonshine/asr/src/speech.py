"""What the model is given: checked, and cut where it is too long."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from espnet3.errors import EspnetError

SAMPLE_RATE = 16000
FRAME = 320  # samples: 20 ms

Speech = NDArray[np.float32]


class SpeechError(EspnetError, ValueError):
    """The model was given something other than mono speech at 16 kHz in float32."""


def check_sample_rate(sample_rate: int | Sequence[int]) -> None:
    """Raise a `SpeechError` unless all rates are 16 kHz."""
    rates = sample_rate if isinstance(sample_rate, list | tuple) else [sample_rate]
    wrong = [rate for rate in rates if rate != SAMPLE_RATE]
    if wrong:
        raise SpeechError(
            f"The sample rate is {wrong[0]} Hz, but Moonshine takes {SAMPLE_RATE}. Convert the "
            f"files once, such as with: sox in.wav -r {SAMPLE_RATE} out.flac"
        )


def check_speech(speech: Any) -> Speech:
    """Return the speech if it is one channel of float32, else raise a `SpeechError`."""
    if not isinstance(speech, np.ndarray):
        raise SpeechError(
            f"speech is of type {type(speech).__name__}, not a numpy array. "
            "Pass numpy.asarray(speech, dtype=numpy.float32)."
        )
    if speech.dtype != np.float32:
        raise SpeechError(
            f"speech is of type {speech.dtype}, not float32 between -1 and 1. "
            'Read it with soundfile.read(path, dtype="float32").'
        )
    if speech.ndim != 1:
        raise SpeechError(
            f"speech has shape {speech.shape}, not [samples]. Of [samples, channels], take one "
            "channel: speech[:, 0]."
        )
    if not np.isfinite(speech).all():
        raise SpeechError(
            "speech holds NaN or infinite values. Write the file anew, or leave the utterance out."
        )
    return speech


def split_at_pauses(speech: Speech, max_samples: int) -> list[Speech]:
    """Return the speech in pieces of at most `max_samples`, one if it is short enough.

    Each cut is at the quietest place in the second half of what a piece may hold.
    """
    cuts = [0]
    while len(speech) - cuts[-1] > max_samples:
        earliest = cuts[-1] + max_samples // 2
        cuts.append(earliest + _quietest_place(speech[earliest : cuts[-1] + max_samples]))
    return [speech[start:end] for start, end in pairwise([*cuts, len(speech)])]


def _quietest_place(speech: Speech) -> int:
    """Return the middle of the quietest 0.2 s, in samples."""
    n_frames = len(speech) // FRAME
    energy = np.square(speech[: n_frames * FRAME].reshape(n_frames, FRAME)).mean(axis=1)
    around = np.convolve(np.pad(energy, 5, mode="edge"), np.ones(11), mode="valid")
    return int(around.argmin()) * FRAME + FRAME // 2
