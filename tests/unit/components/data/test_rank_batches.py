import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from espnet3.components.data.batching import Limit, in_steps, world
from espnet3.errors import ConfigError


def batches_of(sizes):
    return np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])


def all_of(batches):
    return sorted(np.concatenate([*batches, np.empty(0, np.int64)]).astype(int).tolist())


def test_without_a_process_group_there_is_one_rank():
    assert world() == (1, 0)


def check_steps(batches, dealt, n_ranks):
    """Equal steps, each sample at most once, and fewer left out than there are ranks."""
    samples = all_of(batches)
    assert len(dealt) % n_ranks == 0
    assert all(len(batch) for batch in dealt)
    seen = all_of(dealt)
    assert len(set(seen)) == len(seen)
    assert set(seen) <= set(samples)
    assert len(samples) - len(seen) <= len(batches) % n_ranks
    return len(samples) - len(seen)


@example([1, 1, 1, 1, 2], 4)
@example([1, 1, 1, 2], 3)
@example([2, 1, 1, 1, 1], 4)
@example([1] * 8 + [9], 8)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=40), st.integers(1, 9))
def test_each_sample_once_and_equal_steps(sizes, n_ranks):
    batches = batches_of(sizes)
    if sum(sizes) < n_ranks:
        with pytest.raises(ConfigError, match="Use fewer devices or more data"):
            in_steps(batches, n_ranks, drop_last=False)
        return
    dealt = in_steps(batches, n_ranks, drop_last=False)
    n_left_out = check_steps(batches, dealt, n_ranks)
    assert max(map(len, dealt)) <= max(sizes)
    # With batches of one sample, whole steps are all that there is.
    assert n_left_out == (sum(sizes) % n_ranks if max(sizes) == 1 else 0)


@st.composite
def planned(draw):
    """Sizes of samples in fields, a limit, and batches within it: some as large as possible."""
    n_items = draw(st.integers(1, 40))
    n_fields = draw(st.integers(1, 2))
    size = st.one_of(st.integers(0, 12), st.sampled_from([10, 11, 20]))
    row = st.lists(size, min_size=n_items, max_size=n_items)
    sizes = np.array(draw(st.lists(row, min_size=n_fields, max_size=n_fields)), dtype=float)
    budget = sizes.sum(axis=0).max() * draw(st.sampled_from([1, 1.5, 2, 3]))
    limit = Limit(draw(st.sampled_from([None, 1, 2, 5])), sizes, budget)
    batches, rest = [], list(range(n_items))
    while rest:
        n_taken = draw(st.integers(1, 3))
        while not limit.fits(np.array(rest[:n_taken])):
            n_taken -= 1
        batches.append(np.array(rest[:n_taken]))
        del rest[:n_taken]
    return batches, limit


@given(planned(), st.integers(1, 9))
def test_no_batch_of_a_rank_is_beyond_the_limit(plan, n_ranks):
    batches, limit = plan
    n_samples = sum(map(len, batches))
    if n_samples < n_ranks:
        return
    dealt = in_steps(batches, n_ranks, drop_last=False, limit=limit)
    n_left_out = check_steps(batches, dealt, n_ranks)
    assert all(limit.fits(batch) for batch in dealt)
    if n_left_out and len(limit.sizes) == 1:  # there is no way to make so few batches of all
        assert fewest_batches(limit, n_samples) > len(batches) // n_ranks * n_ranks


def fewest_batches(limit, n_samples):
    """Count batches that each take as many as fit beside the longest that is left."""
    rest, n_batches = sorted(limit.sizes[0][:n_samples], reverse=True), 0
    while rest:
        del rest[: limit.capacity(rest[0])]
        n_batches += 1
    return n_batches


def test_long_samples_share_no_batch_to_make_steps_even():
    """Each of 30 s, with 40 s of a batch: two of them would be 60 s."""
    limit = Limit(None, np.array([[30.0] * 5]), 40.0)
    dealt = in_steps(batches_of([1] * 5), 2, drop_last=False, limit=limit)
    assert [batch.tolist() for batch in dealt] == [[0], [1], [2], [3]]
    mixed = Limit(None, np.array([[30.0, 30.0, 30.0, 10.0, 10.0]]), 40.0)
    dealt = in_steps(batches_of([1] * 5), 2, drop_last=False, limit=mixed)
    assert sorted(sorted(batch.tolist()) for batch in dealt) == [[0], [1], [2], [3, 4]]


def test_fields_are_padded_each_for_itself():
    """Long speech with a short text, and short speech with a long one: padded, it is twice that."""
    limit = Limit(None, np.array([[9.0, 1.0, 5.0], [1.0, 9.0, 5.0]]), 20.0)
    assert not limit.fits(np.array([0, 1]))
    dealt = in_steps(batches_of([1] * 3), 2, drop_last=False, limit=limit)
    assert [len(batch) for batch in dealt] == [1, 1]


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


def test_single_samples_are_joined_where_they_may_be():
    dealt = in_steps(batches_of([1] * 7), 2, drop_last=False, limit=Limit(2))
    assert sorted(map(len, dealt)) == [1, 1, 1, 1, 1, 2]
    dealt = in_steps(batches_of([1] * 7), 2, drop_last=False, limit=Limit(1))
    assert list(map(len, dealt)) == [1] * 6


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
    batches = list(np.arange(50_001)[:, None])
    assert len(in_steps(batches, 2, drop_last=False)) == 50_000
    long = Limit(None, np.full((1, 50_001), 30.0), 40.0)
    assert len(in_steps(batches, 2, drop_last=False, limit=long)) == 50_000
