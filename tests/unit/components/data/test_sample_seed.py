import random

import numpy as np
import pytest
import torch

from espnet3.components.data.dataset import fixed_random, global_rngs_kept, sample_rng


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


def test_torch_has_one_thread_inside_and_its_own_number_after_an_error():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(ValueError, match="1 thread"), fixed_random():
            raise ValueError(f"{torch.get_num_threads()} thread")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
