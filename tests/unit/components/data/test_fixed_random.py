"""Seeded blocks: the same numbers for the same seed, and no trace afterwards."""

import random

import numpy as np
import pytest
import torch

from espnet3.components.data.fixed_random import fixed_random


def draw():
    return random.random(), float(np.random.random()), float(torch.rand(()))


def test_a_seed_gives_the_same_numbers_and_the_generators_go_on_as_if_nothing_was():
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = draw(), draw()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    first = draw()
    with fixed_random() as seed:
        seed(7)
        inside = draw()
        seed(8)
        other = draw()
        seed(7)
        assert draw() == inside
        assert not set(inside) & set(other)
    assert (first, draw()) == expected


def test_torch_has_one_thread_inside_and_its_own_number_after_an_error():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(ValueError, match="1 thread"), fixed_random():
            raise ValueError(f"{torch.get_num_threads()} thread")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
