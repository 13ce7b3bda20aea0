import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from espnet3.trainer.fit import SeedRanks, seed_all


@pytest.fixture(autouse=True)
def _restored():
    """Leave the generators as they were."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


def draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_a_seed_fixes_all_generators():
    seed_all(3)
    first = draws()
    seed_all(3)
    assert draws() == first
    seed_all(4)
    assert all(one != other for one, other in zip(draws(), first, strict=True))


def test_ranks_draw_different_numbers_and_the_first_those_of_the_seed():
    streams = []
    for rank in range(4):
        seed_all(3, rank)
        streams.append(draws())
    assert len(set(streams)) == 4
    seed_all(3)
    assert draws() == streams[0]


def test_neighbouring_seeds_and_ranks_do_not_meet():
    seed_all(3, 2)
    one = draws()
    seed_all(2, 3)
    assert draws() != one


@pytest.mark.parametrize("seed", [0, 2**32 - 1, 2**32, 2**40])
def test_large_seeds_are_fine(seed):
    seed_all(seed)
    first = draws()
    seed_all(seed, 1)
    assert draws() != first


def test_the_callback_seeds_by_the_rank_of_the_process():
    SeedRanks(3).on_fit_start(SimpleNamespace(global_rank=2), None)
    after = draws()
    seed_all(3, 2)
    assert draws() == after
