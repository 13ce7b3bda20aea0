"""What is done with one file. Replace it by your own work, such as a model."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

FLOOR_DB = -100.0  # of digital silence


class LoudnessMeter:
    """Measures level, peak and activity, in dB below full scale.

    Args:
        silence_db: A frame of 20 ms that is not above it is silence.
    """

    def __init__(self, silence_db: float = -50.0) -> None:
        self.silence_db = silence_db

    def __call__(self, samples: NDArray[np.float32], sample_rate: int) -> dict[str, float]:
        """Return the RMS level of what is not silent, the peak, and the share of such frames."""
        size = sample_rate // 50
        mono = samples if samples.ndim == 1 else samples.mean(1)
        powers = np.array([np.square(mono[i : i + size]).mean() for i in range(0, len(mono), size)])
        active = powers[_to_db(powers) > self.silence_db]
        return {
            "loudness": float(_to_db(active.mean())) if active.size else FLOOR_DB,
            "peak": float(_to_db(np.square(samples).max())) if samples.size else FLOOR_DB,
            "activity": active.size / max(1, powers.size),
        }


def _to_db(power: Any) -> Any:
    return 10 * np.log10(np.maximum(power, 10 ** (FLOOR_DB / 10)))
