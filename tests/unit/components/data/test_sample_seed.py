import random

import numpy as np
import torch

from espnet3.components.data.sample_seed import global_rngs_seeded, sample_rng


def drawn():
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_each_reading_of_each_sample_has_its_own_numbers():
    keys = [(s, e, i, c) for s in (0, -1) for e in (0, 1) for i in (0, 1) for c in (0, 1)]
    numbers = [sample_rng(*key).random() for key in keys]
    assert len(set(numbers)) == len(keys)
    assert numbers == [sample_rng(*key).random() for key in keys]


def test_global_generators_are_seeded_and_given_back():
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    expected = drawn()
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    with global_rngs_seeded(sample_rng(0, 0, 0)):
        first = drawn()
    assert drawn() == expected
    with global_rngs_seeded(sample_rng(0, 0, 0)):
        assert drawn() == first
    with global_rngs_seeded(sample_rng(0, 1, 0)):
        assert not set(drawn()) & set(first)
