import time

import pytest

from espnet3.errors import ResourceError
from espnet3.parallel.detached import choice as choice_module
from espnet3.parallel.detached.choice import Choice
from espnet3.parallel.detached.ending import HandBack
from espnet3.parallel.detached.stragglers import Stragglers
from espnet3.parallel.detached.walltime import Walltime
from espnet3.shards.board import Board
from espnet3.shards.records import DeathNote
from tests.unit.parallel.detached.test_walltime import cut, done


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(choice_module, "_FIRST_PAUSE", 0.0)
    monkeypatch.setattr(choice_module, "_TROUBLE_PAUSE", 0.0)


@pytest.fixture
def choose(planned, lease, board, pace):
    """Return a function that makes the choice of the worker under test."""

    def make(walltime=None, **settings):
        return Choice(
            planned.root,
            board,
            lease,
            walltime=walltime or Walltime(time.time()),
            pace=pace,
            stragglers=Stragglers(planned.root, planned.manifest, board, lease, pace),
            **settings,
        )

    return make


@pytest.fixture
def their_board(planned, other):
    return Board(planned.root, planned.manifest, other)


def ending_in(seconds, total=1000.0):
    now = time.time()
    return Walltime(now + seconds - total, now + seconds)


def test_all_shards_are_taken_and_then_the_run_is_finished(planned, choose, board):
    choice = choose()
    taken = [choice.next() for _ in range(6)]
    assert sorted(taken) == list(range(6))
    assert not choice.is_finished
    for shard in taken:
        planned.commit(shard)
        board.finished(shard)
    assert choice.next() is None
    assert choice.is_finished


def test_shards_that_do_not_fit_are_left_and_smaller_ones_taken(planned, choose, pace):
    pace.learn(done(planned, 0, seconds=10 * planned.manifest.costs[0]))  # 10 s each cost
    choice = choose(ending_in(50 + 25))
    shard = choice.next()
    assert planned.manifest.costs[shard] * 12 <= 25
    assert shard != 0


def test_a_worker_for_whose_time_nothing_fits_ends(planned, choose, pace):
    pace.learn(done(planned, 0, seconds=100 * planned.manifest.costs[0]))
    with pytest.raises(HandBack, match="none of 6 shards fits into the 10 s left") as end:
        choose(ending_in(50 + 10)).next()
    assert end.value.ends_all
    assert end.value.code == 0


def test_a_new_worker_tries_the_shortest_even_if_it_seems_too_long(planned, choose, pace):
    pace.learn(done(planned, 0, seconds=10_000 * planned.manifest.costs[0]))
    shard = choose(ending_in(1000)).next()
    assert planned.manifest.costs[shard] == min(planned.manifest.costs)


def test_one_that_was_slow_to_start_tries_as_well(planned, choose, pace):
    pace.learn(done(planned, 0, seconds=10_000 * planned.manifest.costs[0]))
    choice = choose(ending_in(700))
    assert choice.next() is not None
    with pytest.raises(HandBack, match="none of 5 shards fits"):
        choice.next()


def test_what_fits_into_no_walltime_stops_the_run(planned, choose, pace):
    notes = [cut(shard, 940.0) for shard in range(6) for _ in range(2)]
    pace.learn_cuts(notes, usable=950.0)
    with pytest.raises(ResourceError, match="cannot be finished within the walltime of 1000 s"):
        choose(ending_in(1000)).next()


def test_others_may_still_finish_what_is_left(choose, pace, their_board):
    assert their_board.take() is not None
    pace.learn_cuts([cut(shard, 940.0) for shard in range(6) for _ in range(2)], usable=950.0)
    with pytest.raises(HandBack, match="others go on"):
        choose(ending_in(1000)).next()


def test_an_impatient_worker_does_not_wait_for_others(choose, their_board):
    while their_board.take() is not None:
        pass
    with pytest.raises(HandBack, match="6 shards are in other hands") as end:
        choose(is_patient=False).next()
    assert not end.value.ends_all


def test_few_stand_by_and_the_others_end(choose, lease, other, their_board):
    while their_board.take() is not None:
        pass
    choice = choose()
    assert choice.next() is None
    assert lease.is_held("standby.0")
    assert other.claim("standby.1")
    for _ in range(3):
        assert choice.next() is None  # it goes on standing by
    lease.release("standby.0")
    assert other.claim("standby.0")
    with pytest.raises(HandBack, match="others stand by"):
        choose().next()


def test_one_that_stands_by_takes_what_is_given_back(choose, lease, their_board):
    taken = [their_board.take() for _ in range(6)]
    choice = choose()
    assert choice.next() is None
    their_board.release(taken[0])
    assert choice.next() == taken[0]
    assert not lease.is_held("standby.0")


def test_a_shard_that_this_machine_could_not_bear_is_left_for_a_while(choose, board):
    choice = choose()
    first = choice.next()
    board.release(first)
    choice.avoid(first, 60.0)
    rest = [choice.next() for _ in range(5)]
    assert first not in rest
    assert choice.next() is None
    choice.avoid(first, 0.0)
    assert choice.next() == first


def test_after_trouble_the_next_look_comes_later(choose, monkeypatch):
    monkeypatch.setattr(choice_module, "_TROUBLE_PAUSE", 60.0)
    choice = choose()
    choice.avoid(0, 0.0)
    assert choice.next() is None


def test_what_is_looked_at_first_may_end_the_worker(choose):
    def stop():
        raise HandBack("stopped")

    with pytest.raises(HandBack, match="stopped"):
        choose(before_look=stop).next()


def test_walltime_notes_of_other_kinds_do_not_count(pace):
    pace.learn_cuts([DeathNote(0, "a", "died", seconds=900.0)], usable=950.0)
    assert pace.expected(0) is None
