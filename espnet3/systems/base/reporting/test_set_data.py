"""The samples behind the results of a test set, found by their ids."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from espnet3.systems.base.reporting.clips import NoClip

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig


@dataclass(frozen=True)
class TestSetData:
    """A dataset, and where the item of each id is in it."""

    __test__ = False  # pytest takes the name for a test

    dataset: Any
    positions: Mapping[str, int]
    durations: NDArray[np.float64] | None
    idx_key: str

    def sample(self, id: str) -> Any:
        """Return the sample of an id.

        Raises:
            NoClip: it is not in the dataset any more, or cannot be read.
        """
        position = self.positions.get(id)
        if position is None or position >= len(self.dataset):
            raise NoClip("it is not in the dataset; did the data change since the infer stage?")
        try:
            sample = self.dataset[position]
        except Exception as error:  # of the user's code or files
            raise NoClip(f"it cannot be read: {type(error).__name__}: {error}") from error
        known = sample.get(self.idx_key, position) if isinstance(sample, Mapping) else position
        if str(known) != id:
            raise NoClip(
                f"item {position} of the dataset is {known} now; did the data change since the "
                "infer stage?"
            )
        return sample

    def duration(self, id: str) -> float | None:
        """Return the seconds of an item, if the dataset tells."""
        position = self.positions.get(id)
        if self.durations is None or position is None or position >= len(self.durations):
            return None
        return float(self.durations[position])

    def durations_of(self, ids: Sequence[str]) -> NDArray[np.float64] | None:
        """Return the seconds of these, or None if those of one are not known."""
        if self.durations is None:
            return None
        found = [self.positions.get(id, -1) for id in ids]
        if not found or min(found) < 0 or max(found) >= len(self.durations):
            return None
        chosen: NDArray[np.float64] = self.durations[np.asarray(found)]
        return chosen


def open_data(
    loaded: "LoadedConfig", test_set: str, ids: Iterable[str], failed: Iterable[Any]
) -> TestSetData:
    """Build the dataset of a test set from an inference config.

    Args:
        loaded: the inference config.
        test_set: its name.
        ids: of all results, in the order of the dataset.
        failed: indices of the items that have no result.

    Raises:
        NoClip: it cannot be built.
    """
    from espnet3.components.data.dataset import durations_of
    from espnet3.systems.base.inference_config import load_inference_config
    from espnet3.systems.base.test_set_run import open_test_set

    try:
        dataset = open_test_set(loaded, test_set)
        durations = durations_of(dataset)
        n_items = len(dataset)
        idx_key = load_inference_config(loaded).idx_key
    except Exception as error:  # of the user's code or files; the page is written all the same
        raise NoClip(f"the test set cannot be built: {type(error).__name__}: {error}") from error
    left_out = set(failed)
    there = (position for position in range(n_items) if position not in left_out)
    positions = dict(zip(ids, there, strict=False))
    return TestSetData(dataset, positions, durations, idx_key)
