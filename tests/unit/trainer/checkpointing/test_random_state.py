import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from espnet3.trainer.checkpointing.resume import (
    RandomStates,
    random_state,
    seed_from,
    set_random_state,
)
from espnet3.trainer.trainer import AtomicCheckpointIO


def draw():
    return random.random(), random.gauss(0, 1), np.random.normal(), torch.rand(2).tolist()


def rank(number, n_ranks):
    return SimpleNamespace(world_size=n_ranks, global_rank=number, is_global_zero=number == 0)


def test_states_survive_a_checkpoint(tmp_path):
    draw()  # leaves a half-used pair of normal numbers behind
    io = AtomicCheckpointIO()
    io.save_checkpoint({"states": [random_state()]}, tmp_path / "a.ckpt")
    expected = draw()
    draw()
    set_random_state(io.load_checkpoint(tmp_path / "a.ckpt")["states"][0])
    assert draw() == expected


def test_another_number_of_ranks_draws_anew_each_its_own(caplog):
    callback, checkpoint = RandomStates(), {}
    callback.on_save_checkpoint(rank(0, 1), None, checkpoint)
    drawn = []
    for number in (0, 1, 0):
        callback.on_load_checkpoint(rank(number, 2), None, checkpoint)
        callback.on_train_start(rank(number, 2), None)
        drawn.append(draw())
    assert drawn[0] == drawn[2] != drawn[1]
    assert "written by 1 process and is resumed by 2" in caplog.text


def test_the_new_seed_depends_on_the_place_in_the_training():
    state = random_state()
    torch.rand(1)
    drawn = []
    for one in (state, random_state()):
        seed_from(one, 0)
        drawn.append(draw())
    assert drawn[0] != drawn[1]


def test_a_checkpoint_without_states_changes_nothing():
    callback = RandomStates()
    torch.manual_seed(5)
    callback.on_load_checkpoint(rank(0, 1), None, {})
    callback.on_train_start(rank(0, 1), None)
    value = torch.rand(1)
    torch.manual_seed(5)
    assert value == pytest.approx(torch.rand(1))
