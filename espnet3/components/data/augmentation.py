"""Example augmentations, used as `transform: {_target_: ...}` of a dataset.

Each draws from the generator `rng`, which follows from the seed, the epoch and the sample: the same
epoch gives the same samples whatever the number of workers and ranks, and after a resume.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from espnet3.components.data.errors import DataError
from espnet3.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

# Zero crossings of the filter on each side, and where its stop band begins, of half the rate.
_N_CROSSINGS = 16
_ROLLOFF = 0.95
# OpenBLAS gives larger products to a thread per core, which in a process that reads samples spin
# beside the training: twenty times the CPU time for an utterance of a second.
_ONE_THREAD = 1 << 17
# The most filters of a bank; 0.9 and 1.1 need 10 each.
_LARGEST_DENOMINATOR = 200


class Gain:
    """Makes the audio louder or softer by a random number of decibels.

    Args:
        min_db: The least, such as -6.
        max_db: The most.
        key: The field of the sample.
    """

    keeps_fields = True  # see TransformedDataset

    def __init__(self, min_db: float = -6.0, max_db: float = 6.0, key: str = "speech") -> None:
        if min_db > max_db:
            raise ConfigError(
                f"min_db is {min_db:g}, above max_db, which is {max_db:g}. Swap them."
            )
        self.min_db = min_db
        self.max_db = max_db
        self.key = key

    def __call__(self, sample: Mapping[str, Any], rng: "np.random.Generator") -> dict[str, Any]:
        """Return a changed copy of the sample."""
        audio = _field(sample, self.key, self)
        factor = 10 ** (rng.uniform(self.min_db, self.max_db) / 20)
        # A factor of another type could turn float32 audio into float64.
        return {**sample, self.key: audio * audio.dtype.type(factor)}


class SpeedPerturb:
    """Plays the audio faster or slower, which changes pitch and length.

    Batches are made by the lengths before this change, so with a factor of 0.9 one may hold 11%
    more seconds than `batch_seconds`.

    Args:
        factors: One is drawn for each sample; 1.1 is faster and shorter.
        key: The field of the sample.
    """

    keeps_fields = True  # see TransformedDataset

    def __init__(self, factors: Sequence[float] = (0.9, 1.0, 1.1), key: str = "speech") -> None:
        if not factors or min(factors) <= 0:
            raise ConfigError(f"factors is {list(factors)}; write factors: [0.9, 1.0, 1.1]")
        self.factors = tuple(factors)
        self.key = key

    def __call__(self, sample: Mapping[str, Any], rng: "np.random.Generator") -> dict[str, Any]:
        """Return a changed copy of the sample."""
        audio = _field(sample, self.key, self)
        factor = self.factors[int(rng.integers(len(self.factors)))]
        return {**sample, self.key: change_speed(audio, factor)}


def change_speed(audio: "Array", factor: float) -> "Array":
    """Return [samples] or [samples, channels] at another speed, without aliasing.

    Args:
        audio: Real numbers; the result has their type.
        factor: 2 for half as many samples. Taken as a fraction with a denominator up to 200.
    """
    import numpy as np

    ratio = Fraction(factor).limit_denominator(_LARGEST_DENOMINATOR)
    if ratio == 1 or not len(audio):
        return audio
    if audio.ndim == 2:
        return np.stack([change_speed(channel, factor) for channel in audio.T], axis=1)
    step, n_phases = ratio.numerator, ratio.denominator
    bank, n_before = _filter_bank(step, n_phases)
    n_out = -(-len(audio) * n_phases // step)
    n_rows = -(-n_out // n_phases)
    n_after = (n_rows - 1) * step + bank.shape[1] - n_before - len(audio)
    padded = np.pad(audio, (n_before, max(n_after, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, bank.shape[1])
    rows = windows[: (n_rows - 1) * step + 1 : step]
    filters = bank.T.astype(audio.dtype)
    found = np.empty((n_rows, n_phases), audio.dtype)
    n_at_once = max(1, _ONE_THREAD // filters.size)
    for start in range(0, n_rows, n_at_once):
        part = slice(start, start + n_at_once)
        np.matmul(rows[part], filters, out=found[part])
    return np.ascontiguousarray(found.reshape(-1)[:n_out])


@lru_cache(maxsize=32)
def _filter_bank(step: int, n_phases: int) -> tuple["Array", int]:
    """Return a filter [phases, taps] per output of a window, and the samples before its first.

    Output j of a window is at input position `j * step / n_phases`: a sinc there, cut off at the
    lower of both Nyquist rates and tapered by a Hann window.
    """
    import numpy as np

    cutoff = _ROLLOFF * min(1.0, n_phases / step)
    half_width = _N_CROSSINGS / cutoff
    n_before = int(np.ceil(half_width))
    taps = np.arange(-n_before, n_before + step + 1)
    distance = taps[None, :] - np.arange(n_phases)[:, None] * step / n_phases
    inside = np.abs(distance) < half_width
    taper = np.where(inside, np.cos(np.pi * distance / half_width / 2) ** 2, 0.0)
    bank = cutoff * np.sinc(cutoff * distance) * taper
    # Each phase passes a constant unchanged; otherwise the level would ripple from phase to phase.
    return bank / bank.sum(axis=1, keepdims=True), n_before


def _field(sample: Mapping[str, Any], key: str, owner: object) -> "Array":
    import numpy as np

    value = sample.get(key)
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return value
    raise DataError(
        f"{type(owner).__name__} changes the field {key!r}, but that is {value!r:.60} in a sample "
        f"with {', '.join(map(str, sample))}.",
        fix="Name a field with an array of real numbers: key: NAME",
    )
