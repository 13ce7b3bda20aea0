"""Dataset protocol, and datasets of others: combined, transformed, or some of their items."""

import operator
import os
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from espnet3.components.data.errors import DataError
from espnet3.components.data.random_numbers import sample_rng
from espnet3.config.fingerprint import digest
from espnet3.config.targets import signature_of
from espnet3.errors import ConfigError, suggest
from espnet3.text import first_few

if TYPE_CHECKING:
    import numpy as np


if TYPE_CHECKING:
    import numpy as np

    Floats = np.ndarray[Any, np.dtype[np.float64]]
    Ints = np.ndarray[Any, np.dtype[np.int64]]


_MOST_ITEMS = 200_000
"""Of a list whose content is looked at: some seconds."""

Sample = dict[str, Any]
Transform = Callable[..., Any]


@runtime_checkable
class Dataset(Protocol):
    """Protocol of a dataset: a length, and samples by position.

    A sample is a dict such as `{"utt_id": "a", "speech": float32 [samples], "sample_rate": 16000,
    "text": "hello", "speaker": "b"}`, as far as these are known.

    More methods are used where a dataset has them:

    - `durations() -> Sequence[float] | None`: seconds of each item, in the order of the dataset,
      found without decoding audio; None if unknown. A parameter `unreadable`, if there is one, is
      what to return for items that cannot be read.
    - `fingerprint() -> str`: a digest of what the items depend on; cheap, without decoding audio.
    - `sample_with(index, rng) -> sample`: the sample for training, with random choices drawn from
      a NumPy `Generator`, which is the same one whenever this epoch reads this sample.
    - `locality() -> array | None`: the number of the shard that holds each item, so that training
      reads a few shards at a time.
    - `fields(index) -> sample`: the sample without its audio, for readers of its text.
    """

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def __getitem__(self, index: int, /) -> Any:
        """Return one sample."""
        ...


class TransformedDataset:
    """A dataset whose samples pass through a transform of its own, then a shared preprocessor.

    Both take a sample and return one. One that has a parameter `rng` gets a NumPy `Generator` for
    its random choices: in training another one for each epoch and sample, otherwise always the
    same one for a sample. One with a true attribute `keeps_fields` changes nothing but audio, so
    that texts can be read without it.

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
        steps = [step for step in (transform, preprocessor) if step is not None]
        self._steps = [(step, takes_rng(step)) for step in steps]
        self._is_random = any(is_random for _, is_random in self._steps)
        self._keeps_fields = all(getattr(step, "keeps_fields", False) for step in steps)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        rng = sample_rng(0, 0, as_position(index, len(self))) if self._is_random else None
        return self._apply(self.dataset[index], rng)

    def sample_with(self, index: int, rng: "np.random.Generator") -> Any:
        """Return a sample whose random choices are drawn from `rng`."""
        return self._apply(sample_of(self.dataset, index, rng), rng)

    def uses_rng(self) -> bool:
        """Tell whether `sample_with` makes any random choices."""
        return self._is_random or uses_rng(self.dataset)

    def has_fields(self) -> bool:
        """Tell whether there are samples without audio: other steps may need it, or make texts."""
        return self._keeps_fields and has_fields(self.dataset)

    def fields(self, index: int) -> Any:
        """Return a sample, without its audio where no step needs that."""
        return fields_of(self.dataset, index) if self._keeps_fields else self[index]

    def _apply(self, sample: Any, rng: "np.random.Generator | None") -> Any:
        for step, is_random in self._steps:
            sample = _as_sample(step(sample, rng=rng) if is_random else step(sample), step)
        return sample

    def durations(self, unreadable: float | None = None) -> "Floats | None":
        """Return the durations of the dataset as it came: a transform does not change them."""
        return durations_of(self.dataset, unreadable)

    def fingerprint(self) -> str:
        """Return a digest of the dataset's own and of the names of the steps."""
        steps = {"transform": self.transform, "preprocessor": self.preprocessor}
        return digest({"dataset": fingerprint_of(self.dataset), **steps})


class CalledWithId:
    """A preprocessor in the form of ESPnet2, `function(uid, data)`, as a function of a sample.

    It gets the texts and arrays of the sample; what it returns replaces them.

    Args:
        function: Such as `espnet2.train.preprocessor.CommonPreprocessor`.
    """

    def __init__(self, function: Callable[[str, dict[str, Any]], Mapping[str, Any]]) -> None:
        self.function = function

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Return the changed sample."""
        import numpy as np

        given = {
            key: value
            for key, value in sample.items()
            if key != "utt_id" and isinstance(value, str | np.ndarray)
        }
        return {**sample, **self.function(str(sample.get("utt_id", "")), given)}

    @classmethod
    def around(cls, function: Any) -> Any:
        """Return the function as it is, or such a one if it takes `uid` and `data`."""
        signature = signature_of(function)
        takes = [] if signature is None else list(signature.parameters.values())
        names = [parameter.name for parameter in takes if parameter.default is parameter.empty]
        return cls(function) if names == ["uid", "data"] else function


class CombinedDataset:
    """Several datasets, one after the other, as one.

    Args:
        datasets: In order.
        weights: How often each sample of a dataset comes in an epoch of training: 2 for twice, 0.5
            for another half of them in each epoch. None for 1 everywhere.
        names: What errors call the datasets, such as `dataset.train.0`.

    Raises:
        DataError: There is none, or one of them has no items.
    """

    def __init__(
        self,
        datasets: Iterable[Dataset],
        weights: Sequence[float] | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        self.datasets = tuple(datasets)
        self.weights = tuple(weights or [1.0] * len(self.datasets))
        kinds = [f"dataset {i} ({_kind(dataset)})" for i, dataset in enumerate(self.datasets)]
        self.names = tuple(names or kinds)
        if not self.datasets:
            raise DataError(
                "There is no dataset to combine.", fix="Pass one: CombinedDataset([dataset])"
            )
        for i, dataset in enumerate(self.datasets):
            if len(dataset) == 0:
                raise DataError(
                    f"Dataset {i} of the {len(self.datasets)} to combine, a {_kind(dataset)}, has "
                    "no items.",
                    fix="Check what it was made from, or leave it out.",
                )
        self._ends = list(accumulate(map(len, self.datasets)))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Any:
        which, position = self._find(index)
        return self.datasets[which][position]

    def sample_with(self, index: int, rng: "np.random.Generator") -> Any:
        """Return a sample whose random choices are drawn from `rng`."""
        which, position = self._find(index)
        return sample_of(self.datasets[which], position, rng)

    def uses_rng(self) -> bool:
        """Tell whether `sample_with` makes any random choices."""
        return any(uses_rng(dataset) for dataset in self.datasets)

    def has_fields(self) -> bool:
        """Tell whether all of them have samples without audio."""
        return all(has_fields(dataset) for dataset in self.datasets)

    def fields(self, index: int) -> Any:
        """Return a sample, without its audio where that saves the reading of it."""
        which, position = self._find(index)
        return fields_of(self.datasets[which], position)

    def place_of(self, index: int) -> str:
        """Return how an error calls an item: `item 3 of dataset.train.1`."""
        which, position = self._find(index)
        return f"item {position} of {self.names[which]}"

    def ranges(self) -> list[range]:
        """Return the indices of each dataset."""
        return [range(e - len(d), e) for e, d in zip(self._ends, self.datasets, strict=True)]

    def _find(self, index: int) -> tuple[int, int]:
        position = as_position(index, len(self))
        # An end is the first position of the next dataset, hence not bisect_left.
        which = bisect_right(self._ends, position)
        return which, position - (self._ends[which - 1] if which else 0)

    def durations(self, unreadable: float | None = None) -> "Floats | None":
        """Return the durations of all, or None if one dataset does not know its own."""
        import numpy as np

        parts = []
        for dataset in self.datasets:
            part = durations_of(dataset, unreadable)
            if part is None:
                return None
            parts.append(part)
        return np.concatenate(parts)

    def fingerprint(self) -> str:
        """Return a digest of all fingerprints, in order."""
        # Left out where they change nothing: the fingerprint is then as without weights.
        weights = {"weights": self.weights} if set(self.weights) != {1.0} else {}
        prints = [fingerprint_of(dataset) for dataset in self.datasets]
        return digest({"datasets": prints, **weights})


def as_position(index: Any, n_items: int) -> int:
    """Return an index of Python or NumPy, perhaps negative, as a position from 0.

    Raises:
        IndexError: There are not so many items.
    """
    # It takes integers of NumPy too and, unlike int(), refuses 1.5.
    position = operator.index(index)
    if not -n_items <= position < n_items:
        raise IndexError(f"Item {position} was asked for, but the dataset has {n_items}.")
    return position + n_items if position < 0 else position


def durations_of(dataset: Any, unreadable: float | None = None) -> "Floats | None":
    """Return the seconds of each item, as float64, or None for a dataset that does not know.

    `unreadable` stands for those that cannot be read, where the dataset's method takes it.

    Raises:
        DataError: There is not exactly one finite number, 0 or more, for each item.
    """
    given = {} if unreadable is None else {"unreadable": unreadable}
    values = _ask(dataset, "durations", given)
    if values is None:
        return None
    import numpy as np

    try:
        array: Floats = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise _bad_durations(dataset, f"which are no numbers ({error})") from error
    if array.shape != (len(dataset),):
        raise _bad_durations(dataset, f"of shape {list(array.shape)} for {len(dataset)} items")
    bad = np.flatnonzero(~(np.isfinite(array) & (array >= 0)))
    if bad.size:
        raise _bad_durations(dataset, f"of which number {bad[0]} is {array[bad[0]]:g}")
    return array


def fingerprint_of(dataset: Any) -> str:
    """Return the dataset's own fingerprint, else a digest of its length and durations.

    Of lists of samples, and of torch's datasets in memory, all that is in them counts.

    Raises:
        DataError: Its `fingerprint()` is not a text.
    """
    own = _ask(dataset, "fingerprint")
    if own is None and (content := _content(dataset)) is not None:
        return digest(content)
    if own is None:
        return digest({"n_items": len(dataset), "durations": durations_of(dataset)})
    if not isinstance(own, str) or not own:
        raise DataError(
            f"The fingerprint() of {_kind(dataset)} returned {own!r:.80}. Return a text that "
            "changes when the items do, or remove the method."
        )
    return own


def has_content(dataset: Any) -> bool:
    """Tell whether the fingerprint of a dataset is one of its content."""
    return getattr(dataset, "fingerprint", None) is not None or _content(dataset) is not None


def _content(dataset: Any) -> dict[str, Any] | None:
    """Return what is in a list or in a dataset of torch's that holds it; None for any other."""
    if isinstance(dataset, list | tuple):
        return {"items": list(dataset)} if len(dataset) <= _MOST_ITEMS else None
    # Without torch loaded there are no datasets of torch's, and to import it takes seconds.
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    data = torch.utils.data
    # Not isinstance: a subclass may change what its items are.
    if type(dataset) is data.TensorDataset:
        return {"tensors": list(dataset.tensors)}
    parts = dataset.datasets if type(dataset) is data.ConcatDataset else [dataset]
    if type(dataset) is data.Subset:
        parts = [dataset.dataset]
    if parts[0] is dataset or not all(map(has_content, parts)):
        return None
    indices = getattr(dataset, "indices", None)
    prints = [fingerprint_of(part) for part in parts]
    return {"parts": prints, "indices": None if indices is None else list(map(int, indices))}


def _ask(dataset: Any, name: str, given: Mapping[str, Any] | None = None) -> Any:
    """Return an attribute, or what it returns when called with those of `given` that it takes."""
    found = getattr(dataset, name, None)
    signature = signature_of(found) if given and callable(found) else None
    known = signature.parameters if signature else {}
    return (
        found(**{k: v for k, v in (given or {}).items() if k in known})
        if callable(found)
        else found
    )


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


def has_fields(dataset: Any) -> bool:
    """Tell whether a dataset has samples without audio; see `Dataset`."""
    own = getattr(dataset, "has_fields", None)
    return bool(own()) if callable(own) else callable(getattr(dataset, "fields", None))


def fields_of(dataset: Any, index: int) -> Any:
    """Return a sample without its audio, or all of it where the dataset cannot leave it out."""
    own = getattr(dataset, "fields", None)
    return own(index) if callable(own) else dataset[index]


def locality_of(dataset: Any) -> "Ints | None":
    """Return the shard of each item, or None if no part of the dataset is in shards.

    Of combined datasets, each that has no shards counts as one.
    """
    import numpy as np

    if isinstance(dataset, TransformedDataset):
        return locality_of(dataset.dataset)
    if isinstance(dataset, CombinedDataset):
        parts = [locality_of(part) for part in dataset.datasets]
        if all(part is None for part in parts):
            return None
        sizes = [len(part) for part in dataset.datasets]
        return _numbered_on([np.zeros(n, np.int64) if p is None else p
                        for p, n in zip(parts, sizes, strict=True)])  # fmt: skip
    ask = getattr(dataset, "locality", None)
    return None if ask is None else np.asarray(ask(), dtype=np.int64)


def _numbered_on(parts: list["Ints"]) -> "Ints":
    import numpy as np

    joined, start = [], 0
    for part in parts:
        joined.append(part + start)
        start = int(joined[-1].max(initial=start - 1)) + 1
    return np.concatenate(joined)


def name_in(dataset: Any, index: int) -> str | None:
    """Return the `utt_id` of a sample, or None if it has none or cannot be read."""
    try:
        sample = dataset[index]
    except Exception:
        return None  # reported when the sample is needed
    name = sample.get("utt_id") if hasattr(sample, "get") else None
    return None if name is None else str(name)


def place_of(dataset: Any, index: int) -> str:
    """Return how an error calls an item."""
    own = getattr(dataset, "place_of", None)
    return str(own(index)) if callable(own) else f"item {index} of the dataset"


def takes_rng(step: Callable[..., Any]) -> bool:
    """Tell whether a transform has a parameter `rng`."""
    signature = signature_of(step)
    return signature is not None and "rng" in signature.parameters


def sample_of(dataset: Any, index: int, rng: "np.random.Generator") -> Any:
    """Return a sample, with random choices from `rng` if the dataset makes any."""
    draw = getattr(dataset, "sample_with", None)
    return draw(index, rng) if callable(draw) else dataset[index]


def uses_rng(dataset: Any) -> bool:
    """Tell whether a dataset makes random choices: without them, no generator need be made."""
    own = getattr(dataset, "uses_rng", None)
    return bool(own()) if callable(own) else callable(getattr(dataset, "sample_with", None))


Values = Mapping[str, Sequence[Any] | str]
"""The values of each field: a list, or a file with one in each line."""


class Subset:
    """The items whose fields have certain values, in their order.

    Args:
        dataset: Where they come from; fields are read without audio where it has `fields`.
        only: Items that have one of the values of each field are kept.
        leave_out: Then those that have one of the values of any field are dropped.
        recipe_dir: Where a file of values is looked for.

    Raises:
        ConfigError: A field or file is not there, or a value has no items.
    """

    def __init__(
        self,
        dataset: Dataset,
        only: Values | None = None,
        leave_out: Values | None = None,
        recipe_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        self.dataset = dataset
        wanted = {name: _values(name, given, recipe_dir) for name, given in (only or {}).items()}
        unwanted = {n: _values(n, given, recipe_dir) for n, given in (leave_out or {}).items()}
        items = [fields_of(dataset, i) for i in range(len(dataset))]
        for key, named in (("only", wanted), ("leave_out", unwanted)):
            for name, values in named.items():
                _check_known(f"{key}.{name}", name, values, items)
        self._positions = [
            i
            for i, fields in enumerate(items)
            if all(str(fields.get(name)) in values for name, values in wanted.items())
            and not any(str(fields.get(name)) in values for name, values in unwanted.items())
        ]

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self._position(index)]

    def _position(self, index: int) -> int:
        return self._positions[as_position(index, len(self))]

    def sample_with(self, index: int, rng: "np.random.Generator") -> Any:
        """Return a sample whose random choices are drawn from `rng`."""
        return sample_of(self.dataset, self._position(index), rng)

    def uses_rng(self) -> bool:
        """Tell whether `sample_with` makes any random choices."""
        return uses_rng(self.dataset)

    def has_fields(self) -> bool:
        """Tell whether there are samples without audio."""
        return has_fields(self.dataset)

    def fields(self, index: int) -> Any:
        """Return a sample, without its audio where the dataset can leave it out."""
        return fields_of(self.dataset, self._position(index))

    def durations(self, unreadable: float | None = None) -> Any:
        """Return the seconds of each item that is kept; None if the dataset does not know."""
        known = durations_of(self.dataset, unreadable)
        return None if known is None else known[self._positions]

    def locality(self) -> Any:
        """Return the shard of each item that is kept."""
        import numpy as np

        known = locality_of(self.dataset)
        return np.zeros(len(self), np.int64) if known is None else known[self._positions]

    def fingerprint(self) -> str:
        """Return a digest of the dataset's own and of what is kept."""
        return digest({"dataset": fingerprint_of(self.dataset), "kept": self._positions})

    def audio_files(self, most: int) -> list[str]:
        """Return the files of at most so many items, evenly spaced; none where they are inside."""
        step = max(1, -(-len(self) // most))
        return [file for i in range(0, len(self), step) if (file := self.audio_file(i))]

    def audio_file(self, index: int) -> str:
        """Return the file of an item; empty where it is inside another."""
        find = getattr(self.dataset, "audio_file", None)
        return str(find(self._position(index))) if callable(find) else ""


def _values(
    name: str, given: Sequence[Any] | str, recipe_dir: str | os.PathLike[str] | None
) -> set[str]:
    """Return the values as texts: YAML reads a speaker called 07 as a number."""
    if not isinstance(given, str):
        return {str(value) for value in given}
    places = [Path(given), Path(recipe_dir or ".", given)]
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        raise ConfigError(
            f"{name} is {given!r}, but there is no such file.",
            fix=f"Write the values themselves, {name}: [a, b], or a file with one in each line.",
        )
    return {line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()}


def _check_known(key: str, name: str, values: set[str], items: Sequence[Any]) -> None:
    known = {str(fields[name]) for fields in items if name in fields}
    if not known:
        has = list(items[0]) if items else []
        raise ConfigError(
            f"{key} is set, but the items have no field {name!r}.{suggest(name, has)} They have: "
            f"{', '.join(map(str, has))}."
        )
    strange = sorted(values - known)
    if strange:
        raise ConfigError(
            f"{key} has {first_few(strange, 3)}, which no item has.{suggest(strange[0], known)} "
            f"Known: {first_few(sorted(known), 10)}.",
            fix="Numbers that begin with 0 need quotes in YAML: ['07']",
        )
