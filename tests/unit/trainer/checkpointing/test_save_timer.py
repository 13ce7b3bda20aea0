from types import SimpleNamespace

import pytest

from espnet3.trainer.checkpointing.checkpoints import SaveTimer


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


@pytest.mark.parametrize("n_ranks", [1, 2])
@pytest.mark.parametrize(
    ("cost", "expected"), [(0.0, 60), (0.3, 60), (0.6, 60), (3.0, 300), (18.0, 1800), (900.0, 1800)]
)
def test_an_interval_of_its_own_choice_keeps_saving_below_one_percent(n_ranks, cost, expected):
    now, ranks = [0.0], Ranks(n_ranks)
    timer = SaveTimer(None, lambda: now[0])
    assert 60 <= batches_until_due(timer, ranks, now, 1.0) <= 63  # before anything is known
    for _ in range(3):
        with timer.saving():
            now[0] += cost
        timer.restart()
        waited = batches_until_due(timer, ranks, now, 1.0)
        assert expected <= waited <= expected * 1.01 + 3


def test_an_interval_follows_what_the_last_save_took():
    now, ranks = [0.0], Ranks(1)
    timer = SaveTimer(None, lambda: now[0])
    for cost, expected in [(6.0, 600), (0.1, 60), (2.0, 200)]:  # a disk that was busy for a while
        with timer.saving():
            now[0] += cost
        timer.restart()
        assert batches_until_due(timer, ranks, now, 1.0) == expected


def test_an_interval_that_is_set_stays():
    now, ranks = [0.0], Ranks(1)
    timer = SaveTimer(30, lambda: now[0])
    with timer.saving():
        now[0] += 500
    timer.restart()
    assert batches_until_due(timer, ranks, now, 1.0) == 30
