from types import SimpleNamespace

import pytest

from espnet3.trainer.checkpointing.save_timer import SaveTimer


class Ranks:
    """Several ranks; counts how often they talk, and can hand on what rank 0 said."""

    def __init__(self, n_ranks):
        self.world_size = n_ranks
        self.said = []
        self.strategy = SimpleNamespace(broadcast=self._broadcast)

    def _broadcast(self, value):
        self.said.append(value)
        return value


def batches_until_due(timer, ranks, now, seconds_per_batch):
    n = 0
    while True:
        now[0] += seconds_per_batch
        n += 1
        if timer.is_due(ranks):
            return n


@pytest.mark.parametrize("n_ranks", [1, 2])
@pytest.mark.parametrize("seconds_per_batch", [0.1, 7.0, 4000.0])
def test_a_save_is_due_after_the_interval(n_ranks, seconds_per_batch):
    now, ranks = [0.0], Ranks(n_ranks)
    timer = SaveTimer(1800, lambda: now[0])
    for _ in range(2):
        n = batches_until_due(timer, ranks, now, seconds_per_batch)
        assert 1800 <= n * seconds_per_batch <= 1800 * 1.01 + 2 * seconds_per_batch
        assert timer.is_due(ranks)  # until it was saved
        timer.restart()
    assert len(ranks.said) < 2 * 40 * (n_ranks - 1) + 1


def test_a_run_that_becomes_slower_is_not_late_by_much():
    now, ranks = [0.0], Ranks(2)
    timer = SaveTimer(600, lambda: now[0])
    for _ in range(100):
        now[0] += 0.1
        assert not timer.is_due(ranks)
    batches_until_due(timer, ranks, now, 2.0)
    assert now[0] < 4 * 600


def test_other_ranks_follow_rank_0_whatever_their_clock_says():
    timer = SaveTimer(600, lambda: 0.0)
    ranks = Ranks(2)
    ranks.strategy = SimpleNamespace(broadcast=lambda value: 0)
    assert timer.is_due(ranks)
