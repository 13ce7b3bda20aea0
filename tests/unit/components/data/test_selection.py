import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from espnet3.components.data.batching import DatasetPart, find_slots, tickets_of


def tickets(weight, n_items, epoch, seed=0):
    slots = find_slots([DatasetPart(np.arange(n_items), weight)], seed)
    found = slots.tickets(epoch, n_items)
    assert len(found) == len(slots)
    return found.tolist()


def test_weight_one_is_each_item_once():
    assert tickets(1.0, 7, epoch=5) == list(range(7))


def test_weight_two_is_each_item_twice_as_two_copies():
    assert sorted(tickets(2.0, 7, epoch=0)) == list(range(14))


@given(st.floats(0.05, 3.0), st.integers(20, 90), st.integers(0, 50))
def test_a_weight_gives_that_share_the_same_number_in_each_epoch(weight, n_items, epoch):
    found = tickets(weight, n_items, epoch)
    n_whole = int(weight)
    n_more = round((weight - n_whole) * n_items)
    assert len(found) == len(tickets(weight, n_items, epoch + 1)) == n_whole * n_items + n_more
    assert len(set(found)) == len(found)
    counts = np.bincount(np.array(found) % n_items, minlength=n_items)
    assert set(counts.tolist()) <= {n_whole, n_whole + 1}


def test_half_takes_the_other_half_in_the_next_epoch():
    first, second, again = (tickets(0.5, 16, epoch) for epoch in range(3))
    assert sorted(first + second) == list(range(16))
    assert first == again
    assert tickets(0.5, 16, 0, seed=1) != first


@pytest.mark.parametrize("weight", [0.3, 0.45, 0.9])
def test_over_some_epochs_no_item_is_forgotten(weight):
    counts = np.zeros(41)
    for epoch in range(60):
        counts += np.bincount(tickets(weight, 41, epoch), minlength=41)
    assert counts.min() >= 0.5 * counts.max()
    assert counts.mean() == pytest.approx(60 * weight, rel=0.05)


def test_neighbours_take_turns_so_that_lengths_stay_alike():
    lengths = np.linspace(30, 1, 100)
    slots = find_slots(
        [DatasetPart(np.arange(60), 0.5), DatasetPart(np.arange(60, 100), 1.0)], seed=0
    )
    longest, shortest = slots.bounds(lengths)
    for epoch in range(3):
        found = lengths[slots.tickets(epoch, 100)]
        assert (found <= longest).all()
        assert (found >= shortest).all()
    assert (longest - shortest).max() < 0.6


def test_indices_that_come_again_get_another_ticket():
    assert tickets_of(np.array([2, 0, 2, 2, 1]), 10).tolist() == [2, 0, 12, 22, 1]
