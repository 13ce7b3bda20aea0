"""How far a rate would move if other utterances, or speakers, had been drawn."""

import numpy as np
from numpy.typing import NDArray

_DRAWS_AT_ONCE = 1 << 22
"""Bounds the memory: 32 MB of counts."""


def resample_sums(rows: NDArray[np.int64], n_resamples: int, seed: int = 0) -> NDArray[np.float64]:
    """Draw as many rows as there are, with replacement, `n_resamples` times, and sum each draw.

    Equal rows are drawn together, by how often each occurs. That is the same distribution as
    drawing row by row, and its cost does not grow with the number of utterances.

    Returns:
        [n_resamples, columns]; the same for the same rows, in any order, and seed.
    """
    unique, counts = np.unique(rows, axis=0, return_counts=True)
    generator = np.random.default_rng(seed)
    shares, values = counts / len(rows), unique.astype(np.float64)
    step = max(1, _DRAWS_AT_ONCE // len(unique))
    sums = [
        generator.multinomial(len(rows), shares, size=min(step, n_resamples - start)) @ values
        for start in range(0, n_resamples, step)
    ]
    return np.concatenate(sums) if sums else np.empty((0, rows.shape[1]))


def percentile_interval(
    errors: NDArray[np.float64], totals: NDArray[np.float64], confidence: float
) -> tuple[float, float] | None:
    """Return where the middle share `confidence` of the rates lies, in percent.

    Draws without any total have no rate and are left out; None if no draw is left.
    """
    drawn = totals > 0
    if not drawn.any():
        return None
    rates = 100 * errors[drawn] / totals[drawn]
    low, high = np.quantile(rates, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)
