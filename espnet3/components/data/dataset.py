"""What a dataset is, and datasets made of others."""

import operator
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Protocol, runtime_checkable

from espnet3.components.data.errors import DataError
from espnet3.config.fingerprint import digest

Sample = dict[str, Any]
Transform = Callable[[Any], Any]


@runtime_checkable
class Dataset(Protocol):
    """What ESPnet3 asks of a dataset: a length, and samples by position.

    A sample is a dict such as `{"utt_id": "a", "speech": float32 [samples], "sample_rate": 16000,
    "text": "hello", "speaker": "b"}`, as far as these are known.

    Two more methods are used where a dataset has them:

    - `durations() -> Sequence[float] | None`: seconds of each item, in the order of the dataset,
      found without decoding audio; None if unknown.
    - `fingerprint() -> str`: a digest of what the items depend on; cheap, without decoding audio.
    """

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def __getitem__(self, index: int, /) -> Any:
        """Return one sample."""
        ...


class TransformedDataset:
    """A dataset whose samples pass through a transform of its own, then a shared preprocessor.

    Both take a sample and return one.

    Args:
        dataset: Where the samples come from.
        transform: Applied first; None for none.
        preprocessor: Applied to what the transform returns; None for none.
    """

    def __init__(
        self,
        dataset: Dataset,
        transform: Transform | None = None,
        preprocessor: Transform | None = None,
    ) -> None:
        self.dataset = dataset
        self.transform = transform
        self.preprocessor = preprocessor

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        sample = self.dataset[index]
        for step in (self.transform, self.preprocessor):
            if step is not None:
                sample = _as_sample(step(sample), step)
        return sample

    def durations(self) -> Sequence[float] | None:
        """Return the durations of the dataset as it came: a transform does not change them."""
        return durations_of(self.dataset)

    def fingerprint(self) -> str:
        """Return a digest of the dataset's own and of the names of the steps."""
        steps = {"transform": self.transform, "preprocessor": self.preprocessor}
        return digest({"dataset": fingerprint_of(self.dataset), **steps})


class CombinedDataset:
    """Several datasets, one after the other, as one.

    Raises:
        DataError: There is none, or one of them has no items.
    """

    def __init__(self, datasets: Iterable[Dataset]) -> None:
        self.datasets = tuple(datasets)
        if not self.datasets:
            raise DataError("There is no dataset to combine. Pass one: CombinedDataset([dataset])")
        for i, dataset in enumerate(self.datasets):
            if len(dataset) == 0:
                raise DataError(
                    f"Dataset {i} of the {len(self.datasets)} to combine, a {_kind(dataset)}, has "
                    "no items. Check what it was made from, or leave it out."
                )
        self._ends = list(accumulate(map(len, self.datasets)))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Any:
        position = as_position(index, len(self))
        which = bisect_right(self._ends, position)
        start = self._ends[which - 1] if which else 0
        return self.datasets[which][position - start]

    def durations(self) -> list[float] | None:
        """Return the durations of all, or None if one dataset does not know its own."""
        durations: list[float] = []
        for dataset in self.datasets:
            part = durations_of(dataset)
            if part is None:
                return None
            durations.extend(part)
        return durations

    def fingerprint(self) -> str:
        """Return a digest of all fingerprints, in order."""
        return digest({"datasets": [fingerprint_of(dataset) for dataset in self.datasets]})


def as_position(index: Any, n_items: int) -> int:
    """Return an index of Python or NumPy, perhaps negative, as a position from 0.

    Raises:
        IndexError: There are not so many items.
    """
    position = operator.index(index)
    if not -n_items <= position < n_items:
        raise IndexError(f"Item {position} was asked for, but the dataset has {n_items}.")
    return position + n_items if position < 0 else position


def durations_of(dataset: Any) -> list[float] | None:
    """Return the seconds of each item, or None for a dataset that does not tell.

    Raises:
        DataError: There is not exactly one finite number, 0 or more, for each item.
    """
    values = _ask(dataset, "durations")
    if values is None:
        return None
    import numpy as np

    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise _bad_durations(dataset, f"which are no numbers ({error})") from error
    if array.shape != (len(dataset),):
        raise _bad_durations(dataset, f"of shape {list(array.shape)} for {len(dataset)} items")
    bad = np.flatnonzero(~(np.isfinite(array) & (array >= 0)))
    if bad.size:
        raise _bad_durations(dataset, f"of which number {bad[0]} is {array[bad[0]]:g}")
    durations: list[float] = array.tolist()
    return durations


def fingerprint_of(dataset: Any) -> str:
    """Return the dataset's own fingerprint, else a digest of its length and durations.

    Raises:
        DataError: Its `fingerprint()` is not a text.
    """
    own = _ask(dataset, "fingerprint")
    if own is None:
        import numpy as np

        durations = durations_of(dataset)
        array = None if durations is None else np.asarray(durations)
        return digest({"n_items": len(dataset), "durations": array})
    if not isinstance(own, str) or not own:
        raise DataError(
            f"The fingerprint() of {_kind(dataset)} returned {own!r:.80}. Return a text that "
            "changes when the items do, or remove the method."
        )
    return own


def _ask(dataset: Any, name: str) -> Any:
    found = getattr(dataset, name, None)
    return found() if callable(found) else found


def _bad_durations(dataset: Any, problem: str) -> DataError:
    return DataError(
        f"The durations() of {_kind(dataset)} returned values {problem}. Return one finite number "
        "of seconds, 0 or more, per item, or None if they are unknown."
    )


def _as_sample(value: Any, step: Transform) -> Any:
    if not isinstance(value, Mapping):
        name = getattr(step, "__qualname__", type(step).__qualname__)
        raise DataError(
            f"The transform {name} returned {value!r:.80}, of type {type(value).__name__}. It must "
            "return the sample, a dict; does its `return sample` miss?"
        )
    return value


def _kind(dataset: Any) -> str:
    return f"{type(dataset).__module__}.{type(dataset).__qualname__}"
