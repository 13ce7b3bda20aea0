import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from espnet3.components.data.dataset import (
    CombinedDataset,
    Dataset,
    TransformedDataset,
    durations_of,
    fingerprint_of,
)
from espnet3.components.data.errors import DataError


class Plain:
    """A dataset without the optional methods."""

    def __init__(self, name, n_items):
        self.name, self.n_items = name, n_items

    def __len__(self):
        return self.n_items

    def __getitem__(self, index):
        if not 0 <= index < self.n_items:
            raise IndexError(index)
        return {"utt_id": f"{self.name}{index}"}


class Told(Plain):
    """A dataset that tells durations and fingerprint."""

    def __init__(self, name, durations, print="abc"):
        super().__init__(name, 2)
        self._durations, self._print = durations, print

    def durations(self):
        return self._durations

    def fingerprint(self):
        return self._print


def ids(dataset):
    return [sample["utt_id"] for sample in dataset]


def test_anything_with_length_and_items_is_a_dataset():
    assert isinstance(Plain("a", 1), Dataset)
    assert isinstance([{"utt_id": "a"}], Dataset)
    assert not isinstance(iter([]), Dataset)


# Combined


def test_combined_datasets_are_one_after_the_other():
    combined = CombinedDataset([Plain("a", 2), Plain("b", 1), Plain("c", 3)])
    assert len(combined) == 6
    assert ids(combined) == ["a0", "a1", "b0", "c0", "c1", "c2"]
    assert combined[-1] == combined[np.int64(5)] == {"utt_id": "c2"}
    assert combined[-6] == {"utt_id": "a0"}


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_every_position_is_found(sizes):
    combined = CombinedDataset([Plain(f"{i}-", n) for i, n in enumerate(sizes)])
    expected = [f"{i}-{j}" for i, n in enumerate(sizes) for j in range(n)]
    n = len(combined)
    assert [combined[i]["utt_id"] for i in range(n)] == expected
    assert [combined[i - n]["utt_id"] for i in range(n)] == expected


@pytest.mark.parametrize("index", [3, -4])
def test_a_position_outside_is_an_index_error(index):
    combined = CombinedDataset([Plain("a", 2), Plain("b", 1)])
    with pytest.raises(IndexError, match=f"Item {index} was asked for, but the dataset has 3"):
        combined[index]


def test_durations_are_joined_or_unknown():
    known, unknown = Told("a", [1, 2.5]), Plain("b", 1)
    joined = CombinedDataset([known, Told("b", np.array([3.0, 4.0]))]).durations()
    assert joined.tolist() == [1, 2.5, 3, 4]
    assert CombinedDataset([known, unknown]).durations() is None


def test_the_fingerprint_depends_on_the_datasets_and_their_order():
    a, b = Told("a", None, "1"), Told("b", None, "2")
    prints = {CombinedDataset(parts).fingerprint() for parts in ([a, b], [b, a], [a], [a, b])}
    assert len(prints) == 3


def test_nothing_to_combine_is_an_error():
    with pytest.raises(DataError, match="Pass one"):
        CombinedDataset([])
    with pytest.raises(DataError, match=r"Dataset 1 of the 2 .*Plain, has no items"):
        CombinedDataset([Plain("a", 1), Plain("b", 0)])


# Transformed


def test_the_transform_comes_before_the_preprocessor():
    def transform(sample):
        return {**sample, "steps": ["transform"]}

    def preprocessor(sample):
        return {**sample, "steps": [*sample["steps"], "preprocessor"]}

    dataset = TransformedDataset(Plain("a", 2), transform, preprocessor)
    assert len(dataset) == 2
    assert dataset[1] == {"utt_id": "a1", "steps": ["transform", "preprocessor"]}


def test_a_transform_that_returns_nothing_is_named():
    def forgets(sample):
        sample["x"] = 1

    dataset = TransformedDataset(Plain("a", 1), forgets)
    with pytest.raises(DataError, match=r"forgets returned None.*does its `return sample` miss"):
        dataset[0]


def test_durations_pass_through_and_the_fingerprint_knows_the_steps():
    inner = Told("a", [1.0, 2.0])
    assert TransformedDataset(inner, dict).durations().tolist() == [1.0, 2.0]
    assert TransformedDataset(Plain("a", 2), dict).durations() is None
    prints = [TransformedDataset(inner, step).fingerprint() for step in (dict, dict, sorted)]
    assert prints[0] == prints[1] != prints[2]
    other = TransformedDataset(Told("a", [1.0, 2.0], "other"), dict)
    assert other.fingerprint() != prints[0]


# Any dataset of a user


@pytest.mark.parametrize("values", [(1, 2), np.array([1.0, 2.0]), range(1, 3)])
def test_durations_may_be_any_sequence(values):
    assert durations_of(Told("a", values)).tolist() == [1.0, 2.0]


def test_an_array_of_durations_is_not_copied():
    seconds = np.array([1.0, 2.0])
    assert durations_of(Told("a", seconds)) is seconds


def test_durations_may_be_an_attribute():
    dataset = Plain("a", 2)
    dataset.durations = [1.0, 2.0]
    assert durations_of(dataset).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ([1.0], r"of shape \[1\] for 2 items"),
        ([[1.0], [2.0]], r"of shape \[2, 1\] for 2 items"),
        ([1.0, float("nan")], "number 1 is nan"),
        ([float("inf"), 1.0], "number 0 is inf"),
        ([1.0, -0.5], "number 1 is -0.5"),
        (["a", "b"], "no numbers"),
        (3.0, "of shape"),
    ],
)
def test_bad_durations_name_the_dataset_and_what_to_return(values, problem):
    with pytest.raises(DataError, match=rf"Told returned values .*{problem}.*Return one finite"):
        durations_of(Told("a", values))


def test_without_a_fingerprint_length_and_durations_count():
    class Timed(Plain):
        def __init__(self, durations):
            super().__init__("a", len(durations))
            self.durations = lambda: durations

    same = {fingerprint_of(Timed([1.0, 2.0])), fingerprint_of(Timed([1.0, 2.0]))}
    other = {fingerprint_of(Timed([1.0, 3.0])), fingerprint_of(Plain("a", 2))}
    assert len(same) == 1
    assert len(same | other | {fingerprint_of(Plain("a", 3))}) == 4
    assert fingerprint_of(Plain("a", 2)) == fingerprint_of(Plain("b", 2))


@pytest.mark.parametrize("value", ["", 3])
def test_a_fingerprint_that_is_no_text_is_refused(value):
    with pytest.raises(DataError, match="Return a text that changes when the items do"):
        fingerprint_of(Told("a", None, value))


# Weights and names of combined datasets


def test_items_are_called_by_the_names_of_their_datasets():
    parts = [Plain("a", 2), Plain("b", 3)]
    named = CombinedDataset(parts, names=["dataset.train.0", "dataset.train.1"])
    assert named.place_of(3) == "item 1 of dataset.train.1"
    assert CombinedDataset(parts).place_of(0).startswith("item 0 of dataset 0 (")
    assert named.ranges() == [range(2), range(2, 5)]


def test_weights_are_part_of_the_fingerprint_unless_they_are_one():
    parts = [Plain("a", 2), Plain("b", 3)]
    prints = [CombinedDataset(parts, weights).fingerprint()
              for weights in (None, [1.0, 1.0], [1.0, 2.0])]  # fmt: skip
    assert prints[0] == prints[1] != prints[2]
