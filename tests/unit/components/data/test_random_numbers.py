import random

import numpy as np
import pytest
import torch

from espnet3.components.data.random_numbers import fixed_random, global_rngs_kept, sample_rng


def drawn():
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_each_reading_of_each_sample_has_its_own_numbers():
    keys = [(s, e, i, c) for s in (0, -1) for e in (0, 1) for i in (0, 1) for c in (0, 1)]
    numbers = [sample_rng(*key).random() for key in keys]
    assert len(set(numbers)) == len(keys)
    assert numbers == [sample_rng(*key).random() for key in keys]


@pytest.mark.parametrize("block", [global_rngs_kept, fixed_random])
def test_global_generators_are_seeded_and_given_back(block):
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = drawn(), drawn()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    first = drawn()
    with block() as seed:
        seed(7, -1)
        inside = drawn()
        seed(8, -1)
        other = drawn()
        seed(7, -1)
        assert drawn() == inside
    assert (first, drawn()) == expected
    assert len({*inside, *other}) == 6  # nor do two generators give the same numbers


def numpy_state():
    """Return the generator's own words on its state, the number that it holds back included."""
    state = np.random.get_state(legacy=False)
    words = state["state"]
    return words["key"].tolist(), words["pos"], state["has_gauss"], state["gauss"]


@pytest.mark.parametrize("n_words", [0, 1, 622, 623, 624])
@pytest.mark.parametrize("n_normal", [0, 1, 2])
@pytest.mark.parametrize("inside", [0, 1, 2])
def test_numpy_is_left_to_the_last_bit_also_with_half_a_pair_of_normal_numbers(
    n_words, n_normal, inside
):
    np.random.seed(3)
    np.random.randint(0, 2**32, n_words, dtype=np.uint32)
    np.random.standard_normal(n_normal)
    before = numpy_state()
    following = np.random.standard_normal(5).tolist()
    np.random.seed(3)
    np.random.randint(0, 2**32, n_words, dtype=np.uint32)
    np.random.standard_normal(n_normal)
    with global_rngs_kept() as seed:
        assert numpy_state() == before
        if inside:
            seed(1)
        np.random.standard_normal(inside)
    assert numpy_state() == before
    assert np.random.standard_normal(5).tolist() == following


def test_a_block_in_a_block_leaves_the_numbers_of_the_outer_one():
    with global_rngs_kept() as seed:
        seed(1)
        pair = np.random.standard_normal(2).tolist()
        seed(1)
        first = np.random.standard_normal()
        with global_rngs_kept() as again:
            again(1)
            assert np.random.standard_normal() == first
        assert [first, np.random.standard_normal()] == pair


def test_an_error_in_the_block_leaves_numpy_as_it_was():
    np.random.seed(5)
    before = numpy_state()
    with pytest.raises(ValueError, match=r"0\.\d"), global_rngs_kept():
        raise ValueError(np.random.random())
    assert numpy_state() == before


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.MT19937])
def test_another_generator_in_the_place_of_numpys_is_kept_and_given_back(kind):
    own = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(kind(4))
        with global_rngs_kept():
            first = np.random.random(3).tolist()
            np.random.set_bit_generator(own)
        assert np.random.random(3).tolist() == first
        assert type(np.random.get_bit_generator()) is kind
    finally:
        np.random.set_bit_generator(own)


def test_torch_has_one_thread_inside_and_its_own_number_after_an_error():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(ValueError, match="1 thread"), fixed_random():
            raise ValueError(f"{torch.get_num_threads()} thread")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
