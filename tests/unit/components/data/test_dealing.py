import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from espnet3.components.data.dealing import in_steps, world
from espnet3.errors import ConfigError


def batches_of(sizes):
    return np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])


def all_of(batches):
    return sorted(np.concatenate([*batches, np.empty(0, np.int64)]).astype(int).tolist())


def test_without_a_process_group_there_is_one_rank():
    assert world() == (1, 0)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=40), st.integers(1, 9))
def test_each_sample_once_and_equal_steps(sizes, n_ranks):
    batches = batches_of(sizes)
    if sum(sizes) < n_ranks:
        with pytest.raises(ConfigError, match="Use fewer devices or more data"):
            in_steps(batches, n_ranks, drop_last=False)
        return
    dealt = in_steps(batches, n_ranks, drop_last=False)
    assert len(dealt) % n_ranks == 0
    assert all_of(dealt) == list(range(sum(sizes)))
    assert all(len(batch) for batch in dealt)
    if max(sizes) > 1:  # single samples may have to share a batch
        assert max(map(len, dealt)) <= max(sizes)


@given(st.lists(st.integers(2, 9), min_size=1, max_size=40), st.integers(1, 9))
def test_only_the_last_step_changes_where_batches_can_be_split(sizes, n_ranks):
    batches = batches_of(sizes)
    n_whole = len(sizes) // n_ranks * n_ranks
    if sum(sizes[n_whole:]) < n_ranks:
        return
    dealt = in_steps(batches, n_ranks, drop_last=False)
    assert len(dealt) == -(-len(sizes) // n_ranks) * n_ranks
    assert [b.tolist() for b in dealt[:n_whole]] == [b.tolist() for b in batches[:n_whole]]


def test_the_largest_are_split():
    dealt = in_steps(batches_of([4, 4, 2, 8, 3, 8]), 4, drop_last=False)
    assert [len(batch) for batch in dealt] == [4, 4, 2, 8, 3, 2, 2, 4]
    # Three samples do not make four batches, so the step before gives one of its own.
    dealt = in_steps(batches_of([4, 4, 2, 8, 3]), 4, drop_last=False)
    assert len(dealt) == 8
    assert max(map(len, dealt)) <= 4


def test_single_samples_are_joined():
    dealt = in_steps(batches_of([1] * 7), 2, drop_last=False)
    assert sorted(map(len, dealt)) == [1, 1, 1, 1, 1, 2]


def test_drop_last_leaves_out_what_does_not_fill_a_step():
    dealt = in_steps(batches_of([3, 3, 3, 2, 2]), 2, drop_last=True)
    assert [len(batch) for batch in dealt] == [3, 3, 3, 2]


def test_drop_last_with_less_than_a_step_is_an_error():
    with pytest.raises(ConfigError, match=r"4 ranks, but only 2 batches .*smaller batches"):
        in_steps(batches_of([8, 8]), 4, drop_last=True)


def test_drop_last_that_leaves_nothing_is_an_error():
    with pytest.raises(ConfigError, match=r"drop_last leaves no batch.*drop_last: false"):
        in_steps([], 1, drop_last=True)


def test_many_single_samples_are_dealt_at_once():
    """All of them are looked at, but not again for each step."""
    batches = list(np.arange(200_001)[:, None])
    assert len(in_steps(batches, 2, drop_last=False)) == 200_000
