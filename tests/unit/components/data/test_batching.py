import time
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from espnet3.components.data.batching import CountBatches, DatasetPart, LengthBatches, in_steps


def speech_like(n, seed=0):
    """Lengths as of read speech: most of some seconds, a tail up to 35."""
    return np.clip(np.random.default_rng(seed).lognormal(2.2, 0.6, n), 0.8, 35.0)


def by_length(lengths, parts=None, **settings):
    settings = {"budget": 100.0, "max_padding": 0.08, "seed": 1, **settings}
    return LengthBatches(parts or [DatasetPart(np.arange(len(lengths)))], lengths, **settings)


def by_count(n, size, parts=None, **settings):
    settings = {"n_items": n, "seed": 1, **settings}
    return CountBatches(parts or [DatasetPart(np.arange(n))], size, **settings)


def as_lists(batches):
    return [batch.tolist() for batch in batches]


def padding(batch, lengths):
    longest = lengths[batch].max()
    return 1 - lengths[batch].mean() / longest if longest else 0.0


# By count


def test_count_without_a_seed_keeps_the_order():
    plan = by_count(5, 2, seed=None)
    assert as_lists(plan.batches(0)) == as_lists(plan.batches(1)) == [[0, 1], [2, 3], [4]]
    assert as_lists(by_count(5, 2, seed=None, drop_last=True).batches(0)) == [[0, 1], [2, 3]]


def test_count_shuffles_by_seed_and_epoch():
    plan = by_count(100, 8)
    first = as_lists(plan.batches(0))
    assert sorted(chain(*first)) == list(range(100))
    assert as_lists(by_count(100, 8).batches(0)) == first
    assert as_lists(plan.batches(1)) != first
    assert as_lists(by_count(100, 8, seed=2).batches(0)) != first


# By length


@given(
    st.lists(st.one_of(st.floats(0.001, 50.0), st.just(0.0)), min_size=1, max_size=200),
    st.floats(50.0, 400.0),
    st.floats(0.01, 0.5),
    st.one_of(st.none(), st.integers(1, 10)),
    st.integers(0, 3),
)
def test_every_batch_keeps_to_budget_and_padding(lengths, budget, max_padding, max_items, epoch):
    lengths = np.array(lengths)
    plan = by_length(lengths, budget=budget, max_padding=max_padding, max_items=max_items)
    batches = plan.batches(epoch)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    assert len(batches) == len(plan.batches(epoch + 1)) == len(plan.sizes)
    for batch in batches:
        assert len(batch) * lengths[batch].max() <= budget * (1 + 1e-6)
        assert padding(batch, lengths) <= max_padding + 1e-6
        assert len(batch) <= (max_items or len(batch))


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=2, max_size=60),
    st.floats(1.0, 5.0),
    st.sampled_from([1.0, 0.4, 1.7]),
    st.integers(1, 5),
)
def test_fields_padded_each_for_itself_keep_to_the_budget(sizes, room, weight, n_ranks):
    fields = np.array(sizes, dtype=float).T
    n_items, budget = len(sizes), max(fields.sum(axis=0).max() * room, 1.0)
    parts = [DatasetPart(np.arange(n_items), weight)]
    plan = by_length(fields, parts, budget=budget, max_padding=0.5)
    batches = plan.batches(0)
    n_samples = sum(map(len, batches))
    dealt = in_steps(batches, n_ranks, drop_last=False, limit=plan.limit) if (
        n_samples >= n_ranks
    ) else []  # fmt: skip
    for batch in [*batches, *dealt]:
        padded = len(batch) * fields[:, batch % n_items].max(axis=1).sum()
        assert padded <= budget * (1 + 1e-6)


@pytest.mark.parametrize(("n", "budget"), [(1003, 60), (1003, 200), (20_000, 300)])
def test_padding_of_speech_is_below_8_percent(n, budget):
    lengths = speech_like(n)
    batches = by_length(lengths, budget=budget).batches(0)
    padded = sum(len(batch) * lengths[batch].max() for batch in batches)
    assert 1 - lengths.sum() / padded < 0.08
    assert max(padding(batch, lengths) for batch in batches) <= 0.08
    # Narrow buckets must not mean many small batches.
    assert len(batches) < 1.4 * lengths.sum() / budget


def test_epochs_mix_other_samples_in_another_order():
    lengths = speech_like(2000)
    plan = by_length(lengths)
    first, second = plan.batches(0), plan.batches(1)
    assert as_lists(by_length(lengths).batches(0)) == as_lists(first)
    common = {tuple(sorted(b.tolist())) for b in first} & {tuple(sorted(b)) for b in second}
    assert len(common) < 0.1 * len(first)
    # The lengths of neighbouring steps have nothing to do with each other.
    means = np.array([lengths[batch].mean() for batch in first])
    assert abs(np.corrcoef(means[:-1], means[1:])[0, 1]) < 0.35


def test_without_a_seed_the_longest_come_first():
    lengths = speech_like(300)
    batches = by_length(lengths, seed=None).batches(0)
    longest = [lengths[batch].max() for batch in batches]
    assert longest == sorted(longest, reverse=True)
    assert as_lists(by_length(lengths, seed=None).batches(3)) == as_lists(batches)


@pytest.mark.parametrize("n_ranks", [2, 3, 4, 8])
def test_ranks_get_batches_of_similar_cost(n_ranks):
    lengths = speech_like(10_000)
    dealt = in_steps(by_length(lengths, budget=200).batches(0), n_ranks, drop_last=False)
    costs = np.array([len(b) * lengths[b].max() for b in dealt]).reshape(-1, n_ranks)
    shuffled = np.random.default_rng(0).permutation(costs.reshape(-1)).reshape(-1, n_ranks)
    waited, by_chance = (c.max(axis=1).sum() * n_ranks / c.sum() - 1 for c in (costs, shuffled))
    assert waited < 0.025
    assert waited < by_chance / 2


def test_weights_keep_budget_padding_and_the_number_of_batches():
    lengths = speech_like(1000)
    parts = [DatasetPart(np.arange(400), 2.0), DatasetPart(np.arange(400, 1000), 0.3)]
    plan = by_length(lengths, parts)
    for epoch in range(3):
        batches = plan.batches(epoch)
        tickets = np.concatenate(batches)
        assert len(batches) == len(plan.sizes)
        assert len(set(tickets.tolist())) == len(tickets) == 800 + 180
        assert np.bincount(tickets % 1000)[:400].tolist() == [2] * 400
        assert max(len(b) * lengths[b % 1000].max() for b in batches) <= 100.0001
        assert max(padding(b % 1000, lengths) for b in batches) <= 0.08


def test_an_order_of_reading_is_followed():
    lengths = speech_like(2000)
    places = np.arange(2000) // 100  # 20 shards, read from the last to the first

    def order(epoch):
        return np.argsort(-places, kind="stable")

    for batches in (by_length(lengths, order=order).batches(0),
                    by_count(2000, 16, order=order).batches(0)):  # fmt: skip
        assert sorted(np.concatenate(batches).tolist()) == list(range(2000))
        firsts = np.array([-places[batch].max() for batch in batches])
        assert (np.diff(firsts) >= 0).all()
        spread = [np.ptp(places[batch]) for batch in batches]
        assert np.mean(spread) < 6


def test_a_million_samples_are_planned_in_seconds():
    lengths = speech_like(1_000_000)
    start = time.process_time()
    batches = by_length(lengths, budget=300).batches(0)
    # Half a second on an idle machine.
    assert time.process_time() - start < 5
    assert sum(map(len, batches)) == 1_000_000
