"""Mean and variance of features: exact enough for any offset, mergeable, and their files."""

import base64
import io
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from espnet3.commands import recipe_command
from espnet3.components.data.errors import DataError
from espnet3.io.atomic import write_bytes

Array = NDArray[np.float64]

SHAPE = "_shape"
"""End of the name of a file with a line `<utt_id> <frames>,<dim>` per item."""
STATS = "_stats.npz"
"""End of the name of a file with count, sum, sum_square, mean and var."""
STATS_KEYS = "stats_keys"
"""Name of the file that lists the features that have statistics, one a line."""


def skipped_id(position: int) -> str:
    """Return what stands in a file of shapes for an item that was skipped; its length is 0."""
    return f"item{position}"


@dataclass(frozen=True)
class Moments:
    """Count, mean and squared deviations of vectors.

    Deviations from the mean are added up, not squares: with a mean of 1e6 and a deviation of 1e-3,
    the difference of two sums of squares would be nothing but rounding.

    Example:
        >>> both = Moments.of([[1.0], [3.0]]).merged(Moments.of([[5.0]]))
        >>> both.count, both.mean.tolist(), both.var.tolist()
        (3, [3.0], [2.6666666666666665])
    """

    count: int
    """Number of vectors."""
    mean: Array
    """Of each component."""
    deviation: Array
    """Sum of the squared deviations from the mean, of each component."""

    @classmethod
    def of(cls, vectors: Any) -> "Moments":
        """Take the moments of an array along its first axis, in float64 and two passes."""
        values = np.asarray(vectors, dtype=np.float64)
        if len(values) == 0:
            return cls(0, np.zeros(values.shape[1:]), np.zeros(values.shape[1:]))
        mean = np.asarray(values.mean(axis=0))
        deviations = values - mean
        # What rounding left over in the mean (Chan, Golub and LeVeque 1983).
        rest = deviations.mean(axis=0)
        squares = np.square(deviations, out=deviations).sum(axis=0) - len(values) * rest**2
        # Rounding could leave a variance slightly below 0, whose root is NaN.
        return cls(len(values), mean + rest, np.maximum(squares, 0.0))

    @property
    def var(self) -> Array:
        """The variance of each component, of the vectors themselves (divided by their count)."""
        return self.deviation / max(self.count, 1)

    def merged(self, other: "Moments") -> "Moments":
        """Return the moments of the vectors of both (Chan, Golub and LeVeque 1979).

        Raises:
            DataError: Their vectors have different shapes.
        """
        if not other.count or not self.count:
            return self if self.count else other
        if self.mean.shape != other.mean.shape:
            raise DataError(
                f"Features of the shapes {list(self.mean.shape)} and {list(other.mean.shape)} "
                "cannot have one mean.",
                fix="Give all items the same dimensions; an array that grows "
                "with the item must do so along its first axis.",
            )
        count = self.count + other.count
        delta = other.mean - self.mean
        share = other.count / count
        spread = np.square(delta) * (self.count * share)
        return Moments(count, self.mean + delta * share, self.deviation + other.deviation + spread)

    def to_json(self) -> dict[str, Any]:
        """Return plain values that hold each bit."""
        # In a fixed byte order, as another machine may merge them.
        values = np.stack([self.mean, self.deviation]).astype("<f8")
        text = base64.b64encode(values.tobytes()).decode("ascii")
        return {"count": self.count, "shape": list(self.mean.shape), "values": text}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Moments":
        """Undo `to_json`."""
        data = np.frombuffer(base64.b64decode(fields["values"]), dtype="<f8")
        mean, deviation = data.reshape(2, *fields["shape"]).astype(np.float64)
        return cls(fields["count"], np.asarray(mean), np.asarray(deviation))


class MomentsSum:
    """Merges many moments, pair by pair as in a balanced tree.

    The result depends on their order and on nothing else, and its rounding error grows with the
    logarithm of their number.
    """

    def __init__(self) -> None:
        self._parts: list[tuple[int, Moments]] = []

    def add(self, moments: Moments) -> None:
        """Add the next."""
        height = 0
        while self._parts and self._parts[-1][0] == height:
            # The earlier one on the left: swapped, the result would be rounded differently.
            moments = self._parts.pop()[1].merged(moments)
            height += 1
        self._parts.append((height, moments))

    def total(self) -> Moments:
        """Return the moments of all that were added, at least one."""
        total = self._parts[-1][1]
        for _, part in reversed(self._parts[:-1]):
            total = part.merged(total)
        return total


def save_stats(path: str | os.PathLike[str], moments: Moments) -> None:
    """Write count, sum, sum_square, mean and var; the file appears whole or not at all."""
    buffer = io.BytesIO()
    np.savez(
        buffer,
        count=np.int64(moments.count),
        sum=moments.mean * moments.count,
        sum_square=moments.deviation + moments.count * np.square(moments.mean),
        mean=moments.mean,
        var=moments.var,
    )
    write_bytes(path, buffer.getvalue())


@dataclass(frozen=True)
class FeatureStats:
    """Content of a file of statistics."""

    count: int
    """Number of frames."""
    mean: Array
    """Of each dimension."""
    var: Array
    """Of each dimension."""


def load_stats(path: str | os.PathLike[str]) -> FeatureStats:
    """Read a file of `save_stats`, or one with only count, sum and sum_square.

    Raises:
        DataError: It is missing, damaged, or has other keys; the message says how to make it.
    """
    try:
        # A pickle would run code of whoever made the file.
        with np.load(path, allow_pickle=False) as file:
            values = {name: np.asarray(file[name], dtype=np.float64) for name in file.files}
        return _as_stats(values)
    except FileNotFoundError as error:
        problem = "does not exist"
        cause: Exception = error
    except KeyError as error:
        problem, cause = f"has no {error.args[0]!r}", error
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        problem, cause = f"cannot be read ({error})", error
    raise DataError(
        f"The statistics file {Path(path)} {problem}.",
        fix=f"Make it with: {recipe_command('collect_stats')}",
    ) from cause


def _as_stats(values: Mapping[str, Array]) -> FeatureStats:
    count = int(values["count"])
    if count < 1:
        raise ValueError(f"its count is {count}")
    if "mean" in values and "var" in values:
        return FeatureStats(count, values["mean"], values["var"])
    mean = values["sum"] / count
    # The difference of two large numbers, which rounding may take below 0.
    return FeatureStats(count, mean, np.maximum(values["sum_square"] / count - mean**2, 0.0))
