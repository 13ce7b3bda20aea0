import os
import time

import pytest

from espnet3.parallel.detached.stragglers import Stragglers
from espnet3.shards.board import Board
from espnet3.shards.position import Position
from espnet3.shards.records import DeathNote, write_death
from tests.unit.parallel.detached.test_walltime import done

COST_SECONDS = 10.0


@pytest.fixture
def stragglers(planned, lease, board, pace):
    pace.learn(done(planned, 5, seconds=COST_SECONDS * planned.manifest.costs[5]))
    return Stragglers(planned.root, planned.manifest, board, lease, pace)


@pytest.fixture
def held(planned, other, board):
    """Return a function with which another worker holds a shard, so far done, for so long."""

    def hold(shard, n_done, seconds):
        their_board = Board(planned.root, planned.manifest, other)
        assert their_board.take(lambda each: each == shard) == shard
        attempt = planned.layout.new_attempt(shard, other.owner.owner_id)
        attempt.mkdir()
        position = Position(attempt)
        position.cells[0] = planned.manifest.bounds[shard] + n_done
        position.close()
        claim = planned.layout.claim(planned.layout.shard_name(shard))
        os.utime(claim, (time.time() - seconds,) * 2)
        board.refresh()

    return hold


def choose(stragglers, seconds_left=float("inf")):
    return stragglers.choose(seconds_left, is_loaded=True)


def test_a_shard_that_would_be_done_sooner_anew_is_claimed_once(stragglers, held, lease, planned):
    # 7 items of 10 s: 70 s anew; one of them took 200 s, so 1200 s are left.
    held(0, n_done=1, seconds=200)
    assert stragglers.remaining(0) == pytest.approx(1200, rel=0.05)
    assert choose(stragglers) == 0
    assert lease.is_held("split.0.twin")
    stragglers.release(0)
    assert not lease.is_held("split.0.twin")


def test_the_slowest_one_comes_first(stragglers, held):
    held(0, n_done=1, seconds=200)
    held(1, n_done=1, seconds=2000)
    assert choose(stragglers) == 1


def test_a_shard_is_not_started_a_third_time(stragglers, held, other):
    held(0, n_done=1, seconds=200)
    assert other.claim("split.0.twin")
    assert choose(stragglers) is None


def test_a_shard_at_its_usual_pace_is_left_alone(stragglers, held):
    held(0, n_done=3, seconds=30)
    assert choose(stragglers) is None


def test_a_shard_that_hangs_before_its_first_item_is_found_later(stragglers, held):
    held(0, n_done=0, seconds=100)
    assert choose(stragglers) is None
    claim = stragglers._layout.claim("split.0")
    os.utime(claim, (time.time() - 1000,) * 2)
    assert choose(stragglers) == 0


def test_what_would_not_fit_into_our_own_time_is_not_begun(stragglers, held):
    held(0, n_done=1, seconds=200)
    assert choose(stragglers, seconds_left=60.0) is None


def test_a_shard_at_which_workers_die_is_not_spread(stragglers, held, planned):
    held(0, n_done=1, seconds=200)
    write_death(planned.paths, DeathNote(0, "a", "it died", 1, 2))
    assert choose(stragglers) is None


def test_without_any_shard_done_nothing_is_known(planned, lease, board, pace, held):
    held(0, n_done=1, seconds=200)
    assert choose(Stragglers(planned.root, planned.manifest, board, lease, pace)) is None
